package store

import (
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// fold is a statement by which an event changes rows. It names @event, the payload.
type fold string

// folds has the folds of each subject whose events change rows of the catalogue. The rows follow from the log: a fold reads no clock, and nothing but its
// event and rows that events before it made.
var folds = map[events.Subject][]fold{
	events.PriceDefined: {foldPrice},
}

// fold queues the changes that an event makes to the rows of its noun.
func (t *changeTx) fold(e *events.Pending) {
	for _, f := range folds[e.Subject] {
		t.queue("row of the catalogue", string(f), pgx.NamedArgs{"event": e.Payload})
	}
}

const foldPrice fold = `INSERT INTO prices (` + priceColumns + `)
SELECT key, version, name, currency, model, "microUnits", coalesce("packageSize", 0), coalesce(tiers, '[]')
FROM json_to_record(@event) AS e (key text, version bigint, name text, currency text, model text, "microUnits" bigint, "packageSize" bigint, tiers json)`
