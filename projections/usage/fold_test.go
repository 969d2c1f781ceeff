package usage

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/events"
)

func TestFoldUsage(t *testing.T) {
	v := events.Validated{RawPosition: 3, Feature: "calls", Amount: -5, Count: -1, Timestamp: time.Unix(0, 0).UTC(), ValidatedSubscriptionID: uuid.UUID{1}, PeriodKey: "2026"}
	e := events.Envelope{Subject: events.UsageValidated, TenantID: uuid.UUID{2}}
	e.Payload, _ = json.Marshal(v)
	again := events.Envelope{Subject: events.Reaggregated, TenantID: uuid.UUID{2}}
	again.Payload, _ = json.Marshal(events.Reaggregate{Validated: v})
	for _, e := range []events.Envelope{e, again} {
		key, delta, err := FoldV1(&e)
		if err != nil || key != (Key{uuid.UUID{2}, "calls", "2026", uuid.UUID{1}}) || delta != (Delta{-5, -1, time.Unix(0, 0).UTC()}) {
			t.Errorf("%+v %+v %v", key, delta, err)
		}
	}
	for _, bad := range []events.Envelope{
		{Subject: events.UsageRecorded, Payload: e.Payload}, {Subject: 999, Payload: e.Payload},
		{Subject: events.UsageValidated, Payload: []byte(`{}`)}, {Subject: events.UsageValidated}, {Subject: events.UsageValidated, Payload: []byte(`[`)},
	} {
		if _, _, err := FoldV1(&bad); err == nil {
			t.Errorf("%+v was folded", bad)
		}
	}
}

// Sums do not depend on the order in which deltas come.
func TestUsageSumsCommute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		deltas := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Delta {
			return Delta{rapid.Int64().Draw(t, "amount"), rapid.Int64Range(-1, 1).Draw(t, "count"), time.Unix(rapid.Int64Range(-9e9, 9e9).Draw(t, "at"), 0)}
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
