package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

// withheldBugs are in the handling of an event that the pipe cannot carry.
func withheldBugs() []bug {
	const withhold = "infra/relay/withhold.go"
	const each = "P2: each event counts once"
	return []bug{
		{
			name: "withheld-though-folded", what: "an event that can no longer be published is parked, although its consumer has folded it",
			promise: each,
			edits:   []overlay.Edit{edit(withhold, `return len(positions) > 0 && slices.Min(positions) >= at.Number, nil`, `return len(positions) < 0 && slices.Min(positions) >= at.Number, nil`)},
			pkg:     projections, run: "TestP3_WithheldAfterItWasReadCountsOnce",
			says: `^the identity does not hold|^\{Accepted:.*, want \{Acc`,
		},
		{
			name: "withheld-at-the-checkpoint", what: "the event at its consumer's checkpoint counts as not folded",
			promise: each,
			edits:   []overlay.Edit{edit(withhold, `slices.Min(positions) >= at.Number, nil`, `slices.Min(positions) > at.Number, nil`)},
			pkg:     projections, run: "TestP2_RetryThatIsWithheldAfterItWasReadCountsOnce",
			says: `^the identity does not hold: `,
		},
		{
			name: "folded-though-withheld", what: "a consumer folds a withheld event if it has the event's record",
			promise: each,
			edits:   []overlay.Edit{edit(catchup, "			chain[len(chain)-1].Withheld = withheld\n", "")},
			pkg:     projections, run: "TestP3_ReadAfterItWasWithheldCountsOnce",
			says: `^the identity does not hold|^\{Accepted:.*, want \{Acc`,
		},
		{
			name: "stand-in-at-its-word", what: "a stand-in record is trusted without a check of the database",
			promise: "P3: no event is dropped silently",
			edits: []overlay.Edit{
				edit(catchup, `it.place.Previous == l.last && (withheld || !it.event.Withheld) {`, `it.place.Previous == l.last {`),
				edit(catchup, `chain[len(chain)-1].Withheld = withheld`, `chain[len(chain)-1].Withheld = withheld || it.event.Withheld`),
			},
			pkg: projections, run: "TestP3_StandInThatTheDatabaseDoesNotKnowIsReadFromTheLog",
			says: `^the identity does not hold|^\{Accepted:.*, want \{Acc`,
		},
		{
			name: "rejection-counted-as-parked", what: "the retry of a rejection that the pipe could not carry decrements the parked count",
			promise: "P3: accepted = aggregated + rejected + in flight + parked",
			edits: []overlay.Edit{edit("domain/dead_letter.go", `	return parks && (topic == events.TopicUsageRaw || topic == events.TopicUsageValidated)`,
				`	return parks && topic >= events.TopicUsageRaw`)},
			pkg: "./infra/postgres/store", run: "TestP3_RetryOfAWithheldRejectionIsAcceptedAgain",
			says: `^accepted \d+, rejected \d+, parked -\d`,
		},
		{
			name: "policy-before-its-own-batch", what: "an event that policy refuses is not compared with the events of its own batch",
			promise: "P4: the same id with another payload is reported",
			edits:   []overlay.Edit{edit(group, "		case first != i:\n", "		case first != i && !m.submitted.ProbeOnly:\n")},
			pkg:     "./infra/postgres/eventlog", run: "TestP4_ConflictWithinABatchComesBeforePolicy",
			says: `^\[\d( \d)+\], want \[`,
		},
		{
			name: "trimmed-by-the-first", what: "rows of the pipe are deleted as soon as the fastest group has read them",
			promise: "P3: no event is dropped silently",
			edits: []overlay.Edit{edit("infra/pgpipe/trim.go", `ORDER BY o.last_processed_transaction_id, o.offset_acked LIMIT 1))`,
				`ORDER BY o.last_processed_transaction_id DESC, o.offset_acked DESC LIMIT 1))`)},
			pkg: "./infra/pgpipe", run: "TestTrim",
			says: `rows are left; a group has not read them`,
		},
	}
}
