package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

const (
	writer = "infra/postgres/eventlog/writer.go"
	group  = "infra/postgres/eventlog/group.go"
	probe  = "infra/postgres/eventlog/probe.go"
	schema = "migrations/0001_event_log.sql"
)

// commitBugs are in the handling of a commit, also of one without an answer.
func commitBugs() []bug {
	return []bug{
		{
			name: "ack-before-commit", what: "a batch is answered before its COMMIT is sent",
			promise: "P1: accepted is answered only after a durable commit",
			edits:   answeredEarly(),
			pkg:     "./infra/postgres/eventlog", run: "TestP1_NothingIsAnsweredBeforeItsCommit",
			says: `a batch was answered while its COMMIT was under way`,
		},
		{
			name: "commit-unknown-is-done", what: "a COMMIT without an answer counts as done",
			promise: "P1: the outcome behind a lost answer is looked up, never guessed",
			edits:   []overlay.Edit{edit("infra/postgres/db.go", `	return fmt.Errorf("%w: %v", ErrCommitUnknown, err)`, `	return nil`)},
			pkg:     "./infra/postgres/eventlog", run: "TestP1_LostCommitAnswersAreResolved",
			says: `sent again: .*, first `,
		},
		{
			name: "commit-retried", what: "a change whose COMMIT had no answer is decided again, because the driver calls that safe",
			promise: "P1: the outcome behind a lost answer is looked up, never guessed",
			edits:   []overlay.Edit{edit("infra/postgres/store/store.go", "	if answeredMeanwhile(err) {\n", "	if answeredMeanwhile(err) || errors.Is(err, postgres.ErrCommitUnknown) {\n")},
			pkg:     "./infra/postgres/store", run: "TestP1_AChangeWhoseCommitHadNoAnswerIsMadeOnce",
			says: `events tell of \d+ new tenants`,
		},
		{
			name: "mark-before-commit", what: "an event is marked as seen before its commit: after a failed one its retry is a duplicate",
			promise: "P2: each event counts once", elsewhere: true,
			edits: []overlay.Edit{
				{File: "infra/postgres/eventlog/marks.go", New: "package eventlog\n\nimport \"sync\"\n\nvar marks sync.Map\n"},
				edit(group, "		first := g.firstOf(i)\n		switch {\n", `		first := g.firstOf(i)
		if !m.submitted.ProbeOnly && !ok && first == i {
			if _, seen := marks.LoadOrStore(keyOf(&m.submitted.Pending), true); seen {
				*m.placement = commands.Placement{Status: commands.Duplicate}
				continue
			}
		}
		switch {
`),
			},
			pkg: "./infra/postgres/eventlog", run: "TestP1_LostCommitAnswersAreResolved",
			says: `sent again: .*, first `,
		},
	}
}

// answeredEarly makes the writer answer before its COMMIT.
func answeredEarly() []overlay.Edit {
	return []overlay.Edit{
		edit(writer, "	g.sent = true\n	err = conn.Finish(", "	g.sent = true\n	g.answer(nil)\n	err = conn.Finish("),
		edit(group, "	for _, s := range g.subs {\n		if err != nil {", "	subs := g.subs\n	g.subs = nil\n	for _, s := range subs {\n		if err != nil {"),
	}
}

// dedupeBugs are in the dedupe of a tenant's events.
func dedupeBugs() []bug {
	return []bug{
		{
			name: "dedupe-without-tenant", what: "an eventId is looked up without its tenant",
			promise: "P2: each (tenant, eventId) counts once; P9: tenants never meet", elsewhere: true,
			edits: []overlay.Edit{
				edit(schema, `UNIQUE (partition, tenant_id, dedupe_key)`, `UNIQUE (partition, dedupe_key)`),
				edit(probe, `l.tenant_id = k.tenant_id AND l.dedupe_key`, `l.dedupe_key`),
				edit(probe, `logKey { return logKey{p.TenantID, p.DedupeKey} }`, `logKey { return logKey{key: p.DedupeKey} }`),
				edit(probe, `known[k] = f`, `known[logKey{key: k.key}] = f`),
			},
			pkg: "./infra/postgres/eventlog", run: "TestP2_TenantsOfOnePartitionHaveEachTheirOwnEventIDs",
			says: `^event \d+ of tenant `,
		},
		{
			name: "dedupe-by-id-and-time", what: "the dedupe key includes the event's time: the same id at another time counts twice",
			promise: "P2: each (tenant, eventId) counts once", elsewhere: true,
			edits: []overlay.Edit{edit("commands/usage.go", `DedupeKey: events.KeyUsage(e.EventID),`, `DedupeKey: events.KeyUsage(e.EventID + e.Timestamp.String()),`)},
			pkg:   "./http", run: "TestIngestAnswersEachEventInItsOrder",
			says: `^accepted is \d+ instead of`,
		},
		{
			name: "dedupe-bounded", what: "an eventId is looked up only in the last million positions, and no constraint refuses a second one",
			promise: "P2: each (tenant, eventId) counts once, however late its retry", elsewhere: true,
			edits: []overlay.Edit{
				edit(schema, "PRIMARY KEY (partition, position),\n  CONSTRAINT event_log_dedupe UNIQUE (partition, tenant_id, dedupe_key)\n", "PRIMARY KEY (partition, position)\n"),
				edit(probe, `l.dedupe_key = k.dedupe_key LIMIT 1`, `l.dedupe_key = k.dedupe_key AND l.position > (SELECT h.position FROM log_heads h WHERE h.partition = k.partition) - 1000000 LIMIT 1`),
				edit(writer, `probing := g.mustProbe || w.isHot(g.partitions)`, `probing := true`),
			},
			pkg: "./infra/postgres/eventlog", run: "TestP2_TheLogItselfRefusesASecondEventOfAKey",
			says: `a key of two million positions before was taken again`,
		},
		{
			name: "one-duplicate-refuses-all", what: "a batch with a known event in it fails as a whole",
			promise: "P2: a retry always ends with a verdict for each event", elsewhere: true,
			edits: []overlay.Edit{edit(writer, `if postgres.SQLState(err) == postgres.UniqueViolation && !probing {`, `if postgres.SQLState(err) == postgres.UniqueViolation && attempt < 0 {`)},
			pkg:   "./infra/postgres/eventlog", run: "TestP2_SixteenClientsSendTheSameBatchInOtherOrders",
			says: `duplicate key value violates unique constraint`,
		},
		{
			name: "conflict-untold", what: "a conflict is not recorded",
			promise: "P4: a conflict is reported, recorded with both hashes, counted",
			edits:   []overlay.Edit{edit(group, `	if len(conflicts) == 0 {`, `	if len(conflicts) >= 0 {`)},
			pkg:     "./infra/postgres/eventlog", run: "TestP4_EachConflictIsRecordedOnce",
			says: `conflicts are recorded for \d+ other payloads`,
		},
	}
}

// keepsPositions makes an append that starts over keep its first positions.
func keepsPositions() []overlay.Edit {
	return []overlay.Edit{edit("infra/postgres/eventlog/log.go", `before := hs.clone()`, `before := hs`)}
}

// headBugs are in the positions of events.
func headBugs() []bug {
	return []bug{
		{
			name: "positions-with-holes", what: "an append that starts over keeps the positions of its first attempt",
			promise: "positions are dense, so that a gap is a loss",
			edits:   keepsPositions(),
			pkg:     "./infra/postgres/eventlog", run: "TestAppendTxSkipsWhatIsThere",
			says: `^first \[.*\], second \[`,
		},
		{
			name: "shared-writer-drops", what: "submissions with a locked head leave the shared group and reach no other writer",
			promise: "each submission is answered",
			edits:   []overlay.Edit{edit(writer, `w.passOn(g.leave(hs))`, `g.leave(hs)`)},
			pkg:     "./infra/postgres/eventlog", run: "TestALockedHeadBlocksNoOtherPartition",
			says: `an event waits for a head that is free`,
		},
		{
			name: "shared-writer-waits", what: "the shared writer waits for heads locked by others",
			promise: "one partition does not delay the others",
			edits:   []overlay.Edit{edit(writer, `		lock = lockFreeHeadsSQL`, `		lock = lockHeadsSQL`)},
			pkg:     "./infra/postgres/eventlog", run: "TestALockedHeadBlocksNoOtherPartition",
			says: `more waits than is done in reasonable time|an event waits for a head that is free|events of other partitions waited`,
		},
		{
			name: "log-altered", what: "the service's role may change the log",
			promise: "P6: the service cannot alter the log",
			edits: []overlay.Edit{edit(schema, `GRANT SELECT, INSERT ON event_log, event_log_rows, log_origins, log_epochs TO meterplex_worker;`,
				`GRANT SELECT, INSERT, UPDATE ON event_log, event_log_rows, log_origins, log_epochs TO meterplex_worker;`)},
			pkg: "./infra/postgres/eventlog", run: "TestP6_TheServiceCannotAlterTheLog",
			says: `^UPDATE event_log .*: <nil>`,
		},
	}
}
