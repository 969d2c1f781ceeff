package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

const (
	runner  = "projections/consume/runner.go"
	catchup = "projections/consume/catchup.go"
)

// foldsUnchecked makes a consumer fold events that it has applied already.
func foldsUnchecked() []overlay.Edit {
	return []overlay.Edit{
		edit(catchup, `	case position <= l.last:
		done.Duplicates++`, `	case position <= 0:
		done.Duplicates++`),
		edit(catchup, `		if !it.unread && it.place.Previous == l.last && (withheld || !it.event.Withheld) {
			chain, l.last = append(chain, it.event), it.place.Position.Number`, `		if !it.unread && (it.place.Previous == l.last || it.place.Position.Number <= l.last) {
			chain, l.last = append(chain, it.event), max(l.last, it.place.Position.Number)`),
	}
}

// consumeBugs are in the consumption of records and in the checkpoints.
func consumeBugs() []bug {
	return []bug{
		{
			name: "applied-unchecked", what: "a record is folded without a duplicate check",
			promise: "P2: whatever is delivered again counts once", elsewhere: true,
			edits: foldsUnchecked(),
			pkg:   "./projections", run: "TestP2_RedeliveryIsFoldedOnce",
			says: `got \{Amount:.*, want \{Am`,
		},
		{
			name: "position-after-last", what: "a consumer accepts the next higher position, whatever lies between",
			promise: "P3: a gap in the records is read from the log",
			edits:   []overlay.Edit{edit(catchup, `it.place.Previous == l.last && (`, `it.place.Previous >= l.last && (`)},
			pkg:     "./projections", run: "TestGapIsHealedFromTheLog",
			says: `^applied \d+, told `,
		},
		{
			name: "fold-again-when-safe", what: "a batch whose COMMIT had no answer is folded again at once, because the driver calls that safe",
			promise: "P2: each event counts once",
			edits: []overlay.Edit{
				edit(runner, `	"github.com/jackc/pgx/v5"
`, `	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
`),
				edit(runner, `	if err := commit(ctx, tx); err != nil {
		return projections.Batch{}, err
	}
`, `	err = commit(ctx, tx)
	if pgconn.SafeToRetry(err) {
		err = pgx.BeginFunc(ctx, r.Pool, func(tx pgx.Tx) error {
			_, err := r.foldAll(ctx, tx, done.Applied, runs, careful)
			return err
		})
	}
	if err != nil {
		return projections.Batch{}, err
	}
`),
			},
			pkg: "./projections", run: "TestP2_CommitWithoutAnAnswerCountsOnce",
			says: `a commit without an answer is told as <nil>`,
		},
		{
			name: "checkpoint-unguarded", what: "a checkpoint is moved without a check of its present position",
			promise: "P2: each event counts once",
			edits:   []overlay.Edit{edit("projections/consume/checkpoint.go", `	if tag.RowsAffected() != int64(rows) {`, `	if tag.RowsAffected() > int64(rows) {`)},
			pkg:     "./projections", run: "TestCheckpointMovesByCompareAndSet",
			says: `^<nil>, aggregates map\[`,
		},
	}
}

// failureBugs are in the handling of a batch that cannot be folded.
func failureBugs() []bug {
	return []bug{
		{
			name: "poison-blocks", what: "a failed batch is not folded again with savepoints: one bad event stops a partition",
			promise: "P3: an event that cannot be folded is parked, its neighbours are folded",
			edits: []overlay.Edit{edit(runner, `		if ofData(err) {
			done, err`, `		if ofData(err) && len(runs) == 0 {
			done, err`)},
			pkg: "./projections", run: "TestP2_PoisonLeavesItsNeighboursExact",
			says: `the handler panicked: boom`,
		},
		{
			name: "poison-twice", what: "the search for a poison event folds its healthy neighbour with both halves",
			promise: "P2: each event counts once", elsewhere: true,
			edits: []overlay.Edit{edit("projections/consume/failures.go", `range [][]events.Envelope{batch[:len(batch)/2], batch[len(batch)/2:]} {`,
				`range [][]events.Envelope{batch[:(len(batch)+1)/2], batch[len(batch)/2:]} {`)},
			pkg: "./projections", run: "TestP2_PoisonLeavesItsNeighboursExact",
			says: `^aggregates map\[`,
		},
		{
			name: "outage-dead-letters", what: "a lock timeout counts as a fault of the event",
			promise: "P11: an outage costs latency only", elsewhere: true,
			edits: []overlay.Edit{edit("projections/consume/failures.go", `	case "22", "23", "54", "P0":`, `	case "22", "23", "54", "P0", "55":`)},
			pkg:   "./projections", run: "TestLockTimeoutsAreRetried",
			says: `taken without the head`,
		},
	}
}

// sourceBugs are in the events that a consumer reads from the log.
func sourceBugs() []bug {
	return []bug{
		{
			name: "withheld-folded", what: "a withheld event is counted, and so is its dead letter",
			promise: "P2: each event counts once",
			edits:   []overlay.Edit{edit("projections/consumer.go", `return c.Topic != 0 && e.W`, `return c.Topic < 0 && e.W`)},
			pkg:     "./projections", run: "TestWithheldIsPassedWithoutAFold",
			says: `^told .* applied:`,
		},
		{
			name: "withheld-lost", what: "a consumer of the log skips the events that the pipe could not carry",
			promise: "a read model covers the whole log",
			edits:   []overlay.Edit{edit("projections/consumer.go", `return c.Topic != 0 && e.W`, `return c.Topic >= 0 && e.W`)},
			pkg:     "./projections", run: "TestLogReadersFoldWithheldEvents",
			says: `^used \d+, want \d+; told`,
		},
		{
			name: "lost-tail-passed", what: "with the filter by subject the end of a range is not read: a checkpoint passes missing events",
			promise: "P3: the checkpoint passes only events that were read",
			edits: []overlay.Edit{
				edit("infra/postgres/eventlog/read.go", `AND (l.subject = ANY ($5::smallint[]) OR l.position = s.up_to)`, `AND l.subject = ANY ($5::smallint[])`),
				edit(catchup, `		lost := n < limit &&`, `		if n < limit {
			to = list[i].UpTo
		}
		lost := n < limit &&`),
			},
			pkg: "./projections", run: "TestFollowStopsBeforeALostTail",
			says: `the checkpoint stands at \d+, the last event is`,
		},
		{
			name: "subject-left-out", what: "the filter by subject lacks a subject that the fold needs",
			promise: "a change of a subscription holds once it is answered",
			edits: []overlay.Edit{edit("projections/entitlements/fold.go", `return []events.Subject{events.SubscriptionCreated, events.SubscriptionChanged, events.UsageValidated}`,
				`return []events.Subject{events.SubscriptionCreated, events.UsageValidated}`)},
			pkg: "./projections", run: "TestGrantsFollowSubscriptions",
			says: `trialing with another plan: `,
		},
		{
			name: "plans-kept-of-nothing", what: "a plan made while the tables are empty may scan them when they have grown",
			promise: "the cost of an event does not grow with the log",
			edits:   []overlay.Edit{edit("infra/postgres/db.go", `		"enable_seqscan":  "off", "enable_bitmapscan"`, `		"enable_bitmapscan"`)},
			pkg:     "./projections", run: "TestKeptPlansUseTheKeys",
			says: `Seq Scan`,
		},
	}
}

// foldBugs are in the meaning of events.
func foldBugs() []bug {
	const aggregates, validator = "projections/usage/fold.go", "projections/validate/validator.go"
	return []bug{
		{
			name: "fold-clock", what: "the fold takes the time from the clock",
			promise: "P5: a projection rebuilt is the live one, byte for byte",
			edits:   []overlay.Edit{edit(aggregates, `Delta{v.Amount, v.Count, v.Timestamp}, nil`, `Delta{v.Amount, v.Count, time.Now()}, nil`)},
			pkg:     "./projections", run: "TestP5_ARebuiltGenerationIsTheLiveOneByteForByte",
			says: `^usage_aggregates: generation \d+ has`,
		},
		{
			name: "fold-float", what: "amounts are summed as float64",
			promise: "a sum is exact, whatever its size", elsewhere: true,
			edits: []overlay.Edit{edit(aggregates, `s.amount.Add(&s.amount, big.NewInt(d.Amount))`, `s.amount.Add(&s.amount, big.NewInt(int64(float64(d.Amount))))`)},
			pkg:   "./projections", run: "TestP2_RedeliveryIsFoldedOnce",
			says: `got \{Amount:.*, want \{Am`,
		},
		{
			name: "no-match-dropped", what: "usage that matches no subscription leaves nothing behind",
			promise: "P3: accepted = aggregated + rejected + in flight + parked", elsewhere: true,
			edits: []overlay.Edit{edit(validator, `		return append(pending, rejected(e, j, id))`, `		return pending`)},
			pkg:   "./projections", run: "TestP3_IdentityHoldsAtEveryMoment",
			says: `Undecided:\d+ .*Missing:`,
		},
		{
			name: "known-later", what: "a verdict uses the present history, not the history at the event's position",
			promise: "P5: a verdict does not depend on when it is taken",
			edits:   []overlay.Edit{edit(validator, `domain.Decide(h, e.Position.Number, `, `domain.Decide(h, 1<<62, `)},
			pkg:     "./projections", run: "TestValidatorUsesTheHistoryUpToThePosition",
			says: `^counts \{Accepted:`,
		},
		{
			name: "unknown-version-skipped", what: "an event of an unknown version is skipped",
			promise: "P3: no event is dropped silently",
			edits:   []overlay.Edit{edit(aggregates, "func (s *usageSums) add(e *events.Envelope) *projections.Failure {\n", "func (s *usageSums) add(e *events.Envelope) *projections.Failure {\n	if _, known := e.Subject.Info(); !known {\n		return nil\n	}\n")},
			pkg:     "./projections", run: "TestP2_PoisonIsParkedOnce",
			says: `dead letters: \[\]`,
		},
		{
			name: "unknown-fold-started", what: "a binary starts that lacks a fold version in use",
			promise: "P5: a generation always uses its own fold",
			edits:   []overlay.Edit{edit("projections/versions.go", `AND g.fold_version <> ALL ($2::text[])`, `AND g.fold_version = '' AND g.fold_version <> ALL ($2::text[])`)},
			pkg:     "./projections", run: "TestP5_ABinaryHoldsEveryVersionInUse",
			says: `a binary without the version would start`,
		},
		{
			name: "unread-parked-nowhere", what: "an event that the validator cannot read is logged and skipped",
			promise: "P3: no event is dropped silently",
			edits: []overlay.Edit{edit(validator, `			result.Failed = append(result.Failed, *failure)
			continue`, `			continue`)},
			pkg: "./projections", run: "TestValidatorParksUnreadableEvents",
			says: `^counts \{Accepted:`,
		},
		{
			name: "letters-consumed-by-nobody", what: "dead letters are published, but no consumer reads them",
			promise: "P3: a rejected event can be retried", elsewhere: true,
			edits: []overlay.Edit{edit("cmd/meterplex/node/consumers.go", "		all = append(all, p.Consumer)\n", "		if p.Consumer.Role != \"deadletter\" {\n			all = append(all, p.Consumer)\n		}\n")},
			pkg:   "./cmd/meterplex/e2e", run: "TestP3_RejectedThenRetried",
			says: `the backlog drains \(0 unpublished, behind: meterplex-dead-letter-handler\)`,
		},
	}
}

// foldVersionBugs break the rule that a generation has one fold.
func foldVersionBugs() []bug {
	return []bug{
		{
			name: "fold-version-unknown-newest", what: "a generation of an unknown fold version is folded by the newest",
			promise: "P5: a generation is only ever folded by its own version",
			edits:   []overlay.Edit{edit("projections/projection.go", "	if i < 0 {\n		return fold, fmt", "	if i < 0 && len(v) > 0 {\n		return v[len(v)-1].Fold, nil\n	}\n	if i < 0 {\n		return fold, fmt")},
			pkg:     "./projections", run: "TestP5_AnUnknownVersionIsAnErrorOfEveryProjection",
			says: `the error is`,
		},
		{
			name: "entitlements-by-one-version", what: "entitlement_reads folds every generation by v1",
			promise: "P5: a generation is only ever folded by its own version",
			edits:   []overlay.Edit{edit("projections/entitlements/fold.go", "h.Folds.Of(in.FoldVersion)", "h.Folds.Of(V1)")},
			pkg:     "./projections", run: "TestP5_EntitlementsAreRebuiltByANewVersionBesideTheLiveOne",
			says: `live 12, rebuilt 12; want 12 and 24`,
		},
		{
			name: "dead-letters-by-one-version", what: "dead_letter_events folds every generation by v1",
			promise: "P5: a generation is only ever folded by its own version",
			edits:   []overlay.Edit{edit("projections/deadletters/fold.go", "h.Folds.Of(in.FoldVersion)", "h.Folds.Of(V1)")},
			pkg:     "./projections", run: "TestP5_DeadLettersAreRebuiltByANewVersionBesideTheLiveOne",
			says: `live 2, rebuilt [12]; want 2 and 0`,
		},
	}
}

// readBugs are in the reads of projections.
func readBugs() []bug {
	return []bug{
		{
			name: "reads-mixed", what: "each statement of a read has its own snapshot",
			promise: "P5: readers never see a mixture", elsewhere: true,
			edits: []overlay.Edit{edit("projections/query/snapshot.go", "beginSnapshot = `begin isolation level repeatable read read only`", "beginSnapshot = `begin isolation level read committed read only`")},
			pkg:   "./projections", run: "TestP5_ReadersNeverFailNorSeeAMixtureWhileItFlips",
			says: `^a read saw`,
		},
		{
			name: "flip-of-the-unfed", what: "a generation is promoted that is not current in every partition",
			promise: "P5: a projection rebuilt is the live one, byte for byte",
			edits:   []overlay.Edit{edit("infra/postgres/store/flip.go", "generationsSQL, r.Projection, r.Consumer, r.Generation)", "generationsSQL, r.Projection, r.Consumer, -1)")},
			pkg:     "./projections", run: "TestARebuildThatCannotFoldFails",
			says: `<nil> instead of generation_broken`,
		},
		{
			name: "viewer-not-named", what: "reads for a tenant run under the service's own role",
			promise: "P9: no tenant sees anything of another",
			edits:   []overlay.Edit{edit("projections/query/snapshot.go", "becomeTenant  = `set local role meterplex_tenant`", "becomeTenant  = `set local role meterplex_worker`")},
			pkg:     "./projections", run: "TestP9_ReadsShowATenantOnlyItsOwn",
			says: `sees another tenant's`,
		},
	}
}
