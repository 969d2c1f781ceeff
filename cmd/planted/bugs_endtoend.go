package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

// documentedBugs are for the tests that docs/reliability/faults.md names for each fault:
// a bug that another test catches by its own means has to be caught here by the fault.
func documentedBugs() []bug {
	const db = "infra/postgres/db.go"
	guessed := []overlay.Edit{edit(db, `	return fmt.Errorf("%w: %v", errCommitUnknown, err)`, `	return nil`)}
	const notInTheLog = `was acknowledged as .*, in the log: |was acknowledged at .*, in the log at|: position .*, was `
	list := append(goneBugs(), []bug{
		{
			name: "lost-commits-guessed", what: "a COMMIT without an answer is taken for done",
			promise: "P1: a lost answer is found out, never guessed",
			edits:   guessed, run: "TestP2_CommitsOfEveryKindAreLost",
			says: notInTheLog + `|features were created by|in the aggregates`,
		},
		{
			name: "killed-before-any-commit", what: "a batch is answered before its COMMIT is sent, and the process dies there",
			promise: "P1: accepted is answered only after a durable commit",
			edits:   answeredEarly(), run: "TestP2_KilledAtEveryPlace",
			says: notInTheLog,
		},
		{
			name: "full-disk-is-done", what: "a COMMIT that ended with its session is taken for done",
			promise: "P1: accepted is answered only after a durable commit",
			edits:   guessed, run: "TestP1_LogDiskFull",
			says: notInTheLog,
		},
		{
			name: "killed-beside-the-postgres-pipe", what: "a batch is answered before its COMMIT is sent, and the process is killed, where PostgreSQL is the pipe",
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

// goneBugs show when an answer, a broker or what consumers had is gone.
func goneBugs() []bug {
	const wiring = "cmd/meterplex/wiring.go"
	return []bug{
		{
			name: "known-by-its-request", what: "an event is known by its id and its request: sent again, it is another",
			promise: "P2: each (tenant, eventId) counts once",
			edits:   []overlay.Edit{edit(ingestUsage, `DedupeKey: events.KeyUsage(e.EventID),`, `DedupeKey: events.KeyUsage(e.EventID + correlation(by, e).String()),`)},
			run:     "TestP1_AnswerLostOnTheWire",
			says:    `was durable, its retry is accepted`,
		},
		{
			name: "outage-withholds", what: "what could not be published while the broker was dead becomes a dead letter",
			promise: "P11: an outage of the broker costs latency only",
			edits: []overlay.Edit{
				edit("infra/relay/batch.go", "			failed[f.Index] = f\n", "			f.Permanent = true\n			failed[f.Index] = f\n"),
				edit("infra/relay/carry.go", `if refused && tries >= maxTries {`, `if refused {`),
			},
			run:  "TestP11_BrokerKilledAndBack",
			says: `events were withheld or failed to fold`,
		},
		{
			name: "nobody-heals", what: "what a topic's consumer was never brought is waited for",
			promise: "P3: a gap in what came is read from the log",
			edits:   []overlay.Edit{edit(wiring, "	g.Go(func() error { return r.HealTail(ctx) })\n", "")},
			run:     "TestP2_ConsumerOffsetsMovedToTheEnd",
			says:    `the backlog drains|no event was read from the log`,
		},
		{
			name: "all-comes-again", what: "a record is folded without a look at what was applied, and all records come again",
			promise: "P2: whatever is delivered again counts once",
			edits:   foldsUnchecked(), run: "TestP2_ConsumerOffsetsRewoundToZero",
			says: `in the aggregates|was acknowledged as .*, in the log: |entitlements say|the backlog drains|the old records were consumed again`,
		},
		{
			name: "rewound-and-folded", what: "a record is folded without a look at what was applied, while consumers go back",
			promise: "P2: whatever is delivered again counts once",
			edits:   foldsUnchecked(), run: "TestP2_ConsumersRewoundUnderLoad",
			says: `in the aggregates|the backlog drains|duplicates were skipped`,
		},
		{
			name: "relay-gives-up-nothing", what: "a relay keeps its partitions when another one comes",
			promise: "P2: two of everything work together",
			edits:   []overlay.Edit{edit("infra/relay/leases.go", "	if err := l.release(ctx, l.held.shed(l.share)); err != nil {\n		return err\n	}\n", "")},
			run:     "TestP2_TwoInstances",
			says:    `both instances relay`,
		},
	}
}
