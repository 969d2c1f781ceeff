package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

var (
	_ commands.Store           = (*Log)(nil)
	_ commands.CatalogueStore  = (*Log)(nil)
	_ commands.DeadLetterStore = (*Log)(nil)
)

// Change implements commands.Store. If COMMIT is not answered, Change looks up the
// change's own events under the head's lock, to find the outcome.
func (l *Log) Change(ctx context.Context, tenant uuid.UUID, decide func(commands.Tx) error) error {
	return l.changeTenant(ctx, tenant, func(tx *changeTx) error { return decide(tx) })
}

// ChangeCatalogue implements commands.CatalogueStore, as Change does.
func (l *Log) ChangeCatalogue(ctx context.Context, tenant uuid.UUID, decide func(commands.CatalogueTx) error) error {
	return l.changeTenant(ctx, tenant, func(tx *changeTx) error { return decide(tx) })
}

// ChangeDeadLetters implements commands.DeadLetterStore, as Change does.
func (l *Log) ChangeDeadLetters(ctx context.Context, tenant uuid.UUID, decide func(commands.DeadLetterTx) error) error {
	return l.changeTenant(ctx, tenant, func(tx *changeTx) error { return decide(tx) })
}

func (l *Log) changeTenant(ctx context.Context, tenant uuid.UUID, decide func(*changeTx) error) error {
	tx := &changeTx{log: l, ctx: ctx, partition: events.PartitionOf(tenant)}
	hold := func(t pgx.Tx) error {
		_, err := l.lockHeads(ctx, t, []int16{tx.partition})
		return err
	}
	return l.changing(ctx, tx, hold, decide)
}

// changing runs a change. It runs it once more if the same Idempotency-Key was used
// concurrently under other locks: that change is committed, so its answer is visible now.
func (l *Log) changing(ctx context.Context, tx *changeTx, hold func(pgx.Tx) error, decide func(*changeTx) error) error {
	attempt := func() error {
		tx.appended = nil
		return l.changeHolding(ctx, tx, hold, decide)
	}
	err := l.inServerLife(ctx, attempt)
	if answeredMeanwhile(err) {
		err = attempt()
	}
	return l.changed(tx, err)
}

// answeredMeanwhile reports whether an Idempotency-Key was answered after its look-up.
func answeredMeanwhile(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == uniqueViolation && pg.ConstraintName == "idempotency_answers_pkey"
}

// changed invalidates caches and notifies after a successful change. For an unanswered
// commit it first resolves the outcome.
func (l *Log) changed(tx *changeTx, err error) error {
	if errors.Is(err, errCommitUnknown) && len(tx.appended) > 0 {
		err = l.resolveChange(tx)
	}
	if err == nil {
		l.histories.forget()
		l.keys.forget()
		if len(tx.appended) > 0 {
			l.cfg.OnAppend(partitionsOf(pointers(tx.appended)))
		}
		return nil
	}
	if refusal := (*domain.Error)(nil); errors.As(err, &refusal) {
		return refusal
	}
	return unavailable(err)
}

// changeHolding runs decide in a transaction, after hold has taken its locks.
func (l *Log) changeHolding(ctx context.Context, tx *changeTx, hold func(pgx.Tx) error, decide func(*changeTx) error) error {
	leave, err := l.changes.acquire(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return inTx(ctx, l.pool, func(t pgx.Tx) error {
		tx.tx = t
		if err := hold(t); err != nil {
			return err
		}
		return decide(tx)
	})
}

func (l *Log) resolveChange(tx *changeTx) error {
	ctx, cancel := context.WithTimeout(context.Background(), resolveFor)
	defer cancel()
	return l.inServerLife(ctx, func() error {
		return inTx(ctx, l.pool, func(t pgx.Tx) error {
			if _, err := l.lockHeads(ctx, t, []int16{tx.partition}); err != nil {
				return err
			}
			known, err := probe(ctx, t, pointers(tx.appended[:1]))
			if err != nil {
				return err
			}
			if f, ok := known[keyOf(&tx.appended[0])]; !ok || f.eventID != tx.appended[0].EventID {
				return errors.New("the change was not committed")
			}
			return nil
		})
	})
}

// changeTx implements the transactions of commands. Its context is that of the one change it serves.
type changeTx struct {
	log       *Log
	ctx       context.Context
	tx        pgx.Tx
	partition int16
	appended  []events.Pending
}

func (t *changeTx) exec(what, sql string, args ...any) error {
	if _, err := t.tx.Exec(t.ctx, sql, args...); err != nil {
		return fmt.Errorf("keeping a %s: %w", what, err)
	}
	return nil
}

// Append implements commands.Appender.
func (t *changeTx) Append(list ...events.Pending) ([]events.Position, error) {
	positions, err := t.log.AppendTx(t.ctx, t.tx, list)
	if err == nil {
		t.appended = append(t.appended, list...)
	}
	return positions, err
}

// Answer reads an answer under the platform's id: the key names its holder already.
func (t *changeTx) Answer(key string) (*commands.Answer, error) {
	var a commands.Answer
	var hash []byte
	err := t.tx.QueryRow(t.ctx, `SELECT request_hash, body FROM idempotency_answers WHERE tenant_id = $1 AND key = $2`, uuid.Nil, key).Scan(&hash, &a.Body)
	copy(a.RequestHash[:], hash)
	return one(&a, "stored answer", err)
}

func (t *changeTx) SaveAnswer(key string, a commands.Answer) error {
	return t.exec("answer", `INSERT INTO idempotency_answers (tenant_id, key, request_hash, status, body, created_at) VALUES ($1, $2, $3, 0, $4, now())`,
		uuid.Nil, key, a.RequestHash[:], a.Body)
}

func (t *changeTx) Tenant(id uuid.UUID) (*domain.Tenant, error) {
	return scanTenant(t.tx.QueryRow(t.ctx, `SELECT `+tenantColumns+` FROM tenants WHERE id = $1`, id))
}

func (t *changeTx) SaveTenant(v domain.Tenant) error {
	return t.exec("tenant", `INSERT INTO tenants (`+tenantColumns+`) VALUES ($1, $2, $3, $4, $5, $6)
 ON CONFLICT (id) DO UPDATE SET name = excluded.name, class = excluded.class, status = excluded.status, data_residency = excluded.data_residency`,
		v.ID, v.Name, v.Class, v.Status, v.DataResidency, v.CreatedAt)
}

func (t *changeTx) Key(id uuid.UUID) (*domain.APIKey, error) {
	return scanKey(t.tx.QueryRow(t.ctx, `SELECT `+keyColumns+` FROM api_keys WHERE id = $1`, id))
}

func (t *changeTx) SaveKey(k domain.APIKey, secretHash []byte) error {
	if secretHash == nil {
		return t.exec("key", `UPDATE api_keys SET expires_at = $2, revoked_at = $3 WHERE id = $1`, k.ID, k.ExpiresAt, k.RevokedAt)
	}
	return t.exec("key", `INSERT INTO api_keys (`+keyColumns+`, secret_hash) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		k.ID, k.TenantID, k.Name, k.Prefix, k.Mode, k.Scopes, k.CreatedAt, k.ExpiresAt, k.RevokedAt, secretHash)
}

func (t *changeTx) Feature(lookupKey string) (*domain.Feature, error) {
	return scanFeature(t.tx.QueryRow(t.ctx, `SELECT `+featureColumns+` FROM features WHERE lookup_key = $1`, lookupKey))
}

func (t *changeTx) SaveFeature(f domain.Feature) error {
	return t.exec("feature", `INSERT INTO features (`+featureColumns+`) VALUES ($1, $2, $3, $4)
 ON CONFLICT (lookup_key) DO UPDATE SET name = excluded.name, type = excluded.type, unit = excluded.unit`, f.LookupKey, f.Name, f.Type, f.Unit)
}

func (t *changeTx) Plan(key string) (*domain.Plan, error) {
	return scanPlan(t.tx.QueryRow(t.ctx, `SELECT `+planColumns+` FROM plans WHERE key = $1`, key))
}

func (t *changeTx) SavePlan(p domain.Plan) error {
	entitlements, err := json.Marshal(p.Entitlements)
	if err != nil {
		return fmt.Errorf("encoding a plan: %w", err)
	}
	return t.exec("plan", `INSERT INTO plans (`+planColumns+`) VALUES ($1, $2, $3)
 ON CONFLICT (key) DO UPDATE SET name = excluded.name, entitlements = excluded.entitlements`, p.Key, p.Name, entitlements)
}

func (t *changeTx) Subscription(id uuid.UUID) (*domain.Subscription, error) {
	return scanSubscription(t.tx.QueryRow(t.ctx, `SELECT `+subscriptionColumns+` FROM subscriptions WHERE id = $1`, id))
}

func (t *changeTx) InForce(tenant uuid.UUID) (*domain.Subscription, error) {
	return scanSubscription(t.tx.QueryRow(t.ctx, `SELECT `+subscriptionColumns+` FROM subscriptions WHERE tenant_id = $1 AND status IN ('ACTIVE', 'TRIALING')`, tenant))
}

func (t *changeTx) SaveSubscription(s domain.Subscription) error {
	entitlements, err := json.Marshal(s.Entitlements)
	if err != nil {
		return fmt.Errorf("encoding a subscription: %w", err)
	}
	return t.exec("subscription", `INSERT INTO subscriptions (`+subscriptionColumns+`) VALUES ($1, $2, $3, $4, $5, $6)
 ON CONFLICT (id) DO UPDATE SET plan = excluded.plan, status = excluded.status, entitlements = excluded.entitlements`,
		s.ID, s.TenantID, s.Plan, s.Status, entitlements, s.CreatedAt)
}

func (t *changeTx) SaveHistory(tenant uuid.UUID, e domain.HistoryEntry) error {
	var snapshot []byte
	if e.Subscription != nil {
		var err error
		if snapshot, err = json.Marshal(e.Subscription); err != nil {
			return fmt.Errorf("encoding a subscription: %w", err)
		}
	}
	return t.exec("subscription's history", `INSERT INTO subscription_history (tenant_id, from_position, effective_from, snapshot) VALUES ($1, $2, $3, $4)`,
		tenant, e.FromPosition, e.EffectiveFrom, snapshot)
}
