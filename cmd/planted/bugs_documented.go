package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

// watchBugs are in the watch for required migrations of a running instance.
func watchBugs() []bug {
	const migrate = "infra/postgres/migrate.go"
	return []bug{
		{
			name: "beyond-ends-the-watch-alone", what: "if the database requires a later release, only the watch ends, not the service",
			promise: "P1: no release works on a database that it would corrupt",
			edits:   []overlay.Edit{edit(migrate, "Scan(&beyond.Needs, &beyond.Because); err == nil {\n			return beyond\n", "Scan(&beyond.Needs, &beyond.Because); err == nil {\n			return nil\n")},
			pkg:     "./infra/postgres", run: "TestABinaryReportsUnsupportedMigrations",
			says: `^where it is required: <nil>`,
		},
		{
			name: "outage-taken-for-a-requirement", what: "a database that does not answer counts as one that requires a later release",
			promise: "P11: an outage costs latency only",
			edits: []overlay.Edit{
				edit(migrate, "Scan(&beyond.Needs, &beyond.Because); err == nil {\n			return beyond\n", "Scan(&beyond.Needs, &beyond.Because); !errors.Is(err, pgx.ErrNoRows) {\n			return beyond\n"),
			},
			pkg: "./infra/postgres", run: "TestAnOutageIsNoRequirement",
			says: `^it ended without a database`,
		},
		{
			name: "nobody-watches", what: "required migrations are checked only at the start",
			promise: "P1: no release works on a database that it would corrupt",
			edits:   []overlay.Edit{edit("cmd/meterplex/node/node.go", "	g.Go(func() error { return postgres.WatchRequired(ctx, n.looks, postgres.DefaultRequiredEvery) })\n", "")},
			pkg:     e2e, run: "TestP2_OldAndNewBinaryTogetherAcrossAMigration",
			says: `^not within .*: the old release ends by itself`,
		},
	}
}

// admissionBugs are in the admission of submissions.
func admissionBugs() []bug {
	const admission = "infra/postgres/eventlog/admission.go"
	return []bug{
		{
			name: "the-refused-take-room", what: "a submission is counted before it is refused, and so causes the refusal of others",
			promise: "usage is accepted if there is room",
			edits: []overlay.Edit{edit(admission, `	q.mu.Lock()
	defer q.mu.Unlock()
	had, others := q.arrive(s)
	if err := q.refusal(s, q.rows.Load(), had, others); err != nil {
		return err
	}
	q.count(s.tenant, int64(len(s.batch)), s.bytes)
`, `	q.mu.Lock()
	had, others := q.arrive(s)
	ahead := q.rows.Load()
	q.count(s.tenant, int64(len(s.batch)), s.bytes)
	q.mu.Unlock()
	if err := q.refusal(s, ahead, had, others); err != nil {
		q.leave(s)
		return err
	}
`)},
			pkg: "./infra/postgres/eventlog", run: "TestRefusedSubmissionsUseNoQueueSpace",
			says: `is refused, and there is room for it`,
		},
	}
}

// fairnessBugs are in the share of one tenant, or one kind of work.
func fairnessBugs() []bug {
	const admission = "infra/postgres/eventlog/admission.go"
	return []bug{
		{
			name: "half-of-a-queue-for-whoever-is-alone", what: "a single tenant may use only half of a queue",
			promise: "usage is accepted if there is room",
			edits:   []overlay.Edit{edit(admission, `; err != nil || !others || s.owed {`, `; err != nil || s.owed {`)},
			pkg:     "./infra/postgres/eventlog", run: "TestATenantAloneHasAllOfAQueue",
			says: `^a tenant alone got \d+ rows in`,
		},
		{
			name: "messages-refused-for-the-flood", what: "messages are refused because their tenant floods HTTP",
			promise: "usage is accepted if there is room",
			edits:   []overlay.Edit{edit(admission, `; err != nil || !others || s.owed {`, `; err != nil || !others {`)},
			pkg:     "./infra/postgres/eventlog", run: "TestMessagesAreNotRefusedForTheirTenantsFlood",
			says: `^a message: |^messages: `,
		},
		{
			name: "small-groups-tell-of-rows", what: "a small group on a slow disk raises the expected time of each row",
			promise: "usage is accepted if there is room",
			edits:   []overlay.Edit{edit(admission, "	if rows < measuredRows && each >= before {\n		return\n	}\n", "	_ = measuredRows\n")},
			pkg:     "./infra/postgres/eventlog", run: "TestTheExpectedWaitFollowsTheMeasuredRate",
			says: `^a slow group that is small or failed tells`,
		},
		{
			name: "slow-disk-shuts-the-door", what: "a commit that takes 100 ms counts as an outage of the database",
			promise: "P1: a slow disk costs latency only",
			edits:   []overlay.Edit{edit(admission, `	standardWait = 500 * time.Millisecond`, `	standardWait = 40 * time.Millisecond`)},
			pkg:     e2e, run: "TestP1_SlowDisk",
			says: `^\d+ requests were refused`,
		},
		{
			name: "any-number-looks-at-keys", what: "key lookups may use every connection of the pool",
			promise: "ingest continues whatever else waits",
			edits:   []overlay.Edit{edit("infra/postgres/store/seats.go", "	maxLoads   = 3\n", "	maxLoads   = 300\n")},
			pkg:     "./infra/postgres/store", run: "TestUnknownKeysLeaveEventsTheirConnections",
			says: `not so within 30 s: the looks wait`,
		},
	}
}

// upgradeBugs are in migrations, restores and caches.
func upgradeBugs() []bug {
	const migrate = "infra/postgres/migrate.go"
	return []bug{
		{
			name: "migration-waits-for-its-lock", what: "a migration waits for its lock without a limit, and all later statements queue behind it",
			promise: "an upgrade costs latency only",
			edits:   []overlay.Edit{edit(migrate, `"lock_timeout": migrationLock, `, ``)},
			pkg:     "./infra/postgres", run: "TestEveryMigrationGivesUpItsLockSoon",
			says: `^behind a lock that it does not get`,
		},
		{
			name: "migration-waits-an-hour", what: "a migration behind a long read makes all other readers wait for an hour",
			promise: "an upgrade costs latency only",
			edits:   []overlay.Edit{edit("migrations/0011_withheld_late.sql", `SET LOCAL lock_timeout = '2s';`, `SET LOCAL lock_timeout = '1h';`)},
			pkg:     "./infra/postgres", run: "TestMigrationBehindALongReadStopsNoReaders",
			says: `deadline exceeded|a read waited`,
		},
		{
			name: "deadlock-ends-the-migration", what: "a migration that is a deadlock's victim ends the start",
			promise: "an upgrade costs latency only",
			edits:   []overlay.Edit{edit(migrate, `[]string{LockNotAvailable, deadlock}, SQLState`, `[]string{LockNotAvailable}, SQLState`)},
			pkg:     "./infra/postgres", run: "TestADeadlockedMigrationIsRetried",
			says: `^the migration: migrating the database: `,
		},
		{
			name: "two-restores-one-history", what: "two restores raise the epoch to the same number",
			promise: "records of an ended history are never counted",
			edits:   []overlay.Edit{edit("infra/postgres/eventlog/epoch.go", `greatest(h.epoch + 1, t.epoch + 1, extract(epoch FROM clock_timestamp())::int - 1577836800)`, `h.epoch + 1`)},
			pkg:     "./infra/postgres/eventlog", run: "TestP1_TwoRestoresOfOneBackupAreTwoHistories",
			says: `^the backup is of epoch`,
		},
		{
			name: "load-as-old-as-its-end", what: "a cached key counts from when the load ended, not from when it began",
			promise: "a change on one instance holds on all within a second",
			edits: []overlay.Edit{edit("infra/postgres/store/histories.go", `		return c.note(key, kept[V]{value: v, at: at}, seen), err`,
				`		at = c.now()
		return c.note(key, kept[V]{value: v, at: at}, seen), err`)},
			pkg: "./infra/postgres/store", run: "TestCachedAnswerIsAsOldAsItsLoad",
			says: `^answered with load`,
		},
	}
}

// connectionBugs are in connections, and on the path to the broker and back.
func connectionBugs() []bug {
	return []bug{
		{
			name: "first-of-two-keys", what: "of two keys in a request the first is used",
			promise: "P9: a key allows its own scopes only",
			edits:   []overlay.Edit{edit("http/auth/auth.go", `	if len(values) != 1 {`, `	if len(values) < 1 {`)},
			pkg:     "./http", run: "TestMalformedRequestsAreRefused",
			says: `^two keys: .* instead of HTTP/1.1 401`,
		},
		{
			name: "readers-wait-for-ever", what: "a read waits for a connection until its request's deadline",
			promise: "a request that waits too long is refused, to be retried",
			edits:   []overlay.Edit{edit("projections/query/snapshot.go", `conn, err := d.Pool.Acquire(soon)`, `conn, err := d.Pool.Acquire(ctx)`)},
			pkg:     "./http", run: "TestReadersLeaveIngestItsConnections",
			says: `instead of 503 overloaded|^it was not counted`,
		},
		{
			name: "copies-for-who-is-there", what: "topics are created for the brokers that answer, not for all brokers of the cluster",
			promise: "P11: an outage of the broker loses nothing",
			edits:   []overlay.Edit{edit("infra/kafka/admin.go", `request.IncludeFencedBrokers = true`, `request.IncludeFencedBrokers = false`)},
			pkg:     "./infra/kafka", run: "TestP11_TopicsAreCreatedForBrokersThatAreDown",
			says: `brokers are away, .* is made with`,
		},
		{
			name: "place-of-before-the-rewind", what: "an event published again is reported at its first offset",
			promise: "P12: the outcome of an event is shown",
			edits: []overlay.Edit{edit("infra/relay/cursor.go", ` DO UPDATE SET to_position = excluded.to_position, base_offset = excluded.base_offset, published_at = now()`,
				` DO NOTHING`)},
			pkg: "./infra/relay", run: "TestRelayRewoundUnderLoad",
			says: `lies at -?\d+, the receipt says`,
		},
		{
			name: "lease-of-the-dead", what: "partitions of a dead relay stay unused for ten minutes",
			promise: "P11: an outage costs latency only",
			edits:   []overlay.Edit{edit("infra/relay/leases.go", "WHERE owner IS NULL OR lease_until < now()\n ORDER BY partition LIMIT $2", "WHERE owner IS NULL OR lease_until < now() - interval '10 minutes'\n ORDER BY partition LIMIT $2")},
			pkg:     "./infra/relay", run: "TestP2_KilledBetweenTheBrokersAckAndTheCursor",
			says: `^never: the log is published`,
		},
		{
			name: "replay-is-folded", what: "consumers also fold events published again for external readers",
			promise: "P2: whatever is delivered again counts once",
			edits:   []overlay.Edit{edit(runner, `if record.Header(events.HeaderReplay) != nil {`, `if record.Header(events.HeaderReplay) != nil && len(record.Value) == 0 {`)},
			pkg:     projections, run: "TestRecordsThatAreNotOfThisLog",
			says: `^applied \d, want \d; told`,
		},
	}
}
