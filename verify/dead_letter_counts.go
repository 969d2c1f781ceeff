package verify

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// The rows of dead_letter_counts that are not the number of dead letters in dead_letter_events, and those that are missing. A row may have
// no letters.
const differentCountsSQL = `
WITH letters AS (
  SELECT d.tenant_id, d.fingerprint, d.topic, s.slot, count(*) FILTER (WHERE d.status = 'FAILED') AS failed,
  count(*) FILTER (WHERE d.status = 'RETRYING') AS retrying,
         count(*) FILTER (WHERE d.status = 'RESOLVED') AS resolved, count(*) FILTER (WHERE d.status = 'DISCARDED') AS discarded
  FROM dead_letter_events d CROSS JOIN LATERAL (VALUES (-1), (floor(extract(epoch FROM d.first_failed_at) / 300)::bigint)) s (slot)
  WHERE d.generation = $1 AND d.partition = $2
  GROUP BY d.tenant_id, d.fingerprint, d.topic, s.slot),
counts AS (
  SELECT tenant_id, fingerprint, topic, slot, failed, retrying, resolved, discarded FROM dead_letter_counts
  WHERE generation = $1 AND partition = $2 AND (failed, retrying, resolved, discarded) <> (0, 0, 0, 0))
SELECT tenant_id, fingerprint, slot, concat_ws(' ', c.failed, c.retrying, c.resolved, c.discarded), concat_ws(' ', l.failed, l.retrying,
l.resolved, l.discarded)
FROM letters l FULL JOIN counts c USING (tenant_id, fingerprint, topic, slot)
WHERE (l.failed, l.retrying, l.resolved, l.discarded) IS DISTINCT FROM (c.failed, c.retrying, c.resolved, c.discarded)
ORDER BY 1, 2, 3`

// compareCounts compares the counts of a generation's dead letters, from which groups are read, with the dead letters.
func (x *pass) compareCounts(ctx context.Context, tx pgx.Tx, generation int) error {
	var tenant uuid.UUID
	var fingerprint, counted, there string
	var slot int64
	err := each(ctx, tx, differentCountsSQL, []any{generation, x.p}, []any{&tenant, &fingerprint, &slot, &counted, &there}, func() error {
		x.deadLetters.fault("generation %d counts %q dead letters of %s with the fingerprint %s in slot %d, it has %q (FAILED, "+
			"RETRYING, RESOLVED, DISCARDED)",
			generation, counted, tenant, fingerprint, slot, there)
		return nil
	})
	if err != nil {
		return fmt.Errorf("compare dead_letter_counts: %w", err)
	}
	return nil
}
