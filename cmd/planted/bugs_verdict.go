package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

// verdictBugs are in the choice of the subscription and the period of usage.
func verdictBugs() []bug {
	const verdict, domain = "domain/verdict.go", "./domain"
	const billed = "usage is billed under what was in force when it was made"
	return []bug{
		{
			name: "first-moment-is-the-old-ones", what: "usage at the exact start of a subscription belongs to the previous one",
			promise: billed,
			edits:   []overlay.Edit{edit(verdict, `!e.EffectiveFrom.After(at) {`, `e.EffectiveFrom.Before(at) {`)},
			pkg:     domain, run: "TestUsageBelongsToTheSubscriptionInForce",
			says: `^at the first moment of another: usage belongs to`,
		},
		{
			name: "late-usage-to-the-present-one", what: "late usage belongs to the present subscription, not to that of its time",
			promise: billed, elsewhere: true,
			edits: []overlay.Edit{
				edit(verdict, `if s := h.inForce(position, at); s.AcceptsUsage() {`, `if s := h.current(position); s.AcceptsUsage() {`),
				edit(verdict, "	if s := h.current(position); s.AcceptsUsage() {\n		return s\n	}\n	return nil", "	if s := h.inForce(position, at); s.AcceptsUsage() {\n		return s\n	}\n	return nil"),
			},
			pkg: domain, run: "TestUsageBelongsToTheSubscriptionInForce",
			says: `^in its time: usage belongs to`,
		},
		{
			name: "latest-moment-holds", what: "the entry with the latest start wins over entries recorded after it: an end recorded by a slower clock has no effect",
			promise: "an ended subscription is no longer billed",
			edits: []overlay.Edit{edit(verdict, `	for i := len(h) - 1; i >= 0; i-- {
		if e := &h[i]; e.FromPosition <= position && !e.EffectiveFrom.After(at) {
			return e.Subscription
		}
	}
	return nil
}

// current`, `	var best *HistoryEntry
	for i := range h {
		e := &h[i]
		if e.FromPosition > position || e.EffectiveFrom.After(at) {
			continue
		}
		if best == nil || !e.EffectiveFrom.Before(best.EffectiveFrom) {
			best = e
		}
	}
	if best == nil {
		return nil
	}
	return best.Subscription
}

// current`)},
			pkg: domain, run: "TestTheLastChangeHoldsWhateverTheClocks",
			says: `^(ended|changed): usage of .* belongs to`,
		},
	}
}

// periodBugs are in the beginning and the end of periods.
func periodBugs() []bug {
	const verdict, domain = "domain/verdict.go", "./domain"
	return []bug{
		{
			name: "period-of-the-servers-zone", what: "the month is that of the server's time zone",
			promise: "usage is counted in the period of its timestamp", elsewhere: true,
			edits: []overlay.Edit{edit(verdict, `at.UTC().Format("2006-01")`, `at.Local().Format("2006-01")`)},
			pkg:   domain, run: "TestPeriodsUseUTC",
			says: `is counted in .*, on a server in`,
		},
		{
			name: "period-of-the-producers-zone", what: "the year is that of the producer's UTC offset",
			promise: "usage is counted in the period of its timestamp",
			edits:   []overlay.Edit{edit(verdict, `at.UTC().Format("2006")`, `at.Format("2006")`)},
			pkg:     domain, run: "TestPeriodsUseUTC",
			says: `-01:00 is counted in .*, on a server in`,
		},
		{
			name: "month-of-31-days", what: "a month ends 31 days after it began",
			promise: "a period ends where the next one begins",
			edits:   []overlay.Edit{edit(verdict, `t.AddDate(0, 1, 0), true`, `t.AddDate(0, 0, 31), true`)},
			pkg:     domain, run: "TestPeriodsFollowEachOther",
			says: `^\d{4}-\d\d is from .* to`,
		},
		{
			name: "year-of-365-days", what: "a year ends 365 days after it began",
			promise: "a period ends where the next one begins",
			edits:   []overlay.Edit{edit(verdict, `t.AddDate(1, 0, 0), true`, `t.AddDate(0, 0, 365), true`)},
			pkg:     domain, run: "TestPeriodsFollowEachOther",
			says: `^\d{4} is from .* to`,
		},
	}
}

// endBugs are in the end of subscriptions and keys.
func endBugs() []bug {
	const http = "./http"
	return []bug{
		{
			name: "end-leaves-no-mark", what: "the end of a subscription is recorded, but verdicts do not use it",
			promise: "an ended subscription is no longer billed",
			edits:   []overlay.Edit{edit("commands/subscriptions.go", `	case inForce == nil || inForce.ID != s.ID:`, `	default:`)},
			pkg:     http, run: "TestUsageOfAnEndedSubscriptionIsRefused",
			says: `that is (PAST_DUE|EXPIRED|CANCELLED) is answered`,
		},
		{
			name: "trial-takes-nothing", what: "usage of a trial is refused",
			promise: "usage is counted while it is allowed",
			edits:   []overlay.Edit{edit("domain/catalogue.go", `(s.Status == SubscriptionActive || s.Status == SubscriptionTrialing)`, `s.Status == SubscriptionActive`)},
			pkg:     http, run: "TestUsageOfAnEndedSubscriptionIsRefused",
			says: `that is TRIALING is answered`,
		},
		{
			name: "key-that-never-expires", what: "a key's expiry is not checked",
			promise: "an expired key is refused everywhere",
			edits:   []overlay.Edit{edit("domain/catalogue.go", `(k.ExpiresAt == nil || now.Before(*k.ExpiresAt)) && (k`, `(k`)},
			pkg:     http, run: "TestAKeyExpires",
			says: `from its end a key is answered`,
		},
	}
}

// conditionalAnswerBugs are in repeated answers, and in answers of 304.
func conditionalAnswerBugs() []bug {
	const http = "./http"
	return []bug{
		{
			name: "answer-of-another-request", what: "an Idempotency-Key returns the first answer, even for another request",
			promise: "an answer describes a completed change",
			edits:   []overlay.Edit{edit("commands/change.go", `if first.RequestHash != sent.RequestHash {`, `if len(first.Body) == 0 {`)},
			pkg:     http, run: "TestIdempotencyKeysRepeatTheFirstAnswer",
			says: `the answer is no problem: .* 20[01] \{"`,
		},
		{
			name: "answers-by-tenant", what: "an Idempotency-Key is looked up for the tenant in the request, not for the caller",
			promise: "an answer describes a completed change",
			edits:   []overlay.Edit{edit("commands/keys.go", "	k, err := change(c.changeOfKey(ctx, tenant), req, decide)", "	if req.Idempotency.Key != \"\" {\n		req.Idempotency.Key = tenant.String() + req.Idempotency.Key\n	}\n	k, err := change(c.changeOfKey(ctx, tenant), req, decide)")},
			pkg:     http, run: "TestAnIdempotencyKeyForTwoTenantsAtOnce",
			says: `the answer is no problem: .* 201 \{"`,
		},
		{
			name: "tag-of-the-answer-alone", what: "the entity tag of a check covers the decision, not the remaining amount",
			promise: "no answer is older than it states",
			edits:   []overlay.Edit{edit("http/entitlements.go", `tag := entityTag(says)`, `tag := entityTag(strconv.AppendBool([]byte(feature), found.Allowed))`)},
			pkg:     http, run: "TestEntitlementsAreConditional",
			says: `^of what has changed is told 304`,
		},
		{
			name: "checks-ask-for-one", what: "in a check of many features, each is checked for an amount of 1",
			promise: "no use beyond a hard limit is allowed",
			edits:   []overlay.Edit{edit("http/entitlements.go", `			questions[i].Amount = *q.Amount`, `			questions[i].Amount = min(*q.Amount, 1)`)},
			pkg:     http, run: "TestEntitlementsAreConditional",
			says: `^of what is left, 399, question 4 is answered`,
		},
	}
}
