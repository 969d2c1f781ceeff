package validate

import (
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// TestP2_TargetsAreRememberedOnlyForTheNextBatch: another batch than the one that continues behind the last committed event, in its epoch, finds nothing.
func TestP2_TargetsAreRememberedOnlyForTheNextBatch(t *testing.T) {
	key := targetKey{uuid.MustParse("01890000-0000-7000-8000-000000000001"), "a"}
	partition := events.PartitionOf(key.tenant)
	batch := func(epoch int32, numbers ...int64) []span {
		var list []events.Envelope
		for i := 1; i < len(numbers); i++ {
			list = append(list, events.Envelope{Subject: events.UsageCorrected, Epoch: epoch, Previous: numbers[i-1], Position: events.Position{Partition: partition, Number: numbers[i]}})
		}
		return spansOf(list)
	}
	gap := batch(1, 9, 12, 15)
	gap[0].broken = true
	var r remembered
	r.settle(batch(1, 3, 6, 9), map[targetKey]domain.Target{key: {Amount: 7}})
	for name, c := range map[string]struct {
		spans []span
		found bool
	}{
		"the next batch":              {batch(1, 9, 12), true},
		"the same batch again":        {batch(1, 3, 6, 9), false},
		"a batch behind another one":  {batch(1, 12, 15), false},
		"another epoch":               {batch(2, 9, 12), false},
		"a batch without some events": {gap, false},
	} {
		if found := r.find(c.spans, []targetKey{key}); (found[key] != nil) != c.found || c.found && found[key].Amount != 7 {
			t.Errorf("%s: %v", name, found)
		}
	}
	r.settle(batch(1, 9, 12), map[targetKey]domain.Target{key: {Amount: 8}})
	r.settle(batch(1, 3, 6, 9), map[targetKey]domain.Target{key: {Amount: 7}}) // is reported late
	if found := r.find(batch(1, 12, 15), []targetKey{key}); found[key] == nil || found[key].Amount != 8 {
		t.Errorf("after a later batch: %v", found)
	}
	r.settle(batch(1, 15, 18), nil) // another instance judged the event between
	if found := r.find(batch(1, 18, 21), []targetKey{key}); len(found) > 0 {
		t.Errorf("behind a gap: %v", found)
	}
}

// A span with events left out, or of two epochs, is broken.
func TestSpansAreBrokenByGapsAndEpochs(t *testing.T) {
	at := func(epoch int32, previous, number int64) events.Envelope {
		return events.Envelope{Epoch: epoch, Previous: previous, Position: events.Position{Partition: 3, Number: number}}
	}
	for name, c := range map[string]struct {
		batch  []events.Envelope
		broken bool
	}{
		"one after the other": {[]events.Envelope{at(1, 2, 4), at(1, 4, 7)}, false},
		"a gap":               {[]events.Envelope{at(1, 2, 4), at(1, 5, 7)}, true},
		"two epochs":          {[]events.Envelope{at(1, 2, 4), at(2, 4, 7)}, true},
	} {
		if s := spansOf(c.batch); len(s) != 1 || s[0].broken != c.broken || s[0].after != 2 || s[0].at != 7 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// Memory is bounded: old targets are forgotten.
func TestRememberedTargetsAreBounded(t *testing.T) {
	tenant := uuid.MustParse("01890000-0000-7000-8000-000000000001")
	partition := events.PartitionOf(tenant)
	var r remembered
	for n := range int64(10 * maxYoung) {
		s := []span{{partition: partition, epoch: 1, after: n, at: n + 1, corrects: true}}
		r.settle(s, map[targetKey]domain.Target{{tenant, uuid.NewString()}: {Position: n}})
	}
	if p := &r.partitions[partition]; len(p.young)+len(p.old) > 2*maxYoung || len(p.old) != maxYoung {
		t.Errorf("%d and %d targets", len(p.young), len(p.old))
	}
	s := []span{{partition: partition, epoch: 1, after: 10 * maxYoung, at: 10*maxYoung + keepUsage + 1}}
	if r.settle(s, nil); r.partitions[partition].young != nil || r.partitions[partition].old != nil {
		t.Error("targets are kept long after the last correction")
	}
}
