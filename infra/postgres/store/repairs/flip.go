package repairs

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/rebuild"
)

// lockFed locks the checkpoints of joined generations, partition by partition, as
// consumers do: no consumer can detach a generation, or dead-letter an event, while a
// flip decides.
const (
	lockFed = `SELECT FROM consumer_checkpoints WHERE consumer = $1 AND joined ORDER BY partition, generation FOR UPDATE`

	nextFlip = `SELECT max(greatest(flip, undone_flip)) + 1 FROM projection_pointers WHERE projection = $1`
	addFlip  = `INSERT INTO projection_pointers (projection, tenant_id, period_key, generation, flip) VALUES ($1, $2, $3, $4, $5)`
	undoFlip = `UPDATE projection_pointers SET undone_flip = $3 WHERE projection = $1 AND flip = $2 AND undone_flip IS NULL`

	// A pointer that a later one covers completely is not live.
	showFlips = `UPDATE projection_pointers p SET live = p.undone_flip IS NULL AND NOT EXISTS (
  SELECT FROM projection_pointers later
  WHERE later.projection = p.projection AND later.flip > p.flip AND later.undone_flip IS NULL
    AND later.tenant_id IN (p.tenant_id, '00000000-0000-0000-0000-000000000000') AND later.period_key IN (p.period_key, ''))
 WHERE p.projection = $1`

	// The generation $3, and those that readers see.
	generationsSQL = `SELECT g.generation, g.tenant_id, shown.live, coalesce(g.broken, ''), g.dropped_at IS NOT NULL,
  (SELECT count(*) FROM consumer_checkpoints c WHERE c.consumer = $2 AND c.generation = g.generation AND c.joined)
 FROM projection_generations g
 CROSS JOIN LATERAL (SELECT EXISTS (
   SELECT FROM projection_pointers p WHERE p.live AND p.projection = g.projection AND p.generation = g.generation) AS live) shown
 WHERE g.projection = $1 AND (g.generation = $3 OR shown.live)
 ORDER BY g.generation`

	// Events that a generation has in another period than the live one would count twice, or
	// not at all, if only that period were promoted.
	findMoved = `SELECT EXISTS (SELECT FROM usage_aggregates a
 WHERE a.period_key = $2 AND ($1::uuid = '00000000-0000-0000-0000-000000000000' OR a.tenant_id = $1)
   AND (a.generation = $3 OR a.generation = (
     SELECT p.generation FROM projection_pointers p
     WHERE p.live AND p.projection = '` + projections.ProjectionUsage + `' AND p.generation <> $3
       AND p.tenant_id IN (a.tenant_id, '00000000-0000-0000-0000-000000000000') AND p.period_key IN (a.period_key, '')
     ORDER BY p.flip DESC LIMIT 1))
 GROUP BY a.tenant_id
 HAVING sum(a.applied_count) FILTER (WHERE a.generation = $3) IS DISTINCT FROM sum(a.applied_count) FILTER (WHERE a.generation <> $3))`

	findLaterFlip = `SELECT EXISTS (SELECT FROM projection_pointers p
 WHERE p.projection = $1 AND p.undone_flip IS NULL AND p.flip > $2
   AND (p.tenant_id IN ($3, '00000000-0000-0000-0000-000000000000') OR $3 = '00000000-0000-0000-0000-000000000000')
   AND (p.period_key IN ($4, '') OR $4 = ''))`
)

// LockGenerations implements repair.RebuildTx.
func (t *rebuildTx) LockGenerations(r *domain.Rebuild) error {
	return t.Exec("flip", lockFed, r.Consumer)
}

// Generations implements repair.RebuildTx.
func (t *rebuildTx) Generations(r *domain.Rebuild) ([]domain.Generation, error) {
	return store.FindAll(t.Context(), t.DB(), "reading a projection's generations", pgx.RowToStructByPos[domain.Generation], generationsSQL,
		r.Projection, r.Consumer, r.Generation)
}

// MovesEvents implements repair.RebuildTx.
func (t *rebuildTx) MovesEvents(r *domain.Rebuild) (moved bool, err error) {
	if err := t.DB().QueryRow(t.Context(), findMoved, r.TenantID, r.PeriodKey, r.Generation).Scan(&moved); err != nil {
		return false, fmt.Errorf("counting a period's events: %w", err)
	}
	return moved, nil
}

// Covered implements repair.RebuildTx.
func (t *rebuildTx) Covered(r *domain.Rebuild) (covered bool, err error) {
	if err := t.DB().QueryRow(t.Context(), findLaterFlip, r.Projection, r.Flip, r.TenantID, r.PeriodKey).Scan(&covered); err != nil {
		return false, fmt.Errorf("looking for later flips: %w", err)
	}
	return covered, nil
}

// Changed implements repair.RebuildTx.
func (t *rebuildTx) Changed(r *domain.Rebuild, shown []string) (*domain.Current, error) {
	return rebuild.Changed(t.Context(), t.DB(), t.list, r.ID, shown)
}

// Flip implements repair.RebuildTx.
func (t *rebuildTx) Flip(r *domain.Rebuild) (int, error) {
	flip, err := t.nextFlip(r)
	if err != nil {
		return 0, err
	}
	t.Queue("flip", addFlip, r.Projection, r.TenantID, r.PeriodKey, r.Generation, flip)
	return flip, t.show(r)
}

// Unflip implements repair.RebuildTx.
func (t *rebuildTx) Unflip(r *domain.Rebuild) (int, error) {
	flip, err := t.nextFlip(r)
	if err != nil {
		return 0, err
	}
	t.Queue("flip", undoFlip, r.Projection, r.Flip, flip)
	return flip, t.show(r)
}

func (t *rebuildTx) nextFlip(r *domain.Rebuild) (flip int, err error) {
	if err := t.DB().QueryRow(t.Context(), nextFlip, r.Projection).Scan(&flip); err != nil {
		return 0, fmt.Errorf("numbering a flip: %w", err)
	}
	return flip, nil
}

func (t *rebuildTx) show(r *domain.Rebuild) error {
	t.Queue("flip", showFlips, r.Projection)
	if err := consume.ServeFlips(t.Context(), t.DB(), r.Projection, r.Consumer); err != nil {
		return fmt.Errorf("keeping a flip: %w", err)
	}
	return nil
}
