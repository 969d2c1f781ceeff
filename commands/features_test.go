package commands

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// featureTx fakes the port of features.
type featureTx struct {
	unfaked
	*memory
	features  map[string]domain.Feature
	groupings []domain.Grouping
}

func (tx *featureTx) Feature(key string) (*domain.Feature, error) {
	return found(tx.features, key)
}

func (tx *featureTx) SaveFeature(f domain.Feature) error {
	tx.features[f.LookupKey] = f
	return nil
}

func (tx *featureTx) SaveGrouping(g domain.Grouping) (time.Time, error) {
	tx.groupings = append(tx.groupings, g)
	return g.Since, nil
}

var calls = domain.Feature{LookupKey: "calls", Name: "Calls", Type: domain.FeatureQuota, Unit: "call"}

func newFeatures() (*Catalogue, *featureTx) {
	tx := &featureTx{memory: newMemory(), features: map[string]domain.Feature{}}
	transacted(tx.memory, &tx.features)
	return catalogueOf(tx.memory, tx), tx
}

func TestBadFeaturesAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		spoil         func(*domain.Feature)
		code, pointer string
	}{
		"key":           {func(f *domain.Feature) { f.LookupKey = "Calls" }, "lookup_key_invalid", "/lookupKey"},
		"long key":      {func(f *domain.Feature) { f.LookupKey = "a" + names(64) }, "lookup_key_invalid", "/lookupKey"},
		"no name":       {func(f *domain.Feature) { f.Name = " " }, "name_invalid", "/name"},
		"long name":     {func(f *domain.Feature) { f.Name = names(201) }, "name_invalid", "/name"},
		"control":       {func(f *domain.Feature) { f.Name = "a\n" }, "name_invalid", "/name"},
		"no UTF-8":      {func(f *domain.Feature) { f.Name = "\xff" }, "name_invalid", "/name"},
		"unit of lines": {func(f *domain.Feature) { f.Unit = "GB\nhour" }, "unit_invalid", "/unit"},
		"long unit":     {func(f *domain.Feature) { f.Unit = names(51) }, "unit_invalid", "/unit"},
		"type":          {func(f *domain.Feature) { f.Type = "GAUGE" }, "type_invalid", "/type"},
		"three keys":    {func(f *domain.Feature) { f.GroupBy = []string{"a", "b", "c"} }, "group_by_invalid", "/groupBy"},
		"equal keys":    {func(f *domain.Feature) { f.GroupBy = []string{"a", "a"} }, "group_by_invalid", "/groupBy/1"},
		"empty key":     {func(f *domain.Feature) { f.GroupBy = []string{""} }, "group_by_invalid", "/groupBy/0"},
		"bad key":       {func(f *domain.Feature) { f.GroupBy = []string{"a", "b c"} }, "group_by_invalid", "/groupBy/1"},
		"no usage":      {func(f *domain.Feature) { f.Type, f.GroupBy = domain.FeatureBoolean, []string{"a"} }, "group_by_invalid", "/groupBy"},
		"another type":  {func(f *domain.Feature) { f.Type = domain.FeatureBoolean }, "feature_type_fixed", "/type"},
	} {
		t.Run(name, func(t *testing.T) {
			catalogue, tx := newFeatures()
			tx.features["calls"] = calls
			f := calls
			c.spoil(&f)
			_, _, err := catalogue.PutFeature(t.Context(), Request{By: operator}, f)
			tx.refused(t, err, c.code, c.pointer)
		})
	}
}

func TestAFeatureIsDefinedAndChanged(t *testing.T) {
	catalogue, tx := newFeatures()
	longest := calls
	longest.Name, longest.Unit = names(200), names(50)
	for n, step := range []struct {
		put     domain.Feature
		created bool
		events  int
	}{{calls, true, 1}, {calls, false, 1}, {longest, false, 2}} {
		got, created, err := catalogue.PutFeature(t.Context(), Request{By: operator}, step.put)
		if tx.succeeded(t, err, step.events); !reflect.DeepEqual(got, step.put) || created != step.created || !reflect.DeepEqual(tx.features["calls"], step.put) {
			t.Errorf("step %d: %+v, created %v", n, got, created)
		}
	}
}

// A new feature groups all its usage; keys that are declared later, or removed, apply to usage recorded
// after a delay, so that every consumer of usage has read the declaration by then.
func TestKeysOfAFeatureApplyToLaterUsage(t *testing.T) {
	catalogue, tx := newFeatures()
	now := catalogue.now()
	for n, step := range []struct {
		keys  []string
		saved *domain.Grouping
	}{
		{[]string{"region"}, &domain.Grouping{Feature: "calls", Keys: []string{"region"}}},
		{[]string{"region"}, nil},
		{[]string{"region", "model"}, &domain.Grouping{Feature: "calls", Since: now.Add(time.Minute), Keys: []string{"region", "model"}}},
		{nil, &domain.Grouping{Feature: "calls", Since: now.Add(time.Minute)}},
	} {
		tx.groupings = nil
		f := calls
		f.GroupBy = step.keys
		if _, _, err := catalogue.PutFeature(t.Context(), Request{By: operator}, f); err != nil {
			t.Fatal(err)
		}
		var want []domain.Grouping
		if step.saved != nil {
			want = append(want, *step.saved)
		}
		recorded := payload[events.Feature](t, &tx.appended[len(tx.appended)-1])
		if since := recorded.GroupBySince; (since != nil) != (n > 1) || since != nil && !since.Equal(step.saved.Since) {
			t.Errorf("step %d: the event records %v", n, since)
		}
		if !reflect.DeepEqual(tx.groupings, want) {
			t.Errorf("step %d: saved %v, want %v", n, tx.groupings, want)
		}
	}
	catalogue, tx = newFeatures()
	if _, _, err := catalogue.PutFeature(t.Context(), Request{By: operator}, calls); err != nil || tx.groupings != nil {
		t.Errorf("a new feature without keys: %v, %v", tx.groupings, err)
	}
}

func TestAFeatureIsPutOnceForEachKey(t *testing.T) {
	catalogue, tx := newFeatures()
	_, event := tx.once(t, caused{subject: events.FeatureDefined, tenant: events.Platform}, func(req Request) (any, error) {
		f, created, err := catalogue.PutFeature(t.Context(), req, calls)
		return put[domain.Feature]{f, created}, err
	})
	if got := payload[events.Feature](t, &event); !reflect.DeepEqual(got, events.Feature{LookupKey: "calls", Name: "Calls", Type: "QUOTA", Unit: "call"}) || tx.held[0] != uuid.UUID(events.Platform) {
		t.Errorf("%+v under the head of %s", got, tx.held[0])
	}
}
