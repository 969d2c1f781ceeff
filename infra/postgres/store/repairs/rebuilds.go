// Package repairs stores the repairs of state that follows from the log: rebuilds, replays, and the comparison of accounts.
package repairs

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
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
 workers, coalesce(flip, 0) AS flip, differs, created_at, ready_at, ended_at`

const (
	rebuildSQL      = `SELECT ` + rebuildColumns + ` FROM projection_rebuilds WHERE id = $1`
	openRebuildsSQL = `SELECT ` + rebuildColumns +
		` FROM projection_rebuilds WHERE projection = $1 AND state IN ('FOLDING', 'CATCHING_UP', 'READY')`
)

// Rebuild implements repair.RebuildStore.
func (s *Rebuilds) Rebuild(ctx context.Context, id uuid.UUID) (*domain.Rebuild, error) {
	r, err := store.Find(ctx, s.Store.Pool(), pgx.RowToStructByName[domain.Rebuild], rebuildSQL, id)
	return r, store.Unavailable(err)
}

func (t *rebuildTx) Rebuild(id uuid.UUID) (*domain.Rebuild, error) {
	return store.Find(t.Context(), t.DB(), pgx.RowToStructByName[domain.Rebuild], rebuildSQL, id)
}

func (t *rebuildTx) Rebuilds(projection string) ([]domain.Rebuild, error) {
	return store.FindAll(t.Context(), t.DB(), "reading rebuilds", pgx.RowToStructByName[domain.Rebuild], openRebuildsSQL, projection)
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
