package domain

import (
	"math/big"
	"testing"

	"github.com/google/uuid"
)

func TestValuesOfThresholds(t *testing.T) {
	of := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		percent, amount int64
		limit           *int64
		want            int64
	}{
		{80, 0, of(1000), 800}, {80, 0, of(7), 6}, {1, 0, of(1), 1}, {1, 0, of(100), 1}, {1, 0, of(101), 2}, {100, 0, of(3), 3},
		{33, 0, of(100), 33}, {33, 0, of(10), 4},
		{120, 0, of(5), 6}, {1000, 0, of(1<<53 - 1), 10 * (1<<53 - 1)}, {80, 0, of(1<<53 - 1), (80*(1<<53-1) + 99) / 100},
		{80, 0, nil, 0}, {80, 0, of(0), 1}, {0, 5, nil, 5}, {0, 5, of(1), 5}, {0, 1<<53 - 1, of(1), 1<<53 - 1},
	} {
		threshold := Threshold{Percent: orNil(c.percent), Amount: orNil(c.amount)}
		if got := threshold.Value(c.limit); got != c.want {
			t.Errorf("%d %% or %d of %s: %d, not %d", c.percent, c.amount, limitText(c.limit), got, c.want)
		}
	}
}

func orNil(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}

func limitText(limit *int64) string {
	if limit == nil {
		return "no limit"
	}
	return big.NewInt(*limit).String()
}

// A threshold is crossed by the one change that rises to it: not if the amount is there already, and not by a fall.
func TestCrossings(t *testing.T) {
	limit := int64(100)
	thresholds := []Threshold{{ID: uuid.UUID{1}, Feature: new("a"), Percent: new(int64(80))}, {ID: uuid.UUID{2}, Amount: new(int64(80))},
		{ID: uuid.UUID{3}, Feature: new("b"), Amount: new(int64(1))}, {ID: uuid.UUID{4}, Feature: new("a"), Amount: new(int64(90))}}
	for _, c := range []struct {
		feature       string
		limit         *int64
		before, after int64
		want          []byte
	}{
		{"a", &limit, 79, 80, []byte{1, 2}}, {"a", &limit, 80, 81, nil}, {"a", &limit, 78, 79, nil},
		{"a", &limit, 0, 1000, []byte{1, 2, 4}}, {"a", &limit, 81, 79, nil}, {"a", &limit, 80, 80, nil},
		{"a", nil, 0, 89, []byte{2}}, {"b", &limit, -5, 1, []byte{3}}, {"b", &limit, 1, 80, []byte{2}}, {"c", nil, 79, 80, []byte{2}},
		{"a", &limit, 80, 90, []byte{4}},
	} {
		crossed := Crossings(thresholds, c.feature, c.limit, big.NewInt(c.before), big.NewInt(c.after))
		var got []byte
		for _, x := range crossed {
			got = append(got, x.Threshold.ID[0])
			if x.Before.Int64() != c.before || x.After.Int64() != c.after || c.before >= x.Value || x.Value > c.after {
				t.Errorf("%v: %+v", c, x)
			}
		}
		if string(got) != string(c.want) {
			t.Errorf("%s from %d to %d: %v, not %v", c.feature, c.before, c.after, got, c.want)
		}
	}
	huge, _ := new(big.Int).SetString("123456789012345678901234567890", 10)
	if crossed := Crossings(thresholds, "a", &limit, new(big.Int), huge); len(crossed) != 3 || crossed[0].After.Cmp(huge) != 0 {
		t.Errorf("%+v", crossed)
	}
}

func TestLimitOfAPeriod(t *testing.T) {
	limit := int64(5)
	s := &Subscription{Status: SubscriptionActive,
		Entitlements: []Grant{{Entitlement: Entitlement{Feature: "a", Limit: &limit, ResetPeriod: ResetMonthly}}}}
	ended := *s
	ended.Status = SubscriptionCancelled
	h := History{{FromPosition: 3, Subscription: s}, {FromPosition: 9, Subscription: &ended}}
	for _, c := range []struct {
		position        int64
		feature, period string
		want            bool
	}{{2, "a", "2026-05", false}, {3, "a", "2026-05", true}, {8, "a", "2026", false}, {8, "a", "lifetime", false},
		{8, "b", "2026-05", false}, {9, "a", "2026-05", false}} {
		if got := h.LimitOf(c.position, c.feature, c.period); (got != nil) != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
