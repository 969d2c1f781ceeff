package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

// tenantBugs give a tenant or a key access to others' data.
func tenantBugs() []bug {
	return []bug{
		{
			name: "rls-everybody", what: "a policy lets every role read the dead letters",
			promise: "P9: no tenant sees anything of another",
			edits: []overlay.Edit{edit("migrations/0003_projections.sql", `GRANT SELECT, INSERT, UPDATE ON consumer_checkpoints, projection_generations, projection_pointers TO meterplex_worker;`,
				`CREATE POLICY listed ON dead_letter_events FOR SELECT USING (true);
GRANT SELECT, INSERT, UPDATE ON consumer_checkpoints, projection_generations, projection_pointers TO meterplex_worker;`)},
			pkg: "./http", run: "TestP9_EveryTableShowsATenantItsOwnRows",
			says: `dead_letter_events: (A sees \d+ rows of others|B sees \d+ rows of A)`,
		},
		{
			name: "rls-open-where-unset", what: "if no tenant is set, the policy of the log shows all rows",
			promise: "P9: no tenant sees anything of another",
			edits: []overlay.Edit{edit("migrations/0001_event_log.sql", `  USING (tenant_id = NULLIF(current_setting('meterplex.tenant_id', true), '')::uuid);`,
				`  USING (tenant_id = coalesce(NULLIF(current_setting('meterplex.tenant_id', true), '')::uuid, tenant_id));`)},
			pkg: "./infra/postgres/eventlog", run: "TestP9_ATenantsRoleSeesItsOwnRowsOnly",
			says: `without a tenant set, \d+ rows are seen`,
		},
		{
			name: "definer-asks-nobody", what: "a function with its owner's rights trusts the tenant in its argument",
			promise: "P9: no tenant sees anything of another",
			edits: []overlay.Edit{edit("migrations/0005_reads.sql", "  tenant uuid := asking(of_tenant);\nBEGIN\n  RETURN QUERY\n  SELECT l.position FROM event_log_rows l\n",
				"  tenant uuid := of_tenant;\nBEGIN\n  RETURN QUERY\n  SELECT l.position FROM event_log_rows l\n")},
			pkg: "./http", run: "TestP9_DefinerFunctionsShowATenantItsOwnRows",
			says: `is shown \d+ positions of A's usage`,
		},
		{
			name: "route-takes-the-named", what: "a tenant's key reads as the tenant that the query names",
			promise: "P9: no tenant sees anything of another", elsewhere: true,
			edits: []overlay.Edit{edit("http/usage.go", `			if id, err := idOf(named, "tenant_not_found"); err != nil || id != own {
				return query.Viewer{}, uuid.Nil, absent("tenant_not_found")
			}
`, `			id, err := idOf(named, "tenant_not_found")
			if err != nil {
				return query.Viewer{}, uuid.Nil, absent("tenant_not_found")
			}
			own = id
`)},
			pkg: "./http", run: "TestP9_EntitiesOfAnotherTenantAreNotFound",
			says: `by tenantId: A's 200`,
		},
		{
			name: "route-scope-too-many", what: "a key that may read dead letters may retry them, too",
			promise: "P9: a key allows its own scopes only",
			edits:   []overlay.Edit{edit("http/dead_letters.go", `path: one + "/retry", who: auth.Operator, scopes: deciders,`, `path: one + "/retry", who: auth.Operator, scopes: readers,`)},
			pkg:     "./http", run: "TestP9_ScopesOfEveryRoute",
			says: `takes operator keys with one of "billing audit"; it is for`,
		},
	}
}

// keyBugs are in the lifetime of keys and the secrecy of their secrets.
func keyBugs() []bug {
	return []bug{
		{
			name: "key-rotated-never-ends", what: "an overlap of 0 seconds counts as the default",
			promise: "a revoked key is refused everywhere within a second",
			edits:   []overlay.Edit{edit("commands/keys.go", `c.end(tx, old, c.now().Add(overlap))`, `c.end(tx, old, c.now().Add(max(overlap, time.Hour)))`)},
			pkg:     "./http", run: "TestRotatedKeysOverlap",
			says: `the answer is no problem: .* 200 \{"data"`,
		},
		{
			name: "key-checked-once", what: "a stream continues for a minute after its key was revoked",
			promise: "a revoked key is refused everywhere within a second",
			edits:   []overlay.Edit{edit("http/events_stream.go", `checkEvery = tailEvery `, `checkEvery = time.Minute `)},
			pkg:     "./http", run: "TestP9_AStreamOfAnotherInstanceEndsWithinASecond",
			says: `a second after its key had ended the stream told|the stream goes on`,
		},
		{
			name: "secret-in-the-log", what: "requests are logged with their query",
			promise: "P9: no secret is stored or shown",
			edits:   []overlay.Edit{edit("http/edge/edge.go", `"route", routePath(x.route), "status", out.status, "took"`, `"route", routePath(x.route), "url", r.URL.String(), "status", out.status, "took"`)},
			pkg:     "./cmd/meterplex/e2e", run: "TestP9_SecretsAreNotStoredOrLogged",
			says: `^the log contains the `,
		},
		{
			name: "secret-in-the-answer-kept", what: "the answer stored for an Idempotency-Key contains the new key's secret",
			promise: "P9: no secret is stored or shown",
			edits:   []overlay.Edit{edit("commands/keys.go", "	Secret   string `json:\"-\"`", "	Secret   string `json:\"secret,omitempty\"`")},
			pkg:     "./cmd/meterplex/e2e", run: "TestP9_SecretsAreNotStoredOrLogged",
			says: `^the database contains the `,
		},
	}
}

// clientTimeBugs let one client block shared resources.
func clientTimeBugs() []bug {
	return []bug{
		{
			name: "body-without-a-deadline", what: "reading a body has no deadline",
			promise: "no client blocks the service's connections",
			edits:   []overlay.Edit{edit("http/edge/server.go", "		ReadTimeout:       readTime,\n", "")},
			pkg:     "./http", run: "TestMissingBodiesTimeOut",
			says: `a connection may take for ever`,
		},
		{
			name: "export-in-a-transaction", what: "an export is one transaction, as long as its client reads",
			promise: "a slow client holds only its connection",
			edits: []overlay.Edit{edit("http/events_stream.go", `	for !walk.Done() {
		if !l.alive()`, `	whole, err := s.Reads.Events.Pool.Begin(l.ctx)
	if err != nil {
		return err
	}
	defer func() { _ = whole.Rollback(context.WithoutCancel(l.ctx)) }()
	if _, err := whole.Exec(l.ctx, "SELECT"); err != nil {
		return err
	}
	for !walk.Done() {
		if !l.alive()`)},
			pkg: "./http", run: "TestSlowClientsHoldNoTransaction",
			says: `for a client that takes nothing a session is idle in its transaction`,
		},
		{
			name: "changes-take-all-connections", what: "changes that wait for a head may use every connection of the pool",
			promise: "ingest continues whatever else waits",
			edits: []overlay.Edit{edit("infra/postgres/store/seats.go", `	maxChanges = 3
`, `	maxChanges = 300
`)},
			pkg: "./infra/postgres/store", run: "TestChangesThatWaitLeaveEventsTheirConnections",
			says: `not so within 30 s: the changes wait`,
		},
	}
}

// safetyBugs are in the checks of the promises themselves.
func safetyBugs() []bug {
	const safety = "infra/postgres/safety.go"
	return []bug{
		{
			name: "unsafe-by-another-name", what: "of synchronous_commit only off counts as unsafe",
			promise: "the service does not start if it could lose acknowledged events",
			edits:   []overlay.Edit{edit(safety, `setting NOT IN ('on', 'remote_apply')`, `setting = 'off'`)},
			pkg:     "./infra/postgres", run: "TestUnsafeServersAreFound",
			says: `'local'\): ""`,
		},
		{
			name: "unsafe-by-inheritance", what: "only inherited memberships of a role are checked",
			promise: "P6: the service cannot alter the log",
			edits:   []overlay.Edit{edit(safety, `WHERE admin OR inherits OR sets AND becomes)`, `WHERE inherits)`)},
			pkg:     "./infra/postgres", run: "TestReachableRolesAreFound",
			says: `^ALTER ROLE .*, want "superuser: the role|^GRANT DELETE ON .*, want "grants: the role`,
		},
		{
			name: "unsafe-allowed-by-any-word", what: "one allowed unsafe setting allows all of them",
			promise: "the service does not start if it could lose acknowledged events",
			edits:   []overlay.Edit{edit(safety, `		if slices.Contains(allowed, d.Name) {`, `		if len(allowed) > 0 {`)},
			pkg:     "./cmd/meterplex/e2e", run: "TestTheServiceRefusesAnUnsafeDatabase",
			says: `^with METERPLEX_ALLOW_UNSAFE=.* it started`,
		},
		{
			name: "verify-blind-to-amounts", what: "verify compares the number of events of a figure, not its amount",
			promise: "differences between the log and the figures are reported",
			edits:   []overlay.Edit{edit("cmd/meterplex/verify/money.go", `	case s.amount.String() != amount || n >= 0 && s.events != n:`, `	case n >= 0 && s.events != n:`)},
			pkg:     "./cmd/meterplex/e2e", run: "TestVerifyHoldsAndReportsEachPlantedFault",
			says: `^planted for "P5 .*, found: \[\]`,
		},
		{
			name: "locks-in-no-order", what: "heads are locked in the order in which they are found",
			promise: "no deadlock",
			edits:   []overlay.Edit{edit("infra/postgres/eventlog/heads.go", ` WHERE partition = ANY($1) ORDER BY partition FOR UPDATE`, ` WHERE partition = ANY($1) FOR UPDATE`)},
			pkg:     ".", run: "TestLocksAreTakenInOrder",
			says: `^infra/postgres/eventlog/heads\.go locks rows in no order`,
		},
	}
}
