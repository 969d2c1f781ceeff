package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

// modelBugs are for the tests that compare random histories with a model.
func modelBugs() []bug {
	return []bug{
		{
			name: "probe-stands-for-its-key", what: "a probe counts as the first of its key: the event behind it is a duplicate of an event that is not stored",
			promise: "P2: each (tenant, eventId) counts once",
			edits:   []overlay.Edit{edit(group, `len(g.members), !sub.ProbeOnly)}`, `len(g.members), true)}`)},
			pkg:     "./infra/postgres/eventlog", run: "TestP2_IngestMatchesItsModel",
			says: `is answered with .*, not|is told to be at`,
		},
		{
			name: "resolved-retried", what: "a resolved dead letter may be retried",
			promise: "P2: each event counts once, however often it is retried", elsewhere: true,
			edits: []overlay.Edit{edit("domain/dead_letter.go", `	case l.Status != events.StatusFailed:`, `	case l.Status == events.StatusDiscarded:`)},
			pkg:   "./projections", run: "TestP2_ConsumersMatchTheirModel",
			says: `the identity does not hold: |got \{Amount:.*, want \{Am`,
		},
		{
			name: "flip-of-all-periods", what: "the rebuild of one period is shown for all of them",
			promise: "P5: readers see the result of the flips in force",
			edits: []overlay.Edit{edit("infra/postgres/store/flip.go", `t.exec("flip", addFlip, r.Projection, r.TenantID, r.PeriodKey, r.Generation, flip)`,
				`t.exec("flip", addFlip, r.Projection, r.TenantID, "", r.Generation, flip)`)},
			pkg: "./projections", run: "TestP5_RebuildsInAnyOrderMatchTheirModel",
			says: ` sees .* instead of `,
		},
		{
			name: "rebuild-joins-unlocked", what: "a rebuild joins the live generation without its lock, while that one advances",
			promise: "P5: a projection rebuilt is the live one, byte for byte",
			edits:   []overlay.Edit{edit("projections/rebuild/rebuilder.go", `tx.QueryRow(ctx, lockLive, u.consumer.Name, u.partition)`, `tx.QueryRow(ctx, readLive, u.consumer.Name, u.partition)`)},
			pkg:     "./projections", run: "TestP5_RebuildsUnderTrafficAndCrashes",
			says: `generations stand apart in "\d`,
		},
		{
			name: "retry-not-counted", what: "a retried rejection is not counted as accepted again",
			promise: "P3: accepted = aggregated + rejected + in flight + parked",
			edits:   []overlay.Edit{edit("commands/dead_letters_retry.go", "	counts := events.Counts{Accepted: 1}\n	if l.Parked {", "	counts := events.Counts{}\n	if l.Parked {")},
			pkg:     "./projections", run: "TestP2_RetriesCountOnce",
			says: `the identity does not hold: `,
		},
		{
			name: "checkpoint-unlocked", what: "checkpoints are read without a lock, and moved without a check of their position",
			promise: "P2: each event counts once",
			edits: []overlay.Edit{
				edit("projections/consume/checkpoint.go", "ORDER BY c.partition, c.generation\nFOR UPDATE OF c`", "ORDER BY c.partition, c.generation`"),
				edit("projections/consume/checkpoint.go", `AND c.partition = n.partition AND c.position = n.was`, `AND c.partition = n.partition AND c.position <= n.position AND n.was >= 0`),
			},
			pkg: "./projections", run: "TestP2_TwoRunnersFoldOnce",
			says: `got \{Amount:.*, want \{Am`,
		},
	}
}

// explainBugs are in the explanations of figures.
func explainBugs() []bug {
	return []bug{
		{
			name: "known-before-itself", what: "an event is not included in figures as of its own position",
			promise: "P12: a figure is explained as it was known at any time",
			edits:   []overlay.Edit{edit("projections/usage/as_of.go", `		if c.cause > position.Number ||`, `		if c.cause >= position.Number ||`)},
			pkg:     "./projections", run: "TestP12_FiguresAsOfAPositionDoNotChange",
			says: `(rest \d+, )?at .*: .* instead of `,
		},
		{
			name: "page-begins-with-the-last", what: "a page of an explanation begins with the last event of the previous page",
			promise: "P12: a figure is explained by its events, adding up exactly",
			edits:   []overlay.Edit{edit("projections/usage/explain.go", `	if c.position <= x.place.after {`, `	if c.position < x.place.after {`)},
			pkg:     "./projections", run: "TestP12_ExplanationsAddUp",
			says: ` after \d+, sum |the events add up to`,
		},
		{
			name: "lineage-of-one-cause", what: "the lineage of an event shows only its nearest cause",
			promise: "P12: a lineage is what the log says",
			edits: []overlay.Edit{edit("projections/audit/lineage.go", `		l.known[cause.EventID] = cause
		at = cause
`, `		l.known[cause.EventID] = cause
		if at = cause; at != nil {
			return nil
		}
`)},
			pkg: "./projections", run: "TestP12_LineageMatchesTheLog",
			says: ` within \d+: .* instead of `,
		},
	}
}

// recordBugs are in the handling of invalid records and dead letters.
func recordBugs() []bug {
	return []bug{
		{
			name: "letter-lost-goes-on", what: "a dead letter that cannot be written is logged, and the consumer continues",
			promise: "P3: no event is dropped silently", elsewhere: true,
			edits: []overlay.Edit{edit("projections/consume/failures.go", `		if _, err := r.Log.AppendTx(ctx, tx, letters); err != nil {
			return folded{}, fmt.Errorf("append a dead letter: %w", err)
		}
		return all, nil
`, `		point, err := tx.Begin(ctx)
		if err != nil {
			return folded{}, err
		}
		if _, err := r.Log.AppendTx(ctx, point, letters); err != nil {
			r.Logger.Error("append a dead letter", "err", err)
			return all, point.Rollback(ctx)
		}
		return all, point.Commit(ctx)
`)},
			pkg: "./projections", run: "TestP3_AFailingDeadLetterStopsTheConsumer",
			says: `a record was acknowledged whose dead letter is not there`,
		},
		{
			name: "stray-parked-each-time", what: "a foreign record makes a dead letter at each delivery",
			promise: "P2: a record that cannot be read is parked once",
			edits: []overlay.Edit{edit("projections/consume/strays.go", `	p.DedupeKey = events.KeyParked(record)
`, ``)},
			pkg: "./projections", run: "TestP2_UnidentifiableRecordsAreParkedOnce",
			says: `Code:record_undecodable`,
		},
		{
			name: "epoch-not-compared", what: "a record of a history that a restore ended is folded",
			promise: "records of an ended history are never counted",
			edits:   []overlay.Edit{edit(catchup, `	case r.epochs.owner(l.partition, position) != it.place.Epoch:`, `	case it.place.Epoch == 0:`)},
			pkg:     "./projections", run: "TestRecordsOfAnEndedHistoryAreDropped",
			says: `^told .*, aggregates map|^aggregates map`,
		},
		{
			name: "epoch-not-read", what: "a record whose value and headers have different epochs is accepted",
			promise: "records of an ended history are never counted",
			edits:   []overlay.Edit{edit("events/codec/wire.go", `e.Position != place.Position || e.Epoch != place.Epoch || e`, `e.Position != place.Position || e`)},
			pkg:     "./events/codec", run: "TestFromRecordRefusesInconsistentRecords",
			says: `^other epoch: <nil>`,
		},
		{
			name: "tail-before-it-is-sent", what: "events that the relay has not sent yet count as lost, and are read from the log",
			promise: "P11: a consumer waits for records under way",
			edits: []overlay.Edit{edit("projections/consume/source.go", `		case g.relayed < s.target:
		case s.since.IsZero():`, `		case s.since.IsZero():`)},
			pkg: "./projections", run: "TestLostTailIsHealed",
			says: `^read up to \d+, which was not published`,
		},
	}
}

// batchBugs are in the decoding, the memory and the dedupe of a batch.
func batchBugs() []bug {
	return []bug{
		{
			name: "room-of-an-unanswered-batch", what: "the memory of an unanswered batch is reused for the next one",
			promise: "P2: each (tenant, eventId) counts once",
			edits: []overlay.Edit{edit("commands/usage.go", `		return nil, err // the log may be at work on them still
`, `		c.release(submitted)
		return nil, err
`)},
			pkg: "./commands", run: "TestP2_MemoryOfAnUnansweredBatchIsNotReused",
			says: `became`,
		},
		{
			name: "first-of-another-tenant", what: "in a group, events of two tenants with the same eventId count as one",
			promise: "P2: each (tenant, eventId) counts once",
			edits: []overlay.Edit{
				edit("infra/postgres/eventlog/firsts.go", ` ^ binary.LittleEndian.Uint64(p.TenantID[8:])`, ` ^ 0*binary.LittleEndian.Uint64(p.TenantID[8:])`),
				edit("infra/postgres/eventlog/firsts.go", `s.DedupeKey == p.DedupeKey && s.TenantID == p.TenantID`, `s.DedupeKey == p.DedupeKey`),
			},
			pkg: "./infra/postgres/eventlog", run: "TestP2_TheFirstOfEachKeyIsFound",
			says: `is said to be the key of member`,
		},
		{
			name: "escaped-id-in-short", what: "an eventId with escapes is stored in compact form: its payload is read back as invalid JSON",
			promise: "P1: an acknowledged event is in the log as it was sent",
			edits:   []overlay.Edit{edit("domain/usage_event.go", `if bytes.IndexByte(in.eventID.chars, '"') >= 0 || bytes.IndexByte(in.eventID.chars, '\\') >= 0 {`, `if false {`)},
			pkg:     "./domain", run: "TestDecodedEvent",
			says: `got +&\{EventID:a`,
		},
	}
}
