package rebuild

import (
	"cmp"
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/state"
)

// RebuildStatus is a rebuild and its progress. TenantID and PeriodKey are its scope, null
// for all.
type RebuildStatus struct {
	domain.Rebuild
	TenantID  *uuid.UUID `json:"tenantId"`
	PeriodKey *string    `json:"periodKey"`
	Failure   *string    `json:"failure"`
	Progress  *Progress  `json:"progress"` // null once the generation is dropped
	Drift     []DiffRow  `json:"drift,omitempty"`
	Flip      *int       `json:"flip"`
	// CanRollBackUntil is when the previous generation may be dropped; null if a rollback
	// is impossible.
	CanRollBackUntil *time.Time `json:"canRollBackUntil"`
}

// readRebuilds: a rollback is possible while no later flip covers the promotion and the
// replaced generation is kept, which lasts a time from the projection's last flip. A repair is never rolled back.
const readRebuilds = `
SELECT r.id, r.projection, r.consumer, r.generation, r.fold_version, r.purpose, r.repair, r.tenant_id, r.period_key, r.reason,
       r.state, r.failure, r.workers, coalesce(r.flip, 0) AS flip, r.differs, r.created_at, r.ready_at, r.ended_at, r.report AS drift,
       CASE WHEN r.state = 'PROMOTED' AND NOT r.repair AND NOT EXISTS (
           SELECT FROM projection_pointers later
           WHERE later.projection = r.projection AND later.flip > r.flip AND later.undone_flip IS NULL
             AND (r.tenant_id = '00000000-0000-0000-0000-000000000000' OR later.tenant_id IN (r.tenant_id,
             '00000000-0000-0000-0000-000000000000'))
             AND (r.period_key = '' OR later.period_key IN (r.period_key, '')))
         AND EXISTS (
           SELECT FROM projection_generations g
           WHERE g.projection = r.projection AND g.dropped_at IS NULL AND g.broken IS NULL
             AND g.generation = live_generation(r.projection, r.tenant_id, r.period_key, r.flip - 1))
       THEN (SELECT max(p.flipped_at) FROM projection_pointers p WHERE p.live AND p.projection = r.projection) + $4::interval END AS until,
       extract(epoch FROM coalesce(r.ready_at, r.ended_at, now()) - r.created_at)::float8 AS elapsed
FROM projection_rebuilds r
WHERE ($1::uuid IS NULL OR r.id = $1) AND ($2::uuid IS NULL OR r.id < $2)
ORDER BY r.id DESC
LIMIT $3`

// stored is a rebuild's row.
type stored struct {
	domain.Rebuild
	Drift   []DiffRow
	Until   *time.Time
	Elapsed float64 // seconds spent folding so far
}

func (r *Reads) retention() time.Duration { return cmp.Or(r.Keep, DefaultKeep) }

func readStored(ctx context.Context, tx pgx.Tx, id, before *uuid.UUID, limit int, keep time.Duration) (found []stored, err error) {
	err = query.Run(ctx, tx, query.New(readRebuilds, []any{id, before, limit, keep}, query.Into(&found,
		func(rows pgx.Rows) (stored, error) { return pgx.RowToStructByName[stored](rows) })))
	return found, err
}

// rebuildIn reads one rebuild's row; rebuild_not_found if it is missing.
func rebuildIn(ctx context.Context, tx pgx.Tx, id uuid.UUID) (domain.Rebuild, error) {
	found, err := readStored(ctx, tx, &id, nil, 1, 0)
	switch {
	case err != nil:
		return domain.Rebuild{}, err
	case len(found) == 0:
		return domain.Rebuild{}, &domain.Error{Code: "rebuild_not_found", Message: "Rebuild not found"}
	}
	return found[0].Rebuild, nil
}

// Rebuild reads one rebuild, with all its units and the result of a verify.
func (r *Reads) Rebuild(ctx context.Context, id uuid.UUID) (RebuildStatus, error) {
	page, err := r.rebuilds(ctx, &id, nil, 1)
	switch {
	case err != nil:
		return RebuildStatus{}, err
	case len(page) == 0:
		return RebuildStatus{}, &domain.Error{Code: "rebuild_not_found", Message: "Rebuild not found"}
	}
	return page[0], nil
}

// Rebuilds lists rebuilds, the newest first, without their units.
func (r *Reads) Rebuilds(ctx context.Context, limit int, after string) (query.Page[RebuildStatus], error) {
	var before *uuid.UUID
	if after != "" {
		id, err := uuid.Parse(after)
		if err != nil {
			return query.Page[RebuildStatus]{}, query.ErrCursorInvalid
		}
		before = &id
	}
	limit = query.PageSize(limit)
	found, err := r.rebuilds(ctx, nil, before, limit+1)
	page := query.Page[RebuildStatus]{Data: found}
	if len(found) > limit {
		page.Data = found[:limit]
		page.Next = found[limit-1].ID.String()
	}
	for i := range page.Data {
		page.Data[i].Drift = nil
		if p := page.Data[i].Progress; p != nil {
			p.Units = nil
		}
	}
	return page, err
}

func (r *Reads) rebuilds(ctx context.Context, id, before *uuid.UUID, limit int) ([]RebuildStatus, error) {
	var all []RebuildStatus
	err := r.Within(ctx, query.Viewer{Operator: true}, func(ctx context.Context, tx pgx.Tx) error {
		found, err := readStored(ctx, tx, id, before, limit, r.retention())
		if err != nil {
			return err
		}
		var ids []uuid.UUID
		for i := range found {
			ids = append(ids, found[i].ID)
		}
		var kept state.Units
		if err := query.Run(ctx, tx, kept.Of(ids)); err != nil {
			return err
		}
		units := map[uuid.UUID][]state.Unit{}
		for _, u := range kept {
			units[u.RebuildID] = append(units[u.RebuildID], u)
		}
		for i := range found {
			all = append(all, found[i].status(units[found[i].ID]))
		}
		return nil
	})
	return all, err
}

func (s *stored) status(units []state.Unit) RebuildStatus {
	r := &s.Rebuild
	v := RebuildStatus{Rebuild: *r, Drift: s.Drift, CanRollBackUntil: s.Until}
	if r.TenantID != uuid.Nil {
		v.TenantID = &r.TenantID
	}
	if r.PeriodKey != "" {
		v.PeriodKey = &r.PeriodKey
	}
	if r.Failure != "" {
		v.Failure = &r.Failure
	}
	if r.Flip != 0 {
		v.Flip = &r.Flip
	}
	if v.Progress = progressOf(units, s.Elapsed, r.ReadyAt != nil); v.Progress != nil && r.State == domain.RebuildFolding {
		if v.Progress.pastTarget {
			v.State = domain.RebuildCatchingUp
		}
		v.Progress.noteIdle(s.Elapsed)
	}
	return v
}
