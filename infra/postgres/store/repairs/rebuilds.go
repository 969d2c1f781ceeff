// Package repairs keeps what repairs state that follows from the log: rebuilds, replays, and the comparison of accounts.
package repairs

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/rebuild"
)

var (
	_ repair.RebuildStore = (*Rebuilds)(nil)
	_ repair.RebuildTx    = (*rebuildTx)(nil)
)

// The first flip of a projection is never removed. Its lock guards changes to the
// projection's generations; checkpoints and heads are locked after it.
const holdProjection = `SELECT FROM projection_pointers WHERE projection = $1 AND flip = 1 FOR UPDATE`

// Rebuilds changes the rebuilds of projections, and reads them. It implements
// repair.RebuildStore.
type Rebuilds struct {
	Store *store.Store
	List  []projections.Projection // for comparisons with a difference that was shown
}

// rebuildTx is a change of rebuilds.
type rebuildTx struct {
	*store.Tx
	list []projections.Projection
}

// ChangeRebuilds implements repair.RebuildStore.
func (s *Rebuilds) ChangeRebuilds(ctx context.Context, projection string, decide func(repair.RebuildTx) error) error {
	hold := func(ctx context.Context, t *eventlog.Tx, admitted *eventlog.LockedRead) error {
		t.Queue("locking a projection", holdProjection, projection)
		return s.Store.Log().LockHeads(ctx, t, nil, admitted)
	}
	return s.Store.ChangeUnder(ctx, events.Platform, hold, func(tx *store.Tx) error { return decide(&rebuildTx{tx, s.List}) })
}

const rebuildColumns = `id, projection, consumer, generation, fold_version, purpose, repair, tenant_id, period_key, reason, state, failure,
 workers, coalesce(flip, 0), differs, created_at, ready_at, ended_at`

func scanRebuild(row pgx.CollectableRow) (r domain.Rebuild, err error) {
	return r, row.Scan(&r.ID, &r.Projection, &r.Consumer, &r.Generation, &r.FoldVersion, &r.Purpose, &r.Repair, &r.TenantID, &r.PeriodKey,
		&r.Reason, &r.State, &r.Failure, &r.Workers, &r.Flip, &r.Differs, &r.CreatedAt, &r.ReadyAt, &r.EndedAt)
}

func readRebuilds(ctx context.Context, q postgres.Queryer, where string, args ...any) ([]domain.Rebuild, error) {
	rows, err := q.Query(ctx, where, args...)
	if err == nil {
		var list []domain.Rebuild
		if list, err = pgx.CollectRows(rows, scanRebuild); err == nil {
			return list, nil
		}
	}
	return nil, fmt.Errorf("reading rebuilds: %w", err)
}

const (
	rebuildSQL      = `SELECT ` + rebuildColumns + ` FROM projection_rebuilds WHERE id = $1`
	openRebuildsSQL = `SELECT ` + rebuildColumns +
		` FROM projection_rebuilds WHERE projection = $1 AND state IN ('FOLDING', 'CATCHING_UP', 'READY')`
)

func oneRebuild(ctx context.Context, q postgres.Queryer, id uuid.UUID) (*domain.Rebuild, error) {
	list, err := readRebuilds(ctx, q, rebuildSQL, id)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return &list[0], nil
}

// Rebuild implements repair.RebuildStore.
func (s *Rebuilds) Rebuild(ctx context.Context, id uuid.UUID) (*domain.Rebuild, error) {
	r, err := oneRebuild(ctx, s.Store.Pool(), id)
	if err != nil {
		return nil, store.Unavailable(err)
	}
	return r, nil
}

func (t *rebuildTx) Rebuild(id uuid.UUID) (*domain.Rebuild, error) {
	return oneRebuild(t.Context(), t.DB(), id)
}

func (t *rebuildTx) Rebuilds(projection string) ([]domain.Rebuild, error) {
	return readRebuilds(t.Context(), t.DB(), openRebuildsSQL, projection)
}

// Readers of a scope may see several generations: every pointer that shares a figure
// with the scope counts, except those that a later one covers there.
const liveFolds = `SELECT array_agg(DISTINCT g.fold_version) FROM projection_pointers p JOIN projection_generations g USING (projection,
	generation)
 WHERE p.projection = $1 AND p.live
   AND (p.tenant_id IN ($2, '00000000-0000-0000-0000-000000000000') OR $2 = '00000000-0000-0000-0000-000000000000')
   AND (p.period_key IN ($3, '') OR $3 = '')
   AND NOT EXISTS (SELECT FROM projection_pointers over
     WHERE over.projection = p.projection AND over.live AND over.flip > p.flip
       AND over.tenant_id IN ($2, '00000000-0000-0000-0000-000000000000') AND over.period_key IN ($3, ''))`

func (t *rebuildTx) LiveFolds(projection string, tenant uuid.UUID, periodKey string) (versions []string, err error) {
	if err := t.DB().QueryRow(t.Context(), liveFolds, projection, tenant, periodKey).Scan(&versions); err != nil {
		return nil, fmt.Errorf("reading the live folds: %w", err)
	}
	return versions, nil
}

func (t *rebuildTx) StartRebuild(r domain.Rebuild) (int, error) {
	return rebuild.Create(t.Context(), t.DB(), r)
}

func (t *rebuildTx) SaveRebuild(r domain.Rebuild) error { return rebuild.Save(t.Context(), t.DB(), r) }
