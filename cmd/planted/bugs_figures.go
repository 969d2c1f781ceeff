package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

const projections = "./projections"

// figureBugs are in the sums, live and rebuilt, and in the answers about them.
func figureBugs() []bug {
	const rebuild = "projections/usage/fold_range.go"
	return []bug{
		{
			name: "chunk-begins-with-the-last", what: "a chunk of a rebuild begins with the last event of the previous one",
			promise: "P5: a projection rebuilt is the live one, byte for byte",
			edits:   []overlay.Edit{edit(rebuild, `l.position > $2 AND l.position <= $3 AND l.topic = {usage.validated} ORDER BY`, `l.position >= $2 AND l.position <= $3 AND l.topic = {usage.validated} ORDER BY`)},
			pkg:     projections, run: "TestP5_ARebuiltGenerationIsTheLiveOneByteForByte",
			says: `^usage_aggregates: generation \d+ has`,
		},
		{
			name: "piece-skips-one", what: "a rebuild that pauses skips one event when it continues",
			promise: "P5: a projection rebuilt is the live one, byte for byte",
			edits:   []overlay.Edit{edit(rebuild, `s.After < upTo; s.After = s.UpTo {`, `s.After < upTo; s.After = s.UpTo + 1 {`)},
			pkg:     projections, run: "TestP5_ARebuildThatRestsFoldsEveryPiece",
			says: `^generation \d+ has`,
		},
		{
			name: "last-use-goes-back", what: "the time of the last use is that of the event folded last",
			promise: "a figure does not depend on the order in which its events come",
			edits:   []overlay.Edit{edit("projections/usage/add.sql", `GREATEST(a.last_event_at, excluded.last_event_at)`, `excluded.last_event_at`)},
			pkg:     projections, run: "TestP2_RedeliveryIsFoldedOnce",
			says: `got \{Amount:.*, want \{Am`,
		},
		{
			name: "sum-of-64-bits", what: "a figure is stored in 64 bits",
			promise: "a sum is exact, whatever its size", elsewhere: true,
			edits: []overlay.Edit{edit("migrations/0003_projections.sql", `  amount          numeric  NOT NULL, -- a bigint`, `  amount          bigint   NOT NULL, -- a bigint`)},
			pkg:   projections, run: "TestP2_RedeliveryIsFoldedOnce",
			says: `got \{Amount:.*, want \{Am|aggregates, want|not so within`,
		},
	}
}

// limitBugs are in the answers about figures and remaining amounts.
func limitBugs() []bug {
	const granted = "projections/entitlements/granted.go"
	return []bug{
		{
			name: "answered-before-the-fold", what: "a figure is returned for a position before all its verdicts are folded",
			promise: "no answer is older than it states",
			edits: []overlay.Edit{edit("projections/query/wait.go", `		a.target = s.lastValidated
`, `		a.target = a.position
`)},
			pkg: "./projections/query", run: "TestArrivalUnderTraffic",
			says: `(?i)folded:15 want:false\}: true`,
		},
		{
			name: "check-of-last-month", what: "a tenant's cached usage is still served in the next month",
			promise: "a limit starts again with its period",
			edits:   []overlay.Edit{edit(granted, `return !now.Before(g.from) && now.Before(g.month) }`, `return !now.Before(g.from) }`)},
			pkg:     projections, run: "TestCachedChecksCostNoStatement",
			says: `^a new month begins at nothing`,
		},
		{
			name: "last-of-a-quota-refused", what: "the last unit of a quota is refused",
			promise: "a granted amount may be used in full",
			edits:   []overlay.Edit{edit(granted, `of.left < amount {`, `of.left <= amount {`)},
			pkg:     projections, run: "TestChecks",
			says: `^got +\{"allowed":false,"feature":"hard"`,
		},
		{
			name: "drift-of-amounts-unseen", what: "two generations with the same number of events count as equal",
			promise: "differences between the log and the figures are reported",
			edits: []overlay.Edit{edit("projections/usage/diff.go", `WHERE $12::boolean OR s.live IS DISTINCT FROM s.rebuilt OR s.live_count`,
				`WHERE $12::boolean OR s.live_count`)},
			pkg: e2e, run: "TestP5_VerifyFindsPlantedDrift",
			says: `^with drift, exit code 0|^repair: exit code 0`,
		},
	}
}

// answerTextBugs are in the answers about events and figures: lists, receipts, explanations.
func answerTextBugs() []bug {
	const list, receipt = "projections/audit/usage_events.go", "projections/audit/receipt.go"
	return []bug{
		{
			name: "list-ends-at-a-page-of-nothing", what: "a list of usage ends at an empty page",
			promise: "P3: accepted usage is listed",
			edits:   []overlay.Edit{edit(list, "	page.Next = cursorBelow(s.floor)\n", "	if len(page.Data) > 0 {\n		page.Next = cursorBelow(s.floor)\n	}\n")},
			pkg:     projections, run: "TestSparseUsageEventsAreListed",
			says: `^behind a page of nothing are listed`,
		},
		{
			name: "list-skips-one", what: "a page of usage that ends at its scan limit skips the next event",
			promise: "P3: accepted usage is listed",
			edits:   []overlay.Edit{edit(list, `page.Next = cursorBelow(s.floor)`, `page.Next = cursorBelow(s.floor - 1)`)},
			pkg:     projections, run: "TestSparseUsageEventsAreListed",
			says: `^on \d pages are listed`,
		},
		{
			name: "list-tells-anothers-refusal", what: "the refusals of position 1 are looked up by a prefix that matches 10 to 19, too",
			promise: "P12: the outcome of an event is shown",
			edits: []overlay.Edit{edit(list, `r.dedupe_key > 'x/' || p.position || '/' AND r.dedupe_key < 'x/' || p.position || '0'`,
				`r.dedupe_key > 'x/' || p.position AND r.dedupe_key < 'x/' || p.position || ':'`)},
			pkg: projections, run: "TestReceiptsOfSimilarPositionsAreDistinct",
			says: `^the first event is listed as`,
		},
		{
			name: "receipt-tells-anothers-refusal", what: "a receipt shows the refusals of all positions that begin with its own digits",
			promise: "P12: the outcome of an event is shown",
			edits: []overlay.Edit{edit(receipt, `l.dedupe_key > 'x/' || recorded.position || '/' AND l.dedupe_key < 'x/' || recorded.position || '0'`,
				`l.dedupe_key > 'x/' || recorded.position AND l.dedupe_key < 'x/' || recorded.position || ':'`)},
			pkg: projections, run: "TestReceiptsOfSimilarPositionsAreDistinct",
			says: `^the receipt of the first event says`,
		},
		{
			name: "moment-without-itself", what: "a figure as of a time lacks the events recorded at exactly that time",
			promise: "P12: a figure is explained as it was known at any time",
			edits:   []overlay.Edit{edit("projections/usage/as_of.go", `SELECT recorded_until($1, $2, true)`, `SELECT recorded_until($1, $2, false)`)},
			pkg:     projections, run: "TestFiguresAsOfATimeIncludeEventsOfThatTime",
			says: `from its recording an event counts`,
		},
		{
			name: "first-refusal-told", what: "an event that was refused several times shows its first refusal",
			promise: "P12: events left out of a figure are shown with the reason",
			edits: []overlay.Edit{edit("projections/usage/explain_left_out.go", `u.VerdictPosition.Number > last[raw].VerdictPosition.Number {`,
				`last[raw].VerdictPosition.Number == 0 {`)},
			pkg: projections, run: "TestP12_TheLastRefusalIsListed",
			says: `^left out for feature_not_found`,
		},
	}
}
