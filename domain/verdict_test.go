package domain

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

// subscribed returns a subscription with the given status and monthly grants.
func subscribed(status string, features ...string) *Subscription {
	s := &Subscription{ID: uuid.New(), Status: status}
	for _, f := range features {
		s.Entitlements = append(s.Entitlements, Grant{Entitlement: Entitlement{Feature: f, ResetPeriod: ResetMonthly},
			Type: FeatureMetered})
	}
	return s
}

// Usage belongs to the subscription in force at its time, from the first moment on,
// however late it arrives; without one, to the current subscription.
func TestUsageBelongsToTheSubscriptionInForce(t *testing.T) {
	may, june, july := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC),
		time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
	first, second, tried := subscribed(SubscriptionActive, "calls"), subscribed(SubscriptionActive, "calls"),
		subscribed(SubscriptionTrialing, "calls")
	replaced := History{{10, may, first}, {20, june, second}}
	ended := History{{10, may, first}, {20, june, nil}}
	again := History{{10, may, first}, {20, june, nil}, {30, july, tried}}
	for _, c := range []struct {
		name     string
		h        History
		position int64
		at       time.Time
		want     *Subscription
	}{
		{"in its time", replaced, 20, may.Add(time.Hour), first},
		{"at its first moment", replaced, 20, may, first},
		{"at the last moment before another", replaced, 20, june.Add(-time.Microsecond), first},
		{"at the first moment of another", replaced, 20, june, second},
		{"before another is known", replaced, 19, june, first},
		{"from where it is known", replaced, 10, may, first},
		{"before it is known", replaced, 9, may, nil},
		{"before all", replaced, 20, may.Add(-time.Hour), second},
		{"before it ended", ended, 20, june.Add(-time.Microsecond), first},
		{"once it has ended", ended, 20, june, nil},
		{"before the end is known", ended, 19, june, first},
		{"between two", again, 30, june.Add(time.Hour), tried},
		{"between two, the other is not known", again, 29, june.Add(time.Hour), nil},
		{"a trial", again, 30, july, tried},
		{"of nobody", nil, 30, july, nil},
	} {
		if got := c.h.At(c.position, c.at); got != c.want {
			t.Errorf("%s: usage belongs to %+v, not to %+v", c.name, got, c.want)
		}
	}
}

// Instances' clocks differ: the last entry takes effect at its time, even if an
// instance with a slower clock wrote it.
func TestTheLastChangeHoldsWhateverTheClocks(t *testing.T) {
	noon := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	old, changed := subscribed(SubscriptionActive, "calls"), subscribed(SubscriptionActive, "calls", "bytes")
	before := noon.Add(-2 * time.Second)
	for name, c := range map[string]struct {
		h    History
		want *Subscription
	}{
		"ended":                  {History{{10, noon, old}, {11, before, nil}}, nil},
		"changed":                {History{{10, noon, old}, {11, before, changed}}, changed},
		"changed at that moment": {History{{10, noon, old}, {11, noon, changed}}, changed},
	} {
		for _, at := range []time.Time{before, noon.Add(-time.Second), noon, noon.Add(time.Hour)} {
			if got := c.h.At(11, at); got != c.want {
				t.Errorf("%s: usage of %s belongs to %+v, not to %+v", name, at, got, c.want)
			}
		}
	}
}

// A verdict names the feature type and period that count; of two grants the first one applies.
func TestVerdictsNameTheGrant(t *testing.T) {
	at := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	s := subscribed(SubscriptionActive, "calls", "calls")
	s.Entitlements[1].ResetPeriod = ResetNever
	s.Entitlements = append(s.Entitlements, Grant{Entitlement: Entitlement{Feature: "sso"}, Type: FeatureBoolean})
	h := History{{10, at, s}}
	if v, no := Decide(h, 10, "calls", at); no != nil ||
		v != (Verdict{SubscriptionID: s.ID, FeatureType: FeatureMetered, PeriodKey: "2026-05"}) {
		t.Errorf("the verdict is %+v %v", v, no)
	}
	for feature, code := range map[string]string{"sso": "not_entitled", "bytes": "feature_not_found"} {
		if _, no := Decide(h, 10, feature, at); no == nil || no.Code != code {
			t.Errorf("%s: %v instead of %s", feature, no, code)
		}
	}
	for _, status := range []string{SubscriptionPastDue, SubscriptionCancelled, SubscriptionExpired} {
		if _, no := Decide(History{{10, at, subscribed(status, "calls")}}, 10, "calls", at); no == nil ||
			no.Code != "no_active_subscription" {
			t.Errorf("%s: %v", status, no)
		}
	}
}

// Periods are in UTC, for any offset of the producer and zone of the server.
func TestPeriodsUseUTC(t *testing.T) {
	local := time.Local
	defer func() { time.Local = local }()
	for _, zone := range []*time.Location{time.UTC, time.FixedZone("ahead", 14*3600), time.FixedZone("behind", -12*3600)} {
		time.Local = zone
		for text, want := range map[string][]string{
			"2026-05-31T23:59:59.999999Z": {"2026-05", "2026"},
			"2026-06-01T00:00:00Z":        {"2026-06", "2026"},
			"2026-06-01T00:30:00+01:00":   {"2026-05", "2026"},
			"2026-12-31T23:30:00-01:00":   {"2027-01", "2027"},
			"2027-01-01T00:00:00Z":        {"2027-01", "2027"},
		} {
			at, err := time.Parse(time.RFC3339Nano, text)
			must.OK(t, err)
			if got := []string{PeriodKey(ResetMonthly, at), PeriodKey(ResetAnnually, at)}; !slices.Equal(got, want) ||
				PeriodKey(ResetNever, at) != PeriodLifetime {
				t.Errorf("%s is counted in %q, not in %q, on a server in %s", text, got, want, zone)
			}
		}
	}
}

// A period of any length ends at the start of the next one.
func TestPeriodsFollowEachOther(t *testing.T) {
	for at := time.Date(2023, 12, 15, 0, 0, 0, 0, time.UTC); at.Year() < 2029; at = at.AddDate(0, 1, 0) {
		for _, reset := range []string{ResetMonthly, ResetAnnually} {
			key := PeriodKey(reset, at)
			start, end, ok := PeriodBounds(key)
			if !ok || PeriodKey(reset, start) != key || PeriodKey(reset, start.Add(-time.Microsecond)) == key ||
				PeriodKey(reset, end) == key || PeriodKey(reset, end.Add(-time.Microsecond)) != key {
				t.Errorf("%s is from %s to %s", key, start, end)
			}
		}
	}
	for _, key := range []string{PeriodLifetime, "", "2026-5", "2026-13", "26", "2026-05-01", "2026-05 "} {
		if _, _, ok := PeriodBounds(key); ok {
			t.Errorf("%q is no period of its own", key)
		}
	}
}

// A key ends at its expiry or its revocation, whichever is earlier.
func TestKeysExpireOnTime(t *testing.T) {
	noon := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	later := noon.Add(time.Hour)
	for name, c := range map[string]struct {
		key    APIKey
		usable []bool // a moment before noon, at noon, and an hour after it
	}{
		"for ever":            {APIKey{}, []bool{true, true, true}},
		"expires":             {APIKey{APIKey: events.APIKey{ExpiresAt: &noon}}, []bool{true, false, false}},
		"revoked at once":     {APIKey{APIKey: events.APIKey{RevokedAt: &later}, Ended: true}, []bool{false, false, false}},
		"revoked":             {APIKey{APIKey: events.APIKey{RevokedAt: &noon}}, []bool{true, false, false}},
		"revoked, would end":  {APIKey{APIKey: events.APIKey{RevokedAt: &noon, ExpiresAt: &later}}, []bool{true, false, false}},
		"ends, to be revoked": {APIKey{APIKey: events.APIKey{RevokedAt: &later, ExpiresAt: &noon}}, []bool{true, false, false}},
		"ends an hour later":  {APIKey{APIKey: events.APIKey{ExpiresAt: &later}}, []bool{true, true, false}},
	} {
		for i, at := range []time.Time{noon.Add(-time.Microsecond), noon, later} {
			if got := c.key.Usable(at); got != c.usable[i] {
				t.Errorf("%s: at %s the key is usable: %v", name, at.Format(time.TimeOnly), got)
			}
		}
	}
}
