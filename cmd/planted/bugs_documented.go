package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

// watchBugs are in what looks after an instance while it runs.
func watchBugs() []bug {
	const pg, migrate = "./infra/postgres", "infra/postgres/migrate.go"
	return []bug{
		{
			name: "beyond-ends-the-watch-alone", what: "a database that is not for this release any more ends the watch for it, and nothing else",
			promise: "P1: no release works on a database that it would spoil",
			edits:   []overlay.Edit{edit(migrate, "Scan(&beyond.Needs, &beyond.Because); err == nil {\n			return beyond\n", "Scan(&beyond.Needs, &beyond.Because); err == nil {\n			return nil\n")},
			pkg:     pg, run: "TestABinaryIsToldWhatIsBeyondIt",
			says: `^where it is required: <nil>`,
		},
		{
			name: "outage-taken-for-a-requirement", what: "a database that does not answer is taken for one that is not for this release",
			promise: "P11: an outage costs latency only",
			edits: []overlay.Edit{
				edit(migrate, "Scan(&beyond.Needs, &beyond.Because); err == nil {\n			return beyond\n", "Scan(&beyond.Needs, &beyond.Because); !errors.Is(err, pgx.ErrNoRows) {\n			return beyond\n"),
			},
			pkg: pg, run: "TestAnOutageIsNoRequirement",
			says: `^it ended without a database`,
		},
		{
			name: "nobody-watches", what: "what a later release requires is looked for at the start alone",
			promise: "P1: no release works on a database that it would spoil",
			edits:   []overlay.Edit{edit("cmd/meterplex/wiring.go", "	g.Go(func() error { return postgres.WatchRequired(ctx, n.looks, postgres.DefaultRequiredEvery) })\n", "")},
			pkg:     e2e, run: "TestP2_OldAndNewBinaryTogetherAcrossAMigration",
			says: `^not within .*: the old release ends by itself`,
		},
	}
}

// roomBugs are in who is let in when many come.
func roomBugs() []bug {
	const pg, admission = "./infra/postgres", "infra/postgres/admission.go"
	return []bug{
		{
			name: "the-refused-take-room", what: "a submission is counted before it is refused, and those that come meanwhile are refused for it",
			promise: "what there is room for is taken",
			edits: []overlay.Edit{edit(admission, `	q.mu.Lock()
	defer q.mu.Unlock()
	had, others := q.meet(s)
	if err := q.refusal(s, q.rows.Load(), had, others); err != nil {
		return err
	}
	q.count(s.tenant, int64(len(s.batch)), s.bytes)
`, `	q.mu.Lock()
	had, others := q.meet(s)
	ahead := q.rows.Load()
	q.count(s.tenant, int64(len(s.batch)), s.bytes)
	q.mu.Unlock()
	if err := q.refusal(s, ahead, had, others); err != nil {
		q.leave(s)
		return err
	}
`)},
			pkg: pg, run: "TestTheRefusedTakeNoRoom",
			says: `is refused, and there is room for it`,
		},
	}
}

// shareBugs are in what one tenant, or one kind of work, may take from the others.
func shareBugs() []bug {
	const pg, admission = "./infra/postgres", "infra/postgres/admission.go"
	return []bug{
		{
			name: "half-of-a-queue-for-whoever-is-alone", what: "a tenant that is alone may have half of a queue",
			promise: "what there is room for is taken",
			edits:   []overlay.Edit{edit(admission, `; err != nil || !others || s.owed {`, `; err != nil || s.owed {`)},
			pkg:     pg, run: "TestATenantAloneHasAllOfAQueue",
			says: `^a tenant alone got \d+ rows in`,
		},
		{
			name: "messages-refused-for-the-flood", what: "messages are refused for what their tenant sends over HTTP",
			promise: "what there is room for is taken",
			edits:   []overlay.Edit{edit(admission, `; err != nil || !others || s.owed {`, `; err != nil || !others {`)},
			pkg:     pg, run: "TestMessagesAreNotRefusedForTheirTenantsFlood",
			says: `^a message: |^messages: `,
		},
		{
			name: "small-groups-tell-of-rows", what: "a group of a few rows on a slow disk tells that each row takes long",
			promise: "what there is room for is taken",
			edits:   []overlay.Edit{edit(admission, "	if rows < measuredRows && each >= before {\n		return\n	}\n", "	_ = measuredRows\n")},
			pkg:     pg, run: "TestWhatIsExpectedFollowsWhatIsMeasured",
			says: `^a slow group that is small or failed tells`,
		},
		{
			name: "slow-disk-shuts-the-door", what: "a commit that takes a tenth of a second stands for a database that is away",
			promise: "P1: a slow disk costs latency only",
			edits:   []overlay.Edit{edit(admission, `	standardWait = 500 * time.Millisecond`, `	standardWait = 40 * time.Millisecond`)},
			pkg:     e2e, run: "TestP1_SlowDisk",
			says: `^\d+ requests were refused`,
		},
		{
			name: "any-number-looks-at-keys", what: "looks at keys may have every connection of the pool",
			promise: "events are taken in whatever else waits",
			edits:   []overlay.Edit{edit(admission, "	maxLoads   = 3\n", "	maxLoads   = 300\n")},
			pkg:     pg, run: "TestUnknownKeysLeaveEventsTheirConnections",
			says: `not so within 30 s: the looks wait`,
		},
	}
}

// upgradeBugs are in migrations, restores and what is kept meanwhile.
func upgradeBugs() []bug {
	const pg, migrate = "./infra/postgres", "infra/postgres/migrate.go"
	return []bug{
		{
			name: "migration-waits-for-its-lock", what: "a migration waits for its lock for as long as it takes, and all that come after it wait behind it",
			promise: "an upgrade costs latency only",
			edits:   []overlay.Edit{edit(migrate, `"lock_timeout": migrationLock, `, ``)},
			pkg:     pg, run: "TestEveryMigrationGivesUpItsLockSoon",
			says: `^behind a lock that it does not get`,
		},
		{
			name: "migration-waits-an-hour", what: "a migration that waits behind a long read lets all other readers wait behind it for an hour",
			promise: "an upgrade costs latency only",
			edits:   []overlay.Edit{edit("migrations/0011_withheld_late.sql", `SET LOCAL lock_timeout = '2s';`, `SET LOCAL lock_timeout = '1h';`)},
			pkg:     pg, run: "TestMigrationBehindALongReadStopsNoReaders",
			says: `deadline exceeded|a read waited`,
		},
		{
			name: "deadlock-ends-the-migration", what: "a migration that the server chose as a deadlock's victim ends the start",
			promise: "an upgrade costs latency only",
			edits:   []overlay.Edit{edit(migrate, `[]string{lockNotHad, deadlock}, sqlState`, `[]string{lockNotHad}, sqlState`)},
			pkg:     pg, run: "TestMigrationThatIsADeadlocksVictimComesAgain",
			says: `^the migration: migrating the database: `,
		},
		{
			name: "two-restores-one-history", what: "two restores raise the epoch to the same number",
			promise: "records of a history that is over count nowhere",
			edits:   []overlay.Edit{edit("infra/postgres/epoch.go", `greatest(h.epoch + 1, t.epoch + 1, extract(epoch FROM clock_timestamp())::int - 1577836800)`, `h.epoch + 1`)},
			pkg:     pg, run: "TestP1_TwoRestoresOfOneBackupAreTwoHistories",
			says: `^the backup is of epoch`,
		},
		{
			name: "load-as-old-as-its-end", what: "what was read of a key counts as read when the answer came, not when it was asked for",
			promise: "what is changed on one instance holds on all within a second",
			edits: []overlay.Edit{edit("infra/postgres/histories.go", `		return c.note(key, kept[V]{value: v, at: at}, seen), err`,
				`		at = c.now()
		return c.note(key, kept[V]{value: v, at: at}, seen), err`)},
			pkg: pg, run: "TestCachedAnswerIsAsOldAsItsLoad",
			says: `^answered with load`,
		},
	}
}

// wayBugs are in connections, and on the way to the broker and back.
func wayBugs() []bug {
	return []bug{
		{
			name: "first-of-two-keys", what: "of two keys in a request the first one is taken",
			promise: "P9: a key reaches what it was given, nothing else",
			edits:   []overlay.Edit{edit("http/auth.go", `	if len(values) != 1 {`, `	if len(values) < 1 {`)},
			pkg:     "./http", run: "TestConnectionsThatLie",
			says: `^two keys: .* instead of HTTP/1.1 401`,
		},
		{
			name: "readers-wait-for-ever", what: "a read waits for a connection for as long as its request may take",
			promise: "who waits too long is told to come again",
			edits:   []overlay.Edit{edit("projections/reads.go", `conn, err := r.Pool.Acquire(soon)`, `conn, err := r.Pool.Acquire(ctx)`)},
			pkg:     "./http", run: "TestReadersThatTakeAllConnectionsLeaveIngestItsOwn",
			says: `instead of 503 overloaded|^it was not counted`,
		},
		{
			name: "copies-for-who-is-there", what: "topics are made for the brokers that answer, not for those that belong to the cluster",
			promise: "P11: an outage of the broker loses nothing",
			edits:   []overlay.Edit{edit("infra/kafka/admin.go", `ask.IncludeFencedBrokers = true`, `ask.IncludeFencedBrokers = false`)},
			pkg:     "./infra/kafka", run: "TestP11_TopicsAreMadeForBrokersThatAreAway",
			says: `brokers are away, .* is made with`,
		},
		{
			name: "place-of-before-the-rewind", what: "what is published again is told to lie where it lay first",
			promise: "P12: what became of an event is told",
			edits: []overlay.Edit{edit("infra/relay/cursor.go", ` DO UPDATE SET to_position = excluded.to_position, base_offset = excluded.base_offset, published_at = now()`,
				` DO NOTHING`)},
			pkg: "./infra/relay", run: "TestRelayRewoundUnderLoad",
			says: `lies at -?\d+, the receipt says`,
		},
		{
			name: "lease-of-the-dead", what: "partitions of a relay that died are left alone for ten minutes",
			promise: "P11: an outage costs latency only",
			edits:   []overlay.Edit{edit("infra/relay/leases.go", "WHERE owner IS NULL OR lease_until < now()\n ORDER BY partition LIMIT $2", "WHERE owner IS NULL OR lease_until < now() - interval '10 minutes'\n ORDER BY partition LIMIT $2")},
			pkg:     "./infra/relay", run: "TestP2_KilledBetweenTheBrokersAckAndTheCursor",
			says: `^never: the log is published`,
		},
		{
			name: "replay-is-folded", what: "what is published again for outside readers is taken by consumers, too",
			promise: "P2: whatever is delivered again counts once",
			edits:   []overlay.Edit{edit(runner, `if record.Header(events.HeaderReplay) != nil {`, `if record.Header(events.HeaderReplay) != nil && len(record.Value) == 0 {`)},
			pkg:     projections, run: "TestRecordsThatAreNotOfThisLog",
			says: `^applied \d, want \d; told`,
		},
	}
}
