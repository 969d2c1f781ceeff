package verify

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// pointersSQL derives from the flips which pointer a tenant's period uses; the column live must
// agree. A live generation needs 32 serving checkpoints, one of a single tenant needs 1.
const (
	pointersSQL = `SELECT p.projection, p.tenant_id::text, p.period_key, p.generation, p.live,
 p.undone_flip IS NULL AND NOT EXISTS (SELECT FROM projection_pointers o WHERE o.projection = p.projection AND o.flip > p.flip
 AND o.undone_flip IS NULL
   AND o.tenant_id IN (p.tenant_id, '00000000-0000-0000-0000-000000000000') AND o.period_key IN (p.period_key, '')),
 g.generation IS NOT NULL, g.dropped_at IS NULL AND NOT coalesce(g.purged, true), coalesce(g.broken, ''),
 (SELECT count(*) FROM consumer_checkpoints c WHERE c.consumer = $1::jsonb ->> p.projection AND c.generation = p.generation AND c.joined
 AND c.serving),
 CASE WHEN g.tenant_id = '00000000-0000-0000-0000-000000000000' THEN 32 ELSE 1 END
 FROM projection_pointers p LEFT JOIN projection_generations g USING (projection, generation) ORDER BY p.projection, p.flip`
	consumersOf = `{"usage_aggregates": "meterplex-usage-aggregator", "entitlement_reads": "meterplex-entitlement-reads", "dead_letter_events": "meterplex-dead-letter-handler", "usage_series": "meterplex-usage-series",
 "usage_refusals": "meterplex-usage-refusals"}`
	everyone = "00000000-0000-0000-0000-000000000000"
)

func (v *verifier) generations(ctx context.Context) error {
	whole := map[string]int{"usage_aggregates": 0, "entitlement_reads": 0, "dead_letter_events": 0, "usage_series": 0, "usage_refusals": 0}
	err := v.snapshot(ctx, func(tx pgx.Tx) error {
		var projection, tenant, period, broken string
		var generation, fed, feeds int
		var live, follows, there, stays bool
		return each(ctx, tx, pointersSQL, []any{consumersOf}, []any{&projection, &tenant, &period, &generation, &live, &follows, &there,
			&stays, &broken, &fed, &feeds}, func() error {
			name := fmt.Sprintf("generation %d of %s", generation, projection)
			v.liveGenerations.expect(live == follows, "the pointer to %s has live %v, the flips give %v", name, live, follows)
			if !live {
				return nil
			}
			if tenant == everyone && period == "" {
				whole[projection]++
			}
			v.liveGenerations.expect(there, "readers see %s, which does not exist", name)
			if there {
				v.liveGenerations.expect(stays && broken == "", "readers see %s, which is dropped or broken %s", name, broken)
				v.liveGenerations.expect(fed >= feeds, "readers see %s, which is served in %d of %d partitions", name, fed, feeds)
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("check the pointers: %w", err)
	}
	for projection, n := range whole {
		v.liveGenerations.n++
		v.liveGenerations.expect(n == 1, "%d generations of %s are live for all tenants", n, projection)
	}
	v.liveGenerations.done = true
	return nil
}
