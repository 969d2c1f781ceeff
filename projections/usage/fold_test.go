package usage

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

func TestFoldUsage(t *testing.T) {
	v := events.Validated{RawPosition: 3, Feature: "calls", Amount: -5, Count: -1, Timestamp: time.Unix(0, 0).UTC(),
		ValidatedSubscriptionID: uuid.UUID{1}, PeriodKey: "2026"}
	e := events.Envelope{Subject: events.UsageValidated, TenantID: uuid.UUID{2}}
	e.Payload, _ = json.Marshal(v)
	again := events.Envelope{Subject: events.Reaggregated, TenantID: uuid.UUID{2}}
	again.Payload, _ = json.Marshal(events.Reaggregate{Validated: v})
	for _, e := range []events.Envelope{e, again} {
		sums := usageSums{fold: FoldV1, byKey: map[Key]*usageSum{}}
		failure := sums.add(&e)
		sum := sums.byKey[Key{uuid.UUID{2}, "calls", "2026", uuid.UUID{1}}]
		if failure != nil || sum == nil || sum.amount.Int64() != -5 || sum.count != -1 || !sum.last.Equal(time.Unix(0, 0)) {
			t.Errorf("%+v %+v", failure, sum)
		}
	}
	for _, bad := range []events.Envelope{
		{Subject: events.UsageRecorded, Payload: e.Payload}, {Subject: 999, Payload: e.Payload},
		{Subject: events.UsageValidated, Payload: []byte(`{}`)}, {Subject: events.UsageValidated},
		{Subject: events.UsageValidated, Payload: []byte(`[`)},
		{Subject: events.UsageValidated, Payload: []byte(`{"feature":"calls","periodKey":"2026","amount":"5"}`)},
	} {
		sums := usageSums{fold: FoldV1, byKey: map[Key]*usageSum{}}
		if failure := sums.add(&bad); failure == nil || len(sums.byKey) != 0 {
			t.Errorf("%+v was folded", bad)
		}
	}
}

// Sums do not depend on the order in which deltas come.
func TestUsageSumsCommute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		deltas := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Delta {
			return Delta{rapid.Int64().Draw(t, "amount"), rapid.Int64Range(-1, 1).Draw(t, "count"),
				time.Unix(rapid.Int64Range(-9e9, 9e9).Draw(t, "at"), 0), 0}
		}), 1, 20).Draw(t, "deltas")
		var a, b usageSum
		for _, d := range deltas {
			a.add(1, d)
		}
		for _, d := range rapid.Permutation(deltas).Draw(t, "order") {
			b.add(1, d)
		}
		if a.amount.Cmp(&b.amount) != 0 || a.count != b.count || a.applied != b.applied || !a.last.Equal(b.last) {
			t.Fatalf("%+v and %+v", a, b)
		}
	})
}

// The hash of a version never changes: snapshots keep it for ever. Change neither the golden log nor this hash; a fold that counts in
// another way is a new version.
func TestP8_TheHashOfALogicNeverChanges(t *testing.T) {
	double := func(e *events.Envelope, v events.Validated) (Key, Delta, error) {
		key, delta, err := FoldV1(e, v)
		delta.Amount *= 2
		return key, delta, err
	}
	uncounted := func(e *events.Envelope, v events.Validated) (Key, Delta, error) {
		key, delta, err := FoldV1(e, v)
		delta.Count = 0
		return key, delta, err
	}
	f := PeriodFigures{Folds: projections.Versions[Fold]{{Name: V1, Fold: FoldV1}, {Name: "same", Fold: FoldV1},
		{Name: "double", Fold: double}, {Name: "uncounted", Fold: uncounted}}}
	const golden = "9b6a431f7945141692dbccb632dff8c34c6417c4deba49456d624b4b7fc2546e"
	for version, same := range map[string]bool{V1: true, "same": true, "double": false, "uncounted": false} {
		got, err := f.LogicHash(version)
		if err != nil || (got == golden) != same || len(got) != 64 {
			t.Errorf("%s has the hash %s, %v", version, got, err)
		}
	}
	if _, err := f.LogicHash("usage_aggregates/v0"); err == nil {
		t.Error("an unknown version has a hash")
	}
}
