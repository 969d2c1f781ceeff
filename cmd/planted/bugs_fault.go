package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

const e2e = "./cmd/meterplex/e2e"

// concurrencyBugs show when many clients send the same at once, or disconnect.
func concurrencyBugs() []bug {
	return []bug{
		{
			name: "killed-before-commit", what: "a batch is answered before its COMMIT is sent, and the process is killed",
			promise: "P1: accepted is answered only after a durable commit", elsewhere: true,
			edits: answeredEarly(),
			pkg:   e2e, run: "TestP1_KillAfterCommitBeforeAnswer",
			says: `^answer to a batch: .*: position .*, was |was acknowledged as .*, in the log: `,
		},
		{
			name: "client-gone-leaves-a-hole", what: "the rows of a disconnected client are dropped after they got their positions",
			promise: "positions are dense, so that a gap is a loss",
			edits: []overlay.Edit{
				edit(writer, "type submission struct {\n", "type submission struct {\n	ctx    context.Context\n"),
				edit(writer, "	s := &submission{tenant: tenant,", "	s := &submission{ctx: ctx, tenant: tenant,"),
				edit(writer, `	if len(g.rows) == 0 && g.isDurable(hs) {
		return rollback(conn)
	}
`, `	for _, s := range g.subs {
		if s.ctx.Err() != nil {
			g.rows = slices.DeleteFunc(g.rows, func(r row) bool {
				return slices.ContainsFunc(s.batch, func(b commands.Submitted) bool { return b.EventID == r.EventID })
			})
		}
	}
	if len(g.rows) == 0 {
		return rollback(conn)
	}
`),
			},
			pkg: e2e, run: "TestP1_ClientsDisconnectAtAnyMoment",
			says: `^positions are dense: partition`,
		},
		{
			name: "accepted-twice-in-a-group", what: "an event sent twice within one transaction is answered accepted twice",
			promise: "P2: each event is accepted once",
			edits: []overlay.Edit{edit(group, `			conflicts = m.compare(g.inGroup(first), origin[i], conflicts)`,
				`			*m.placement = *g.members[first].placement`)},
			pkg: e2e, run: "TestP2_OneBatchOfEveryVerdict",
			says: `^(client \d+|all clients together) got the verdicts map`,
		},
		{
			name: "conflict-within-a-group", what: "an event with the id of another one in the same transaction is a duplicate, whatever its payload",
			promise: "P4: the same id with another payload is reported",
			edits: []overlay.Edit{edit(group, `			conflicts = m.compare(g.inGroup(first), origin[i], conflicts)`,
				`			*m.placement = commands.Placement{Status: commands.Duplicate, Position: g.members[first].placement.Position}`)},
			pkg: e2e, run: "TestP2_RetriesFromSixteenClientsInOppositeOrders",
			says: `was acknowledged and answered as a conflict|was acknowledged as .*, in the log: `,
		},
		{
			name: "conflict-hashes-swapped", what: "a conflict is recorded with its two hashes swapped",
			promise: "P4: a conflict is reported, recorded with both hashes, counted",
			edits: []overlay.Edit{edit("commands/usage_conflicts.go", `FirstHash: hashText(firstHash), ConflictHash: hashText(hash)`,
				`FirstHash: hashText(hash), ConflictHash: hashText(firstHash)`)},
			pkg: e2e, run: "TestP4_ConflictsAreReported",
			says: `^the conflict is listed as`,
		},
	}
}

// serverBugs show when the database's disk, sessions or clock fail.
func serverBugs() []bug {
	return []bug{
		{
			name: "clock-turns-the-log-back", what: "recordedAt follows the clock, even below the last one",
			promise: "P10: the log is in the order of its times",
			edits: []overlay.Edit{edit("infra/postgres/eventlog/heads.go", `	if pl.now.After(h.recorded) {
		h.recorded = pl.now
	}
`, `	h.recorded = pl.now
`)},
			pkg: e2e, run: "TestP10_WrongClocks",
			says: `^recordedAt decreases \d+ times`,
		},
		{
			name: "sync-failed-is-done", what: "a COMMIT that ended with its session counts as done",
			promise: "P1: accepted is answered only after a durable commit", elsewhere: true,
			edits: []overlay.Edit{edit("infra/postgres/db.go", `	return fmt.Errorf("%w: %v", ErrCommitUnknown, err)`, `	return nil`)},
			pkg:   e2e, run: "TestP1_SyncFails",
			says: `was acknowledged as .*, in the log: |was acknowledged at .*, in the log at`,
		},
		{
			name: "refusal-tells-of-the-server", what: "a batch at a full disk is refused at once, with the database's message",
			promise: "P1: an event that is not durable is refused, to be retried",
			edits: []overlay.Edit{
				edit(writer, `[]string{"08", "40", "53", "55", "57"}`, `[]string{"08", "40", "55", "57"}`),
				edit("http/problem/refusals.go", `"The event log does not answer; the outcome of this request is unknown, send the same again"), err`,
					`"The event log does not answer; the outcome of this request is unknown, send the same again: "+err.Error()), err`),
			},
			pkg: e2e, run: "TestP1_DiskFull",
			says: `^a database error reached a client`,
		},
		{
			name: "ended-session-is-final", what: "the batch of a session that the server ended is refused",
			promise: "P1: the outcome behind a lost answer is looked up, never guessed",
			edits:   []overlay.Edit{edit(writer, `[]string{"08", "40", "53", "55", "57"}`, `[]string{"08", "40", "53", "55"}`)},
			pkg:     "./infra/postgres/eventlog", run: "TestP1_SubmitSurvivesTerminatedBackends",
			says: `^the event log is not available: `,
		},
		{
			name: "epoch-of-a-standby", what: "a promoted standby continues in the epoch of the former server",
			promise: "records of an ended history are never counted",
			edits: []overlay.Edit{edit("migrations/0013_server_lives.sql", `
     AND timeline IS NOT DISTINCT FROM ('x' || lpad(substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), 16, '0'))::bit(64)::bigint`, ``),
				edit("infra/postgres/eventlog/epoch.go", ` WHERE (h.system_identifier, h.timeline, h.started_at) IS DISTINCT FROM (s.system_identifier, s.timeline, s.started_at)
 ORDER BY`, ` WHERE (h.system_identifier, h.started_at) IS DISTINCT FROM (s.system_identifier, s.started_at)
 ORDER BY`)},
			pkg: "./infra/postgres/store", run: "TestP2_EveryAppendInAnotherLifeOfTheServerRaisesTheEpochFirst/promoted_without_a_restart",
			says: `do not rise`,
		},
	}
}

// processBugs show when a process is cut off, or frozen while others own its partitions.
func processBugs() []bug {
	return []bug{
		{
			name: "outage-ends-the-process", what: "a second failure in a row ends the consumer, and with it the process",
			promise: "P11: an outage costs latency only",
			edits: []overlay.Edit{edit("infra/watermill/log.go", `		case err != nil:
			pause := pauseAfter(failures)`, `		case err != nil && failures > 0:
			return
		case err != nil:
			pause := pauseAfter(failures)`)},
			pkg: e2e, run: "TestP2_NetworkFaults",
			says: `ended when its network failed`,
		},
		{
			name: "checkpoint-remembered", what: "a consumer continues from its own last position, whoever owned the partition meanwhile",
			promise: "P2: each event counts once", elsewhere: true,
			edits: []overlay.Edit{
				edit(runner, "	lostLoggedAt   atomic.Int64 // Unix seconds\n", "	lostLoggedAt   atomic.Int64 // Unix seconds\n	remembered  [events.Partitions]atomic.Int64\n"),
				edit(runner, "		l.last, l.taken = l.checkpoint.position, 0\n", `		l.last, l.taken = l.checkpoint.position, 0
		if at := r.remembered[l.partition].Load(); at > 0 {
			l.last = at
		}
`),
				edit(runner, "	r.report(done.Failed)\n", `	for _, l := range runs {
		r.remembered[l.partition].Store(l.last)
	}
	r.report(done.Failed)
`),
			},
			pkg: e2e, run: "TestP2_RebalanceStormWithAZombie",
			says: `^verdicts are applied once: partition|validated map.*, in the aggregates map`,
		},
		{
			name: "frozen-keeps-its-locks", what: "the session of a process frozen in a transaction is not ended",
			promise: "a fault of one instance does not delay the others",
			edits: []overlay.Edit{
				edit("infra/postgres/db.go", `"lock_timeout": "2s", "idle_in_transaction_session_timeout": "5s",`, `"lock_timeout": "2s",`),
				edit("cmd/meterplex/node/node.go", `	g.Go(func() error { return frozen.Run(ctx) })
`, `	_ = frozen
`),
			},
			pkg: e2e, run: "TestP2_ZombieInstance",
			says: `no tenant waits for the heads locked by the frozen instance`,
		},
		{
			name: "zombie-step-taken-for-made", what: "a refused cursor update counts as done if another relay has moved the cursor as far",
			promise: "P2: one live relay for each partition",
			edits: []overlay.Edit{edit("infra/relay/cursor.go", "s (partition, fence, becomes) USING (partition, fence)\n WHERE c.position = s.becomes`",
				"s (partition, fence, becomes) USING (partition)\n WHERE c.position >= s.becomes`")},
			pkg: "./infra/relay", run: "TestP2_StoppedRelayComesBackAsAZombie",
			says: `^never: the zombie's step is refused`,
		},
	}
}

// brokerBugs show when the broker is down, or has lost its data.
func brokerBugs() []bug {
	return []bug{
		{
			name: "door-shut-by-the-pipe", what: "usage is refused as soon as a hundred events are queued for the broker",
			promise: "P11: an outage of the broker costs latency only",
			edits:   []overlay.Edit{edit("cmd/meterplex/node/node.go", `const maxBacklog = 10_000_000`, `const maxBacklog = 100`)},
			pkg:     e2e, run: "TestP11_SixtySecondsWithoutABroker",
			says: `^\d+ requests had no answer|^no event was accepted without a broker`,
		},
		{
			name: "missing-topic-is-a-refusal", what: "a missing topic counts as a fault of the record",
			promise: "P11: the broker may lose everything",
			edits:   []overlay.Edit{edit("infra/kafka/publish_batch_produce.go", `kerr.InvalidRecord, kerr.PolicyViolation}`, `kerr.InvalidRecord, kerr.PolicyViolation, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID}`)},
			pkg:     e2e, run: "TestP11_TopicsRecreated",
			says: `events were withheld or failed to fold`,
		},
		{
			name: "topics-made-once", what: "topics are created only at the start",
			promise: "P11: the broker may lose everything",
			edits: []overlay.Edit{edit("cmd/meterplex/node/pipe.go", `		tidy:   func(ctx context.Context) error { return keepTopics(ctx, admin, logger) },
`, `		tidy:   func(ctx context.Context) error { <-ctx.Done(); return nil },
`)},
			pkg: e2e, run: "TestP11_TopicsWiped",
			says: `not within .*: the topics exist again`,
		},
		{
			name: "refusal-of-each-delivery", what: "an invalid message is refused again at each delivery",
			promise: "P2: a message's fate is decided once",
			edits:   []overlay.Edit{edit("commands/usage_commands.go", `events.KeyRefused(e.id, e.sum, e.item.Index)`, `events.KeyRefused(c.Ingest.NewID(c.Ingest.Now()).String(), e.sum, e.item.Index)`)},
			pkg:     e2e, run: "TestP2_UsageAsCommands",
			says: `refusals are in the log, want`,
		},
		{
			name: "unknown-subject-passed", what: "the relay skips an event of an unknown subject",
			promise: "P3: no event is dropped silently",
			edits: []overlay.Edit{edit("infra/relay/batch.go", `		if err != nil && !e.Withheld {
			p.refused = err
`, `		if _, known := e.Subject.Info(); err != nil && !e.Withheld && known {
			p.refused = err
`)},
			pkg: "./infra/relay", run: "TestSubjectThatIsNotRegisteredIsWithheld",
			says: `^the event was passed with 0 letters`,
		},
	}
}
