package commands

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// lookupKeyForm is the form of a lookup key, which is the name of a feature in events.
var lookupKeyForm = regexp.MustCompile(`^[a-z][a-z0-9_.-]{0,63}$`)

// maxUnit bounds the name of a unit, in characters.
const maxUnit = 50

// Features loads features.
type Features interface {
	Feature(lookupKey string) (*domain.Feature, error)
}

// FeatureTx is the transaction of a change of a feature.
type FeatureTx interface {
	Tx
	Features
	SaveFeature(f domain.Feature) error
	// SaveGrouping returns the time from which the keys apply: Since, or later.
	SaveGrouping(g domain.Grouping) (time.Time, error)
}

func (c *Catalogue) changeOfFeature(ctx context.Context) transaction[FeatureTx] {
	return func(decide func(FeatureTx) error) error {
		return c.Store.ChangeCatalogue(ctx, events.Platform, func(tx CatalogueTx) error { return decide(tx) })
	}
}

// PutFeature defines a feature or changes its name, unit and grouping. Its type is fixed from
// the start, because plans and verdicts may depend on it.
func (c *Catalogue) PutFeature(ctx context.Context, req Request, f domain.Feature) (domain.Feature, bool, error) {
	if err := checkFeature(&f); err != nil {
		return f, false, err
	}
	done, err := change(c.changeOfFeature(ctx), req, func(tx FeatureTx) (put[domain.Feature], error) {
		old, err := tx.Feature(f.LookupKey)
		switch {
		case err != nil:
			return put[domain.Feature]{}, err
		case old != nil && old.Type != f.Type:
			return put[domain.Feature]{}, refuse("feature_type_fixed", "/type", "the feature is %s and stays so; define another one", old.Type)
		case old != nil && old.Equal(&f):
			return put[domain.Feature]{f, false}, nil
		}
		if err := tx.SaveFeature(f); err != nil {
			return put[domain.Feature]{}, err
		}
		recorded := events.Feature{LookupKey: f.LookupKey, Name: f.Name, Type: f.Type, Unit: f.Unit, GroupBy: f.GroupBy, BillingEvent: f.BillingEvent}
		if g := domain.GroupingOf(old, &f, c.now()); g != nil {
			since, err := tx.SaveGrouping(*g)
			if err != nil {
				return put[domain.Feature]{}, err
			}
			if !since.IsZero() {
				recorded.GroupBySince = &since
			}
		}
		_, err = c.record(tx, &req, events.Platform, events.FeatureDefined, recorded)
		return put[domain.Feature]{f, old == nil}, err
	})
	return done.Value, done.Created, err
}

func checkFeature(f *domain.Feature) error {
	if !lookupKeyForm.MatchString(f.LookupKey) {
		return refuse("lookup_key_invalid", "/lookupKey", "a lookup key matches %s", lookupKeyForm)
	}
	if err := checkName(f.Name); err != nil {
		return err
	}
	if !isText(f.Unit, maxUnit) {
		return refuse("unit_invalid", "/unit", "unit must be at most %d characters of text without control characters", maxUnit)
	}
	if err := oneOf(f.Type, "type_invalid", "/type", domain.FeatureBoolean, domain.FeatureQuota, domain.FeatureMetered); err != nil {
		return err
	}
	if f.BillingEvent != "" && !billingEventForm.MatchString(f.BillingEvent) {
		return refuse("billing_event_invalid", "/billingEvent", "billingEvent must be 1 to %d printable ASCII characters without space", maxBillingEvent)
	}
	if f.BillingEvent != "" && f.Type == domain.FeatureBoolean {
		return refuse("billing_event_invalid", "/billingEvent", "a BOOLEAN feature has no usage to bill")
	}
	return checkGroupBy(f)
}

// maxBillingEvent bounds the name of a meter event, as Stripe does.
const maxBillingEvent = 100

var billingEventForm = regexp.MustCompile(`^[!-~]{1,100}$`)

// groupKeyForm is the form of a metadata key by which usage is grouped.
var groupKeyForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)

func checkGroupBy(f *domain.Feature) error {
	const code = "group_by_invalid"
	if len(f.GroupBy) > domain.MaxGroupKeys {
		return refuse(code, "/groupBy", "groupBy has %d keys: at most %d are possible", len(f.GroupBy), domain.MaxGroupKeys)
	}
	if len(f.GroupBy) > 0 && f.Type == domain.FeatureBoolean {
		return refuse(code, "/groupBy", "a BOOLEAN feature has no usage to group")
	}
	for i, key := range f.GroupBy {
		at := "/groupBy/" + strconv.Itoa(i)
		if !groupKeyForm.MatchString(key) {
			return refuse(code, at, "a metadata key to group by matches %s", groupKeyForm)
		}
		if slices.Contains(f.GroupBy[:i], key) {
			return refuse(code, at, "the metadata key %s is listed twice", key)
		}
	}
	return nil
}
