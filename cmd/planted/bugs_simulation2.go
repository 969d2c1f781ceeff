package main

import "github.com/meterplex/meterplex/cmd/planted/overlay"

// simulatedChangeBugs are bugs that the simulation finds by operations on a running
// service: retries, rebuilds, rewinds and restores.
func simulatedChangeBugs() []bug {
	return []bug{
		{
			name: "simulated-retried-twice", what: "a dead letter is retried in any state",
			promise: "P2: a retry counts once",
			edits: []overlay.Edit{
				edit("commands/dead_letters_retry.go", `	case ask.Attempt != 0 && ask.Attempt <= l.Attempts:`, `	case false:`),
				edit("domain/dead_letter.go", `	case l.Status != events.StatusFailed:`, `	case false:`),
			},
			says: `was retried again after it was mended`,
		},
		{
			name: "simulated-chunk-behind", what: "a generation joins at the position of the live one, read without a lock",
			promise: "P5: a rebuild is what the live figures are",
			edits:   []overlay.Edit{edit("projections/rebuild/rebuilder.go", `WHERE consumer = $1 AND partition = $2 AND joined ORDER BY generation FOR UPDATE`+"`", `WHERE consumer = $1 AND partition = $2 AND joined ORDER BY generation LIMIT 1`+"`")},
			says:    `generation \d+ (went from|has)`,
		},
		{
			name: "simulated-parked-rebuilt", what: "a rebuild counts events that wait for a retry",
			promise: "P5: a rebuild is what the live figures are",
			edits: []overlay.Edit{edit("projections/rebuild/fold.go", `		if failed != nil {
			now.positions[*failed] = true
		}`, `		if failed != nil && *failed < 0 {
			now.positions[*failed] = true
		}`)},
			says: `a rebuild failed|generation \d+ has`,
		},
		{
			name: "simulated-joined-unseen", what: "a consumer does not notice that a generation has joined",
			promise: "P5: a rebuild is what the live figures are",
			edits:   []overlay.Edit{edit("projections/consume/checkpoint.go", `	if tag.RowsAffected() != int64(rows) {`, `	if tag.RowsAffected() < int64(rows) {`)},
			says:    `generation \d+ has`,
		},
		{
			name: "simulated-rewound-short", what: "a rewind begins one position after the requested one",
			promise: "a rewind publishes every requested event again",
			edits:   []overlay.Edit{edit("commands/replays_rewind.go", `			to[p.Partition] = p.Number - 1`, `			to[p.Partition] = p.Number`)},
			says:    `is not on its topic`,
		},
		{
			name: "simulated-ended-history", what: "a record of a history that a restore ended counts as one of the present history",
			promise: "P1: an event that is not in the log is not counted",
			edits:   []overlay.Edit{edit("projections/consume/catchup.go", `	case r.epochs.owner(l.partition, position) != it.place.Epoch:`, `	case position < 0:`)},
			says:    `acknowledged .* before it was committed|a transaction passed|the aggregates are`,
		},
		{
			name: "simulated-epoch-again", what: "two restores raise the epoch to the same number",
			promise: "P1: an event that is not in the log is not counted",
			edits:   []overlay.Edit{edit("infra/postgres/eventlog/epoch.go", `greatest(h.epoch + 1, t.epoch + 1, extract(epoch FROM clock_timestamp())::int - 1577836800)`, `h.epoch + 1`)},
			says:    `acknowledged .* before it was committed|a transaction passed|the aggregates are`,
		},
	}
}
