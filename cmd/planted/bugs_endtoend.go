package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

// documentedBugs are for the tests that docs/reliability/faults.md names for each fault: the
// test of the fault has to catch the bug, even if another test catches it, too.
func documentedBugs() []bug {
	const db = "infra/postgres/db.go"
	guessed := []overlay.Edit{edit(db, `	return fmt.Errorf("%w: %v", ErrCommitUnknown, err)`, `	return nil`)}
	const notInTheLog = `was acknowledged as .*, in the log: |was acknowledged at .*, in the log at|: position .*, was `
	list := append(lossBugs(), []bug{
		{
			name: "lost-commits-guessed", what: "a COMMIT without an answer counts as done",
			promise: "P1: the outcome behind a lost answer is looked up, never guessed",
			edits:   guessed, run: "TestP2_CommitsOfEveryKindAreLost",
			says: notInTheLog + `|features were created by|in the aggregates`,
		},
		{
			name: "killed-before-any-commit", what: "a batch is answered before its COMMIT is sent, and the process dies there",
			promise: "P1: accepted is answered only after a durable commit",
			edits:   answeredEarly(), run: "TestP2_KilledAtEveryKillPoint",
			says: notInTheLog,
		},
		{
			name: "full-disk-is-done", what: "a COMMIT that ended with its session counts as done",
			promise: "P1: accepted is answered only after a durable commit",
			edits:   guessed, run: "TestP1_LogDiskFull",
			says: notInTheLog,
		},
		{
			name: "killed-beside-the-postgres-pipe", what: "a batch is answered before its COMMIT is sent, and the process is killed, with PostgreSQL as the pipe",
			promise: "P1: accepted is answered only after a durable commit",
			edits:   answeredEarly(), run: "TestPostgresPipe",
			says: notInTheLog,
		},
		{
			name: "server-killed-is-done", what: "a batch is answered before its COMMIT is sent, and PostgreSQL is killed",
			promise: "P1: accepted is answered only after a durable commit",
			edits:   answeredEarly(), run: "TestPostgresKilled",
			says: notInTheLog,
		},
	}...)
	for i := range list {
		list[i].pkg = e2e
	}
	return list
}

// lossBugs show when an answer, the broker or consumers' records are lost.
func lossBugs() []bug {
	const wiring = "cmd/meterplex/node/node.go"
	return []bug{
		{
			name: "known-by-its-request", what: "the dedupe key includes the request: a retry counts as another event",
			promise: "P2: each (tenant, eventId) counts once",
			edits:   []overlay.Edit{edit(ingestUsage, `DedupeKey: events.KeyUsage(e.EventID),`, `DedupeKey: events.KeyUsage(e.EventID + correlation(by, e).String()),`)},
			run:     "TestP1_AnswerLostOnTheWire",
			says:    `was durable, its retry is accepted`,
		},
		{
			name: "outage-withholds", what: "events that could not be published while the broker was dead become dead letters",
			promise: "P11: an outage of the broker costs latency only",
			edits: []overlay.Edit{
				edit("infra/watermill/publish.go", "		failed[f.Index] = f\n", "		f.Permanent = true\n		failed[f.Index] = f\n"),
				edit("infra/relay/carry.go", `if refused && tries >= maxTries {`, `if refused {`),
			},
			run:  "TestP11_BrokerKilledAndBack",
			says: `events were withheld or failed to fold`,
		},
		{
			name: "nobody-heals", what: "a consumer waits for records that its topic lost",
			promise: "P3: a gap in the records is read from the log",
			edits:   []overlay.Edit{edit(wiring, "	watermill.AddLogConsumer(router, c.Name+\"-tail\", tails, r.ReadUpTo)\n", "")},
			run:     "TestP2_ConsumerOffsetsMovedToTheEnd",
			says:    `the backlog drains|no event was read from the log`,
		},
		{
			name: "all-comes-again", what: "a record is folded without a duplicate check, and all records are delivered again",
			promise: "P2: whatever is delivered again counts once",
			edits:   foldsUnchecked(), run: "TestP2_ConsumerOffsetsRewoundToZero",
			says: `in the aggregates|was acknowledged as .*, in the log: |entitlements say|the backlog drains|the old records were consumed again`,
		},
		{
			name: "rewound-and-folded", what: "a record is folded without a duplicate check, while consumers are rewound",
			promise: "P2: whatever is delivered again counts once",
			edits:   foldsUnchecked(), run: "TestP2_ConsumersRewoundUnderLoad",
			says: `in the aggregates|the backlog drains|duplicates were skipped`,
		},
		{
			name: "relay-gives-up-nothing", what: "a relay keeps all its partitions when another one starts",
			promise: "P2: two instances of every role work together",
			edits:   []overlay.Edit{edit("infra/relay/leases.go", "	if err := l.release(ctx, l.held.shed(l.share)); err != nil {\n		return err\n	}\n", "")},
			run:     "TestP2_TwoInstances",
			says:    `both instances relay`,
		},
	}
}
