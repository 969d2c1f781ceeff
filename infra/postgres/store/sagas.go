package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
)

var (
	_ commands.SagaStore   = (*Sagas)(nil)
	_ commands.SagaQueue   = (*Sagas)(nil)
	_ commands.SagaTx      = (*Tx)(nil)
	_ commands.SagaStarter = (*Tx)(nil)
	_ commands.SagaReader  = (*Catalogue)(nil)
)

// Sagas changes sagas and leases them. It implements commands.SagaStore and commands.SagaQueue.
type Sagas struct{ Store *Store }

const sagaColumns = `id, kind, tenant_id, key, step, state, attempts, next_at, deadline_at, missing, despite, last_error, retries,
 last_reason, last_actor, coalesce(outcome, '') AS outcome, created_at, ended_at`

// findSaga is Find.
func findSaga(ctx context.Context, db Querier, sql string, args ...any) (*domain.Saga, error) {
	return Find(ctx, db, pgx.RowToStructByName[domain.Saga], sql, args...)
}

// ChangeSagas implements commands.SagaStore. It locks no head: a retry is no event.
func (s *Sagas) ChangeSagas(ctx context.Context, decide func(commands.SagaTx) error) error {
	hold := func(ctx context.Context, t *eventlog.Tx, admitted *eventlog.LockedRead) error {
		return s.Store.log.LockHeads(ctx, t, nil, admitted)
	}
	return s.Store.ChangeUnder(ctx, events.Platform, hold, func(tx *Tx) error { return decide(tx) })
}

// now() is the time of the transaction's start, of the same clock as all times of the table.
const startSagaSQL = `INSERT INTO sagas (id, kind, tenant_id, key, step, state, next_at, deadline_at, despite, created_at)
 VALUES ($1, $2, $3, $4, $5, 'RUNNING', now(), CASE WHEN $6::interval > '0' THEN now() + $6 END, coalesce($7::text[], '{}'), now())
 ON CONFLICT (kind, tenant_id, key) DO NOTHING RETURNING ` + sagaColumns

// StartSaga implements commands.SagaStarter.
func (t *Tx) StartSaga(v domain.SagaStart) (*domain.Saga, bool, error) {
	s, err := findSaga(t.ctx, t.tx, startSagaSQL, v.ID, v.Kind, v.TenantID, v.Key, v.FirstStep, v.Deadline, v.Despite)
	if err != nil || s != nil {
		return s, err == nil, err
	}
	s, err = findSaga(t.ctx, t.tx, `SELECT `+sagaColumns+` FROM sagas WHERE kind = $1 AND tenant_id = $2 AND key = $3`, v.Kind, v.TenantID,
		v.Key)
	if err == nil && s == nil {
		err = fmt.Errorf("the saga %s %s was started, and is not there", v.Kind, v.Key)
	}
	return s, false, err
}

// Saga implements commands.SagaTx.
func (t *Tx) Saga(id uuid.UUID) (*domain.Saga, error) {
	return findSaga(t.ctx, t.tx, `SELECT `+sagaColumns+` FROM sagas WHERE id = $1 FOR UPDATE`, id)
}

// Under a lease next_at stays: it ends the lease of an instance that was killed. A running step sees the retry when its result is saved.
const saveRetrySQL = `UPDATE sagas SET attempts = $2, retries = $3, despite = $4, last_reason = $5, last_actor = $6,
 next_at = CASE WHEN lease IS NULL THEN now() ELSE next_at END WHERE id = $1 RETURNING next_at`

// SaveRetry implements commands.SagaTx.
func (t *Tx) SaveRetry(s *domain.Saga) error {
	if err := t.tx.QueryRow(t.ctx, saveRetrySQL, s.ID, s.Attempts, s.Retries, s.Despite, s.LastReason, s.LastActor).
		Scan(&s.NextAt); err != nil {
		return fmt.Errorf("keeping a retry of a saga: %w", err)
	}
	return nil
}

// The index sagas_open is read in its order: the first saga that is due is the only one that is read, unless this binary does not know it.
const nextSagaSQL = `SELECT next_at - clock_timestamp() FROM sagas WHERE ended_at IS NULL AND kind || '/' || step = ANY ($1)
	ORDER BY next_at LIMIT 1`

// NextSaga implements commands.SagaQueue.
func (s *Sagas) NextSaga(ctx context.Context, steps []string) (wait time.Duration, found bool, err error) {
	err = s.Store.pool.QueryRow(ctx, nextSagaSQL, steps).Scan(&wait)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("reading when the next saga is due: %w", err)
	}
	return wait, true, nil
}

// The row lock decides between two runners; the lease lasts without a transaction. next_at moves to its end, so that a leased saga is not
// due.
const leaseSagaSQL = `UPDATE sagas SET lease = $2, next_at = now() + $3::interval WHERE id = (
  SELECT id FROM sagas WHERE ended_at IS NULL AND next_at <= now() AND kind || '/' || step = ANY ($1) ORDER BY next_at LIMIT 1
  FOR UPDATE SKIP LOCKED)
 RETURNING ` + sagaColumns

// LeaseSaga implements commands.SagaQueue.
func (s *Sagas) LeaseSaga(ctx context.Context, steps []string, lease uuid.UUID, until time.Duration) (*domain.Saga, error) {
	return findSaga(ctx, s.Store.pool, leaseSagaSQL, steps, lease, until)
}

// RenewSaga implements commands.SagaQueue.
func (s *Sagas) RenewSaga(ctx context.Context, id, lease uuid.UUID, until time.Duration) (held bool, err error) {
	tag, err := s.Store.pool.Exec(ctx, `UPDATE sagas SET next_at = now() + $3::interval WHERE id = $1 AND lease = $2`, id, lease, until)
	if err != nil {
		return false, fmt.Errorf("renewing the lease of a saga: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

const settleSagaSQL = `UPDATE sagas SET lease = NULL, step = $2, state = $3, attempts = $4, next_at = $5, deadline_at = $6,
	missing = coalesce($7::text[], '{}'), last_error = $8,
 outcome = NULLIF($9, ''), ended_at = $10 WHERE id = $1`

// SettleSaga implements commands.SagaQueue.
func (s *Sagas) SettleSaga(ctx context.Context, id, lease uuid.UUID, change func(*domain.Saga, time.Time)) (settled *domain.Saga,
	err error) {
	err = postgres.InTx(ctx, s.Store.pool, func(tx pgx.Tx) error {
		type leased struct {
			domain.Saga
			Now time.Time
		}
		found, err := Find(ctx, tx, pgx.RowToStructByName[leased],
			`SELECT `+sagaColumns+`, clock_timestamp() AS now FROM sagas WHERE id = $1 AND lease = $2 FOR UPDATE`, id, lease)
		if settled = nil; err != nil || found == nil {
			return err
		}
		v := &found.Saga
		settled = v
		change(v, found.Now)
		if _, err := tx.Exec(ctx, settleSagaSQL, id, v.Step, v.State, v.Attempts, v.NextAt, v.DeadlineAt, v.Missing, v.LastError, v.Outcome,
			v.EndedAt); err != nil {
			return fmt.Errorf("saving a saga: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return settled, nil
}

// A running step sees the retry when its result is saved, as that of an operator's retry of the saga.
const retrySagasSQL = `UPDATE sagas SET attempts = 0, retries = retries + 1, last_reason = $3, last_actor = $4,
	next_at = CASE WHEN lease IS NULL THEN now() ELSE next_at END
 WHERE kind = $1 AND tenant_id = $2 AND ended_at IS NULL`

// RetrySagas lets the open sagas of a kind of a tenant run now.
func (t *Tx) RetrySagas(kind string, tenant uuid.UUID, reason, actor string) error {
	return t.Exec("retry of sagas", retrySagasSQL, kind, tenant, reason, actor)
}

// Saga returns a saga, or nil.
func (c *Catalogue) Saga(ctx context.Context, id uuid.UUID) (*domain.Saga, error) {
	return Get(ctx, c, pgx.RowToStructByName[domain.Saga], `SELECT `+sagaColumns+` FROM sagas WHERE id = $1`, id)
}

// Ids follow time.
const sagasSQL = `SELECT ` + sagaColumns +
	` FROM sagas WHERE ($1 = '' OR kind = $1) AND ($2 = '' OR state = $2) AND ($3::uuid IS NULL OR tenant_id = $3)
 AND ($4::uuid IS NULL OR id < $4) ORDER BY id DESC LIMIT $5`

// Sagas lists sagas, the newest first.
func (c *Catalogue) Sagas(ctx context.Context, q commands.SagaQuery) ([]domain.Saga, error) {
	return List(ctx, c, pgx.RowToStructByName[domain.Saga], sagasSQL, q.Kind, q.State, q.TenantID, BeforeID(q.Page), q.Limit)
}
