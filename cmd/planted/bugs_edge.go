package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

// edgeBugs are in the decoding of requests and in authorization.
func edgeBugs() []bug {
	return []bug{
		{
			name: "edge-duplicate-members", what: "a body may have the same member twice; the last one wins",
			promise: "an event means the same to every reader",
			edits:   []overlay.Edit{edit("domain/strictjson/scan.go", `duplicate(s.names[base:]); twice {`, `duplicate(s.names[base:]); twice && s.depth > 0 {`)},
			pkg:     "./domain/strictjson", run: "TestCheck",
			says: `<nil>, want malformed_json`,
		},
		{
			name: "edge-time-rounded", what: "times are rounded to microseconds, and so into the next month",
			promise: "usage is counted in the period of its timestamp",
			edits:   []overlay.Edit{edit("domain/time.go", `return nanos - nanos%1000, s[n:], ""`, `return (nanos + 500) / 1000 * 1000, s[n:], ""`)},
			pkg:     "./domain", run: "TestParseTime",
			says: `T23:59:59\.9+Z: .* want .*T23:59:59`,
		},
		{
			name: "edge-body-limit", what: "a gzip body has no limit after decompression",
			promise: "no request takes more memory than its limit",
			edits:   []overlay.Edit{edit("http/body/body.go", `return readAll(&limitedReader{from: z, left: limit}, guess, charge)`, `return readAll(z, guess, charge)`)},
			pkg:     "./http", run: "TestBadInputIsRefusedAndStoresNothing",
			says: `instead of 413 body_too_large`,
		},
		{
			name: "edge-scope", what: "reads need a key but no scope",
			promise: "P9: a key allows its own scopes only",
			edits:   []overlay.Edit{edit("http/auth/auth.go", `if !slices.ContainsFunc(r.Scopes, by.Has) {`, `if r.Method != "GET" && !slices.ContainsFunc(r.Scopes, by.Has) {`)},
			pkg:     "./http", run: "TestP9_EveryRouteRefusesKeysWithoutAccess",
			says: `the answer is no problem: .* 200 \{"data"`,
		},
		{
			name: "edge-kind-of-key", what: "an operator's route accepts a tenant's key that has a scope of the same name",
			promise: "P9: a key allows its own scopes only",
			edits: []overlay.Edit{edit("http/auth/auth.go", `if isTenant && r.Who == Operator || !isTenant && r.Who == Tenant {`,
				`if !isTenant && r.Who == Tenant {`)},
			pkg: "./http", run: "TestP9_TenantKeysOpenNoOperatorRoute",
			says: `a key of the other kind is answered <nil>`,
		},
		{
			name: "edge-suspended", what: "the keys of a suspended tenant are accepted",
			promise: "a suspended tenant is shut out at once",
			edits:   []overlay.Edit{edit("http/auth/auth.go", `if tenant != nil && tenant.Status == domain.TenantSuspended {`, `if tenant != nil && tenant.Status == domain.TenantSuspended && route.Method == "GET" {`)},
			pkg:     "./http", run: "TestASuspendedTenantIsRefusedAtOnce",
			says: `the answer is no problem: .* 202 \{"accepted"`,
		},
		{
			name: "edge-anothers-cursor", what: "a cursor of another tenant's list is accepted",
			promise: "P9: no tenant sees anything of another",
			edits:   []overlay.Edit{edit("http/cursor.go", `range append(list{"meterplex cursor", after, strconv.Itoa(generation)}, l...) {`, `range (list{"meterplex cursor", after, strconv.Itoa(generation)}) {`)},
			pkg:     "./http", run: "TestP9_CursorsBelongToTheirList",
			says: `the answer is no problem: .* 200 \{"data"`,
		},
		{
			name: "edge-refused-as-one", what: "policy is checked before dedupe: a retry of an accepted event is refused later",
			promise: "P2: a retry of an accepted event is a duplicate for ever",
			edits: []overlay.Edit{edit("commands/usage.go", `		refusals[i] = inBody(refusal, item)
`, `		refusals[i] = inBody(refusal, item)
		if refusal != nil && in == nil {
			verdicts[i].reject(refusals[i])
			continue
		}
`)},
			pkg: "./commands", run: "TestP2_DedupeComesBeforePolicy",
			says: `too old, no subscription, but known: .*timestamp_too_old`,
		},
	}
}

// cacheBugs are in the caches of keys, subscriptions and grants.
func cacheBugs() []bug {
	return []bug{
		{
			name: "cache-before-commit", what: "the cache is cleared before the change commits: a read in between caches the old value",
			promise: "a change holds once it is answered",
			edits: []overlay.Edit{
				edit("infra/postgres/store/store.go", "	if err == nil {\n		s.Histories.forget()\n		s.Keys.forget()\n", "	if err == nil {\n"),
				edit("infra/postgres/store/store.go", "		return decide(tx)\n", "		if err := decide(tx); err != nil {\n			return err\n		}\n		s.Histories.forget()\n		s.Keys.forget()\n		return nil\n"),
			},
			pkg: "./infra/postgres/store", run: "TestCachedStateIsDroppedAfterTheCommit",
			says: `the change was answered, and the tenant is still`,
		},
		{
			name: "cache-load-overtaken", what: "a load that began before a change is cached after it",
			promise: "a change holds once it is answered",
			edits:   []overlay.Edit{edit("infra/postgres/store/histories.go", `	if c.era == era {`, `	if c.era >= era {`)},
			pkg:     "./infra/postgres/store", run: "TestCachedAnswersAreConfirmedByTheLog",
			says: `and so is read again: load`,
		},
		{
			name: "cache-unconfirmed", what: "keys are cached for as long as the instance lives",
			promise: "a change on one instance holds on all within a second",
			edits:   []overlay.Edit{edit("infra/postgres/store/histories.go", `if ok && (c.now().Sub(k.at) < confirmWithin || c.unchanged(&k)) {`, `if ok {`)},
			pkg:     "./http", run: "TestChangesHoldOnAnotherInstanceWithinASecond",
			says: `^suspended: 200`,
		},
		{
			name: "grants-overtaken", what: "a load of grants is cached although a change committed while it ran",
			promise: "a check is at most 100 ms behind",
			edits:   []overlay.Edit{edit("projections/entitlements/cache.go", `if l.err == nil && l.brought.stands.Folded >= l.atLeast {`, `if l.err == nil {`)},
			pkg:     "./projections", run: "TestOvertakenLoadsAreNotCached",
			says: `after the load came back`,
		},
		{
			name: "grants-told-before-commit", what: "a confirmation under way counts as one that began after the change",
			promise: "a check after a confirmed change includes the change",
			edits:   []overlay.Edit{edit("projections/entitlements/cache_feed.go", `		c.feed.confirmed.Store(int64(l.began.Sub(c.began)) + 1)`, `		c.feed.confirmed.Store(int64(time.Since(c.began)) + 1)`)},
			pkg:     "./projections", run: "TestAnEarlierPollConfirmsNoLaterLoad",
			says: `^confirmed, and still`,
		},
		{
			name: "grants-never-overtaken", what: "a grant that the feed saw change is still served until a request names a position",
			promise: "a check is at most 100 ms behind",
			edits: []overlay.Edit{edit("projections/entitlements/cache.go", `			g.overtaken.CompareAndSwap(0, at)
			overtaken = append(overtaken, g)
`, `			_ = at
`)},
			pkg: "./projections", run: "TestP9_CachedChecksAreTrueAtTheirPosition",
			says: `version \d+ of the subscription at .* was confirmed`,
		},
		{
			name: "rls-not-forced", what: "row level security does not bind the owner of the log",
			promise: "P9: no tenant sees anything of another",
			edits:   []overlay.Edit{edit("migrations/0001_event_log.sql", `ALTER TABLE event_log FORCE ROW LEVEL SECURITY;`, ``)},
			pkg:     "./infra/postgres", run: "TestEveryTableOfTenantsForcesRowLevelSecurity",
			says: `tables without forced row level security`,
		},
	}
}
