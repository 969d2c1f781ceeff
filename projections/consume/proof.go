package consume

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// findGhosts returns the indexes of records whose position in the log is empty or holds
// another event. LATERAL keeps it at one look-up by key per record.
const findGhosts = `
SELECT r.n - 1
FROM unnest($1::smallint[], $2::bigint[], $3::uuid[]) WITH ORDINALITY AS r (partition, position, event_id, n)
LEFT JOIN LATERAL (SELECT l.event_id FROM event_log_rows l WHERE l.partition = r.partition AND l.position = r.position) l ON true
WHERE l.event_id IS DISTINCT FROM r.event_id`

// prove compares records with the log's rows at their positions and marks the ghosts:
// records of history that the database lost, or of another log. So a wrong epoch cannot
// make foreign bytes fold. A record of the head's epoch needs no comparison while that epoch
// is the server's present life: only this log, in this life, can have written it.
func (r *Runner) prove(ctx context.Context, tx pgx.Tx, runs []*partitionRun) error {
	var partitions []int16
	var positions []int64
	var ids []uuid.UUID
	var doubted []*item
	for _, l := range runs {
		for i := range l.items {
			it := &l.items[i]
			known := l.checkpoint.living && it.place.Epoch == l.checkpoint.epoch && it.place.Log == r.Log.ID()
			if it.head || it.unread || it.proved || known {
				continue
			}
			partitions, positions = append(partitions, l.partition), append(positions, it.place.Position.Number)
			ids, doubted = append(ids, it.place.EventID), append(doubted, it)
		}
	}
	if len(doubted) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, findGhosts, partitions, positions, ids)
	if err != nil {
		return fmt.Errorf("compare records with the log: %w", err)
	}
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&n}, func() error { doubted[n].ghost = true; return nil })
	if err != nil {
		return fmt.Errorf("compare records with the log: %w", err)
	}
	for _, it := range doubted {
		it.proved = true
	}
	return nil
}

// reportGhost logs a dropped record that is not this log's, at most once a second: after a
// failover there may be thousands. Batch counts all.
func (r *Runner) reportGhost(place events.Place, why string) {
	now := time.Now().Unix()
	if r.ghostsLoggedAt.Swap(now) != now {
		r.Logger.Warn("dropped a record that is not this log's; meterplex_events_ghost_total counts all", "consumer", r.Consumer.Name,
			"position", place.Position.String(), "epoch", place.Epoch, "eventId", place.EventID, "why", why)
	}
}
