package verify

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// Each rise to a threshold has one crossing with its members, and each crossing is such a rise.
func TestCrossingsFollowFromTheLog(t *testing.T) {
	const subscribed = `{"id":"00000000-0000-0000-0000-000000000009","status":"ACTIVE","entitlements":[{"feature":"f","type":"QUOTA",` +
		`"limit":7,"limitBehavior":"HARD","resetPeriod":"MONTHLY"}]}`
	defined := fmt.Sprintf(`{"id":%q,"percent":80}`, uuid.UUID{1})
	verdict := func(kind string, amount int) string {
		return fmt.Sprintf(
			`{"rawPosition":1,"eventId":"e","feature":"f","featureType":%q,"periodKey":"2026-05","amount":%d,"count":1,`+
				`"timestamp":"2026-05-04T12:00:00Z"}`, kind, amount)
	}
	crossed := func(percent, amount int, limit string, before, after int) string {
		return fmt.Sprintf(
			`{"thresholdId":%q,"feature":"f","periodKey":"2026-05","percent":%d,"amount":%d,"limit":%s,"before":"%d","after":"%d"}`,
			uuid.UUID{1}, percent, amount, limit, before, after)
	}
	key := fmt.Sprintf("n/%s/f/2026-05/6", uuid.UUID{1})
	const missing, none, other = "is not crossed", "follows from no event", "the log has"
	for name, c := range map[string]struct {
		kind            string
		amount          int
		key, is, fault  string
		cause, position int64 // of the crossing; 0: without it
	}{
		"right":                            {"QUOTA", 2, key, crossed(80, 6, "7", 4, 6), "", 4, 5},
		"of a METERED feature":             {"METERED", 2, key, crossed(80, 6, "7", 4, 6), "", 4, 5},
		"missing":                          {"QUOTA", 2, "", "", missing, 0, 0},
		"missing of a METERED feature":     {"METERED", 2, "", "", missing, 0, 0},
		"of a METERED feature, not folded": {"METERED", 2, "", "", "", 0, -1},
		"too early":                        {"QUOTA", 1, key, crossed(80, 6, "7", 4, 5), none, 4, 5},
		"rounded down": {"QUOTA", 1, fmt.Sprintf("n/%s/f/2026-05/5", uuid.UUID{1}), crossed(80, 5, "7", 4, 5), none, 4,
			5},
		"another cause":                 {"QUOTA", 2, key, crossed(80, 6, "7", 4, 6), other, 3, 5},
		"another amount":                {"QUOTA", 3, key, crossed(80, 6, "7", 4, 6), other, 4, 5},
		"another limit":                 {"QUOTA", 2, key, crossed(80, 6, "8", 4, 6), other, 4, 5},
		"an amount in place of percent": {"QUOTA", 2, key, crossed(0, 6, "7", 4, 6), other, 4, 5},
	} {
		s := stateAt(5, entitlements)
		x := newTestPass(s)
		x.crossings.metered = true
		if c.position < 0 {
			x.crossings.upTo = 3
		}
		x.add(event(1, subscriptionCreated, 5, "e/1", subscribed))
		x.add(event(2, thresholdChanged, 5, "e/2", defined))
		x.add(event(3, validated, topicValidated, "v/1", verdict(c.kind, 4)))
		x.add(event(4, validated, topicValidated, "v/2", verdict(c.kind, c.amount)))
		if c.position > 0 {
			r := event(c.position, thresholdCrossed, 8, c.key, c.is)
			r.cause = idOf(c.cause)
			x.add(r)
		}
		x.endCrossings()
		if c.fault != "" {
			requireFault(t, name, x.thresholdCrossings, c.fault)
		} else if r := x.thresholdCrossings.result(); r.Holds == nil || !*r.Holds {
			t.Errorf("%s: %s", name, r.Figures)
		}
	}
}

// A crossing without a rise has the used amount at the change that is its cause, and a later rise to its value needs no other.
func TestCrossingsByAnotherLimit(t *testing.T) {
	subscribed := func(limit int) string {
		return fmt.Sprintf(
			`{"id":"00000000-0000-0000-0000-000000000009","status":"ACTIVE","entitlements":[{"feature":"f","type":"QUOTA","limit":%d,`+
				`"limitBehavior":"SOFT","resetPeriod":"MONTHLY"}]}`, limit)
	}
	used := func(amount int) string {
		return fmt.Sprintf(
			`{"rawPosition":1,"eventId":"e","feature":"f","featureType":"QUOTA","periodKey":"2026-05","amount":%d,"count":1,`+
				`"timestamp":"2026-05-04T12:00:00Z"}`, amount)
	}
	for name, c := range map[string]struct {
		cause, amount, before int64
		reason, fault         string
	}{
		"right":            {4, 16, 50, "limit_changed", ""},
		"another amount":   {4, 17, 50, "limit_changed", "at this amount"},
		"another used":     {4, 16, 49, "limit_changed", "at this amount"},
		"another cause":    {3, 16, 50, "threshold_defined", "at this amount"},
		"without a reason": {4, 16, 50, "", "follows from no event"},
	} {
		x := newTestPass(stateAt(7))
		x.add(event(1, subscriptionCreated, 5, "e/1", subscribed(100)))
		x.add(event(2, thresholdChanged, 5, "e/2", fmt.Sprintf(`{"id":%q,"percent":80}`, uuid.UUID{1})))
		x.add(event(3, validated, topicValidated, "v/1", used(50)))
		x.add(event(4, subscriptionChanged, 5, "e/4", subscribed(20)))
		r := event(5, thresholdCrossed, 8, fmt.Sprintf("n/%s/f/2026-05/%d", uuid.UUID{1}, c.amount),
			fmt.Sprintf(
				`{"thresholdId":%q,"feature":"f","periodKey":"2026-05","percent":80,"amount":%d,"limit":20,"before":"%d","after":"%d","reason":%q}`, uuid.UUID{1}, c.amount, c.before, c.before, c.reason))
		r.cause = idOf(c.cause)
		x.add(r)
		x.add(event(6, validated, topicValidated, "v/2", used(-45)))
		x.add(event(7, validated, topicValidated, "v/3", used(45)))
		x.endCrossings()
		if c.fault != "" {
			requireFault(t, name, x.thresholdCrossings, c.fault)
		} else if r := x.thresholdCrossings.result(); r.Holds == nil || !*r.Holds {
			t.Errorf("%s: %s", name, r.Figures)
		}
	}
}

// A change that leaves the used amount above a threshold has its crossing, once for each value.
func TestChangesThatOweACrossingHaveIt(t *testing.T) {
	subscribed := func(limit int) string {
		return fmt.Sprintf(
			`{"id":"00000000-0000-0000-0000-000000000009","status":"ACTIVE","entitlements":[{"feature":"f","type":"QUOTA","limit":%d,`+
				`"limitBehavior":"SOFT","resetPeriod":"MONTHLY"}]}`, limit)
	}
	defined := fmt.Sprintf(`{"id":%q,"percent":80}`, uuid.UUID{1})
	const used = `{"rawPosition":1,"eventId":"e","feature":"f","featureType":"QUOTA","periodKey":"2000-01","amount":50,"count":1,` +
		`"timestamp":"2000-01-01T00:00:00Z"}`
	const limit, definition, owed = "limit_changed", "threshold_defined", "is not crossed"
	for name, c := range map[string]struct {
		limit          int    // after the change
		crossed        string // the reason of its crossing; "": none
		upTo           int64
		removed, fault string
	}{
		"another limit":                     {20, limit, 9, "", ""},
		"without the crossing":              {20, "", 9, "", owed},
		"of the limit 0":                    {0, "", 9, "", owed},
		"not above":                         {90, "", 9, "", ""},
		"not folded":                        {20, "", 3, "", ""},
		"removed meanwhile":                 {20, "", 9, defined, ""},
		"a definition":                      {0, definition, 9, "-", ""},
		"a definition without the crossing": {0, "", 9, "-", owed},
	} {
		x := newTestPass(stateAt(9, entitlements))
		x.crossings.metered, x.crossings.upTo = true, c.upTo
		add := func(at int64, subject int16, body string) {
			x.add(event(at, subject, 5, fmt.Sprintf("e/%d", at), body))
		}
		value, percent := c.limit*80/100, 80
		add(1, subscriptionCreated, subscribed(100))
		if c.removed == "-" { // an amount that is defined at the end
			add(3, validated, used)
			value, percent = 30, 0
			add(4, thresholdChanged, fmt.Sprintf(`{"id":%q,"amount":30}`, uuid.UUID{1}))
		} else {
			add(2, thresholdChanged, defined)
			add(3, validated, used)
			add(4, subscriptionChanged, subscribed(c.limit))
		}
		if c.crossed != "" {
			r := event(5, thresholdCrossed, 8, fmt.Sprintf("n/%s/f/2000-01/%d", uuid.UUID{1}, value),
				fmt.Sprintf(
					`{"thresholdId":%q,"feature":"f","periodKey":"2000-01","percent":%d,"amount":%d,"limit":%d,"before":"50","after":"50","reason":%q}`, uuid.UUID{1}, percent, value, c.limit, c.crossed))
			r.cause = idOf(4)
			x.add(r)
			add(6, subscriptionChanged, subscribed(c.limit))
		}
		if c.removed == defined {
			add(7, thresholdChanged, strings.Replace(defined, `"percent"`, `"removed":true,"percent"`, 1))
		}
		x.endCrossings()
		if c.fault != "" {
			requireFault(t, name, x.thresholdCrossings, c.fault)
		} else if r := x.thresholdCrossings.result(); r.Holds == nil && c.crossed != "" || r.Holds != nil && !*r.Holds {
			t.Errorf("%s: %s", name, r.Figures)
		}
	}
}

func TestCrossingsOfRemovedThresholds(t *testing.T) {
	x := newTestPass(stateAt(9))
	defined := fmt.Sprintf(`{"id":%q,"feature":"f","amount":5}`, uuid.UUID{1})
	x.add(event(1, thresholdChanged, 5, "e/1", defined))
	x.add(event(2, thresholdChanged, 5, "e/2", strings.Replace(defined, `"amount"`, `"removed":true,"amount"`, 1)))
	x.add(event(3, validated, topicValidated, "v/1",
		`{"rawPosition":1,"eventId":"e","feature":"f","featureType":"QUOTA","periodKey":"2026-05","amount":9,"count":1,`+
			`"timestamp":"2026-05-04T12:00:00Z"}`))
	x.endCrossings()
	if r := x.thresholdCrossings.result(); r.Holds == nil || !*r.Holds {
		t.Error(r.Figures)
	}
	x.add(event(4, thresholdChanged, 5, "e/4", strings.Replace(defined, `"amount"`, `"removed":true,"amount"`, 1)))
	requireFault(t, "removed twice", x.thresholdCrossings, "removes it twice")
}
