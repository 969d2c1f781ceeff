package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

// verdictBugs are in what usage is counted under: which subscription, which period.
func verdictBugs() []bug {
	const verdict, domain = "domain/verdict.go", "./domain"
	const billed = "usage is billed under what was in force when it was made"
	return []bug{
		{
			name: "first-moment-is-the-old-ones", what: "usage of the very moment from which a subscription is in force belongs to the one before",
			promise: billed,
			edits:   []overlay.Edit{edit(verdict, `!e.EffectiveFrom.After(at) {`, `e.EffectiveFrom.Before(at) {`)},
			pkg:     domain, run: "TestUsageBelongsToWhatWasInForceThen",
			says: `^at the first moment of another: usage belongs to`,
		},
		{
			name: "late-usage-to-the-present-one", what: "usage that comes late belongs to the subscription of now, not to that of its time",
			promise: billed, elsewhere: true,
			edits: []overlay.Edit{
				edit(verdict, `if s := h.inForce(position, at); s.AcceptsUsage() {`, `if s := h.current(position); s.AcceptsUsage() {`),
				edit(verdict, "	if s := h.current(position); s.AcceptsUsage() {\n		return s\n	}\n	return nil", "	if s := h.inForce(position, at); s.AcceptsUsage() {\n		return s\n	}\n	return nil"),
			},
			pkg: domain, run: "TestUsageBelongsToWhatWasInForceThen",
			says: `^in its time: usage belongs to`,
		},
		{
			name: "latest-moment-holds", what: "what is in force from the latest moment on holds, whatever was said after it: an end that a slower clock recorded never comes",
			promise: "a subscription that was ended is billed no more",
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
			pkg: domain, run: "TestWhatWasSaidLastHoldsWhateverTheClocksSay",
			says: `^(ended|changed): usage of .* belongs to`,
		},
	}
}

// periodBugs are in when a period begins and ends.
func periodBugs() []bug {
	const verdict, domain = "domain/verdict.go", "./domain"
	return []bug{
		{
			name: "period-of-the-servers-zone", what: "the month is that of the server's time zone",
			promise: "usage is counted in the period that it was made in", elsewhere: true,
			edits: []overlay.Edit{edit(verdict, `at.UTC().Format("2006-01")`, `at.Local().Format("2006-01")`)},
			pkg:   domain, run: "TestPeriodsAreOfUTC",
			says: `is counted in .*, on a server in`,
		},
		{
			name: "period-of-the-producers-zone", what: "the year is that of the offset which the producer wrote",
			promise: "usage is counted in the period that it was made in",
			edits:   []overlay.Edit{edit(verdict, `at.UTC().Format("2006")`, `at.Format("2006")`)},
			pkg:     domain, run: "TestPeriodsAreOfUTC",
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

// endBugs are in how subscriptions and keys end.
func endBugs() []bug {
	const http = "./http"
	return []bug{
		{
			name: "end-leaves-no-mark", what: "the end of a subscription is recorded, and changes nothing of what verdicts are taken from",
			promise: "a subscription that was ended is billed no more",
			edits:   []overlay.Edit{edit("commands/subscriptions.go", `	case inForce == nil || inForce.ID != s.ID:`, `	default:`)},
			pkg:     http, run: "TestUsageOfAnEndedSubscriptionIsRefused",
			says: `that is (PAST_DUE|EXPIRED|CANCELLED) is answered`,
		},
		{
			name: "trial-takes-nothing", what: "usage of a trial is refused",
			promise: "usage is counted while it may be made",
			edits:   []overlay.Edit{edit("domain/catalogue.go", `(s.Status == SubscriptionActive || s.Status == SubscriptionTrialing)`, `s.Status == SubscriptionActive`)},
			pkg:     http, run: "TestUsageOfAnEndedSubscriptionIsRefused",
			says: `that is TRIALING is answered`,
		},
		{
			name: "key-that-never-expires", what: "the end that a key was given is not looked at",
			promise: "a key that has ended is taken nowhere",
			edits:   []overlay.Edit{edit("domain/catalogue.go", `(k.ExpiresAt == nil || now.Before(*k.ExpiresAt)) && (k`, `(k`)},
			pkg:     http, run: "TestAKeyEndsWhenItWasGivenAnEnd",
			says: `from its end a key is answered`,
		},
	}
}

// answerBugs are in what is answered again, or not at all since nothing changed.
func answerBugs() []bug {
	const http = "./http"
	return []bug{
		{
			name: "answer-of-another-request", what: "an Idempotency-Key brings the first answer whatever is asked for",
			promise: "what is answered was done",
			edits:   []overlay.Edit{edit("commands/catalogue.go", `if first.RequestHash != once.RequestHash {`, `if len(first.Body) == 0 {`)},
			pkg:     http, run: "TestIdempotencyKeysRepeatTheFirstAnswer",
			says: `the answer is no problem: .* 20[01] \{"`,
		},
		{
			name: "answers-by-tenant", what: "an Idempotency-Key is looked up for the tenant that the request is about, not for whoever sends it",
			promise: "what is answered was done",
			edits:   []overlay.Edit{edit("commands/catalogue.go", "	key := by.KeyID.String() + \"/\" + once.Key // a key", "	key := tenant.String() + \"/\" + once.Key // a key")},
			pkg:     http, run: "TestAnIdempotencyKeyForTwoTenantsAtOnce",
			says: `the answer is no problem: .* 201 \{"`,
		},
		{
			name: "tag-of-the-answer-alone", what: "the entity tag of a check says whether it is allowed, not what is left",
			promise: "no answer is staler than it says",
			edits:   []overlay.Edit{edit("http/entitlements.go", `tag := entityTag(says)`, `tag := entityTag(strconv.AppendBool([]byte(feature), found.Allowed))`)},
			pkg:     http, run: "TestEntitlementsAreConditional",
			says: `^of what has changed is told 304`,
		},
		{
			name: "checks-ask-for-one", what: "where many features are checked at once, each is asked for an amount of 1",
			promise: "nobody is let beyond a hard limit",
			edits:   []overlay.Edit{edit("http/entitlements.go", `			questions[i].Amount = *q.Amount`, `			questions[i].Amount = min(*q.Amount, 1)`)},
			pkg:     http, run: "TestEntitlementsAreConditional",
			says: `^of what is left, 399, question 4 is answered`,
		},
	}
}
