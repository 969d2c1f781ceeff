// Package pushes keeps the amounts that the billing provider counts.
package pushes

import (
	"context"
	"fmt"
	"math/big"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/push"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/store"
	"github.com/meterplex/meterplex/infra/postgres/store/closes"
)

var (
	_ billing.PushStore  = (*Pushes)(nil)
	_ billing.PushTx     = pushTx{}
	_ billing.PushReader = Reader{}
)

// Pushes changes pushes. It implements billing.PushStore.
type Pushes struct{ Store *store.Store }

// Reader reads pushes.
type Reader struct{ *store.Catalogue }

// pushTx is a change of pushes.
type pushTx struct{ *store.Tx }

const pushColumns = `id, tenant_id, feature, period_key, snapshot, n, to_json(amount) AS amount, provider, customer, event, key, identifier,
 counted_at AS "timestamp", state, attempts, failures, renewals, stored_at, first_attempt_at, attempted_at, unknown_since, next_at,
 delivered_at, last_code AS code, last_error, last_reason, last_actor`

// pushAt is a push with the time at which it is read.
type pushAt struct {
	push.Push
	Now time.Time
}

// ChangePushes implements billing.PushStore.
func (s *Pushes) ChangePushes(ctx context.Context, tenant uuid.UUID, decide func(billing.PushTx) error) error {
	return s.Store.ChangeTenant(ctx, tenant, func(tx *store.Tx) error { return decide(pushTx{tx}) })
}

const lockPushSQL = `SELECT ` + pushColumns + `, clock_timestamp() AS now FROM pushes WHERE id = $1 FOR UPDATE`

// UpdatePush implements billing.PushStore. If COMMIT is not answered the change may have happened: the attempt of a push begins in doubt
// then.
func (s *Pushes) UpdatePush(ctx context.Context, id uuid.UUID, change func(p *push.Push, now time.Time) bool) (updated *push.Push,
	err error) {
	err = postgres.InTx(ctx, s.Store.Pool(), func(tx pgx.Tx) error {
		updated = nil
		p, err := store.Find(ctx, tx, pgx.RowToStructByName[pushAt], lockPushSQL, id)
		if err != nil || p == nil {
			return err
		}
		if updated = &p.Push; !change(updated, p.Now) {
			return nil
		}
		return savePush(ctx, tx, updated)
	})
	if err != nil {
		return nil, store.Unavailable(err)
	}
	return updated, nil
}

const savePushSQL = `UPDATE pushes SET state = $2, attempts = $3, failures = $4, first_attempt_at = $5, attempted_at = $6,
	unknown_since = $7, next_at = $8, delivered_at = $9,
 last_code = $10, last_error = $11, last_reason = $12, last_actor = $13, customer = $14, event = $15, renewals = $16, amount = $17::numeric
 WHERE id = $1`

func savePush(ctx context.Context, tx pgx.Tx, p *push.Push) error {
	if _, err := tx.Exec(ctx, savePushSQL, p.ID, p.State, p.Attempts, p.Failures, p.FirstAttemptAt, p.AttemptedAt, p.UnknownSince, p.NextAt,
		p.DeliveredAt,
		p.Code, p.LastError, p.LastReason, p.LastActor, p.Customer, p.Event, p.Renewals, p.Amount.String()); err != nil {
		return fmt.Errorf("saving a push: %w", err)
	}
	return nil
}

// OpenPushes implements billing.PushStore.
func (s *Pushes) OpenPushes(ctx context.Context, tenant uuid.UUID, periodKey string) (open []push.Push, now time.Time, err error) {
	list, err := store.FindAll(ctx, s.Store.Pool(), "reading pushes", pgx.RowToStructByName[pushAt],
		`SELECT `+pushColumns+`, clock_timestamp() AS now FROM pushes WHERE tenant_id = $1 AND period_key = $2 AND state <> 'DELIVERED'
			ORDER BY stored_at, id`, tenant, periodKey)
	for i := range list {
		open, now = append(open, list[i].Push), list[i].Now
	}
	return open, now, store.Unavailable(err)
}

// PeriodEvent implements billing.PushStore.
func (s *Pushes) PeriodEvent(ctx context.Context, of domain.Closing, change string) (events.TracedEvent, error) {
	return closes.EventOf(ctx, s.Store, of, change)
}

// NotePushes implements billing.PushStore.
func (s *Pushes) NotePushes(ctx context.Context, tenant uuid.UUID, periodKey, reason string) error {
	_, err := s.Store.Pool().Exec(ctx, `UPDATE pushes SET last_error = $3 WHERE tenant_id = $1 AND period_key = $2 AND state = 'PENDING'
		AND last_error <> $3`, tenant, periodKey, reason)
	return store.Unavailable(err)
}

// Push implements billing.PushTx.
func (t pushTx) Push(id uuid.UUID) (*push.Push, time.Time, error) {
	p, err := store.Find(t.Context(), t.DB(), pgx.RowToStructByName[pushAt], lockPushSQL, id)
	if err != nil || p == nil {
		return nil, time.Time{}, err
	}
	return &p.Push, p.Now, nil
}

// SavePush implements billing.PushTx.
func (t pushTx) SavePush(p push.Push) error { return savePush(t.Context(), t.DB(), &p) }

const addPushSQL = `INSERT INTO pushes (id, tenant_id, feature, period_key, snapshot, n, amount, provider, customer, event, key, identifier,
	counted_at, state, stored_at, next_at)
 VALUES ($1, $2, $3, $4, $5, $6, $7::numeric, $8, $9, $10, $11, $12, $13, $14, $15, $16)`

// AddPush implements billing.PushTx.
func (t pushTx) AddPush(p push.Push) error {
	return t.Exec("push", addPushSQL, p.ID, p.TenantID, p.Feature, p.PeriodKey, p.Snapshot, p.N, p.Amount.String(), p.Provider, p.Customer,
		p.Event, p.Key, p.Identifier,
		p.Timestamp, p.State, p.StoredAt, p.NextAt)
}

// dueOfPeriodSQL compares the billable amounts of the snapshot $3 with the pushes of all snapshots, in every state: a push that is not
// delivered is on its way, or is sent by a retry.
const dueOfPeriodSQL = `WITH billable AS (
  SELECT feature, sum(frozen) AS frozen, sum(amount) AS amount FROM (
    SELECT feature, amount AS frozen, amount FROM period_lines WHERE tenant_id = $1 AND period_key = $2 AND snapshot = $3
    UNION ALL SELECT feature, 0, amount FROM adjustments WHERE tenant_id = $1 AND period_key = $2 AND snapshot = $3
    AND state = 'APPROVED') b
  GROUP BY feature),
pushed AS (SELECT feature, sum(amount) AS amount, max(n) FILTER (WHERE snapshot = $3) AS last FROM pushes WHERE tenant_id = $1
AND period_key = $2 GROUP BY feature)
SELECT feature, coalesce(f.billing_event, '') AS event, to_json(coalesce(b.frozen, 0)) AS frozen,
 to_json(coalesce(b.amount, 0)) AS billable, to_json(coalesce(p.amount, 0)) AS pushed, coalesce(p.last, -1) AS last
 FROM billable b FULL JOIN pushed p USING (feature) LEFT JOIN features f ON f.lookup_key = feature
 WHERE coalesce(b.amount, 0) <> coalesce(p.amount, 0) ORDER BY feature`

// Due implements billing.PushTx.
func (t pushTx) Due(c domain.Closing) ([]push.Due, error) {
	return store.FindAll(t.Context(), t.DB(), "reading what is due", pgx.RowToStructByName[push.Due], dueOfPeriodSQL, c.TenantID,
		c.PeriodKey, c.Snapshot)
}

// recentlyClosedSQL returns the last snapshots of closed periods; those without a snapshot of their last close are still closing.
const recentlyClosedSQL = `SELECT tenant_id, period_key, snapshot, EXISTS (SELECT FROM pushes p WHERE p.tenant_id = c.tenant_id
	AND p.period_key = c.period_key) FROM (
  SELECT DISTINCT ON (period_key) tenant_id, period_key, snapshot, change FROM period_changes WHERE tenant_id = $1 ORDER BY period_key,
  position DESC) c
 WHERE change = 'closed' ORDER BY period_key`

// RecentlyClosed implements billing.PushTx. A period without an end, and one that was closed before its end, is recent. So is one
// that was pushed before: amounts may have been approved while the tenant had no billing, and the difference counts now.
func (t pushTx) RecentlyClosed(tenant uuid.UUID) (recent []domain.Closing, err error) {
	now, err := t.DatabaseTime()
	if err != nil {
		return nil, err
	}
	rows, err := t.DB().Query(t.Context(), recentlyClosedSQL, tenant)
	if err != nil {
		return nil, fmt.Errorf("reading closed periods: %w", err)
	}
	var c domain.Closing
	var pushed bool
	_, err = pgx.ForEachRow(rows, []any{&c.TenantID, &c.PeriodKey, &c.Snapshot, &pushed}, func() error {
		if _, end, ok := domain.PeriodBounds(c.PeriodKey); !ok || pushed || end.Add(push.Oldest).After(now) {
			recent = append(recent, c)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading closed periods: %w", err)
	}
	return recent, nil
}

// NeverSent implements billing.PushTx.
func (t pushTx) NeverSent(tenant uuid.UUID) ([]push.Push, error) {
	return t.list(`SELECT `+pushColumns+` FROM pushes WHERE tenant_id = $1 AND state = 'PENDING' AND attempts = 0 ORDER BY stored_at,
		id FOR UPDATE`, tenant)
}

// PushesOf implements billing.PushTx.
func (t pushTx) PushesOf(tenant uuid.UUID, feature, periodKey string) ([]push.Push, error) {
	return t.list(`SELECT `+pushColumns+` FROM pushes WHERE tenant_id = $1 AND feature = $2 AND period_key = $3 ORDER BY stored_at,
		snapshot, n`, tenant, feature, periodKey)
}

func (t pushTx) list(sql string, args ...any) ([]push.Push, error) {
	return store.FindAll(t.Context(), t.DB(), "reading pushes", pgx.RowToStructByName[push.Push], sql, args...)
}

// RetryPushes implements billing.PushTx.
func (t pushTx) RetryPushes(tenant uuid.UUID, reason, actor string) error {
	return t.RetrySagas(billing.SagaBillingPush, tenant, reason, actor)
}

// Billed implements billing.PushTx.
func (t pushTx) Billed() (billed bool, err error) {
	err = t.DB().QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pushes) OR EXISTS (SELECT FROM tenants
		WHERE billing_provider IS NOT NULL)`).Scan(&billed)
	return billed, err
}

// Today implements billing.PushTx.
func (t pushTx) Today() (day string, err error) {
	err = t.DB().QueryRow(t.Context(), `SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD')`).Scan(&day)
	return day, err
}

// SaveComparison implements billing.PushTx.
func (t pushTx) SaveComparison(w push.Window, total, delivered *big.Int) error {
	return t.Exec("comparison", `INSERT INTO push_comparisons (provider, customer, event, month, total, delivered, compared_at) VALUES ($1,
		$2, $3, $4, $5::numeric, $6::numeric, clock_timestamp())
 ON CONFLICT (provider, customer, event, month) DO UPDATE SET total = excluded.total, delivered = excluded.delivered,
 compared_at = excluded.compared_at`,
		w.Provider, w.Customer, w.Event, w.Month, total.String(), delivered.String())
}

// The month of a push is that of its timestamp. A window belongs to the tenant and the feature of its last push.
const pushWindowsSQL = `SELECT w.provider, w.customer, w.event, w.month, w.tenant_id, w.feature FROM (
  SELECT DISTINCT ON (provider, customer, event, month) provider, customer, event, to_char(counted_at AT TIME ZONE 'UTC',
  'YYYY-MM') AS month, tenant_id, feature
  FROM pushes WHERE counted_at > now() - $2::interval AND (state = 'DELIVERED' OR unknown_since IS NOT NULL) ORDER BY provider, customer,
  event, month, stored_at DESC) w
 LEFT JOIN push_comparisons c USING (provider, customer, event, month) WHERE c.compared_at IS NULL OR c.compared_at < $1 ORDER BY 2, 3, 4`

// PushWindows implements billing.PushStore.
func (s *Pushes) PushWindows(ctx context.Context, since time.Time) ([]push.Window, error) {
	list, err := store.FindAll(ctx, s.Store.Pool(), "reading windows of pushes", pgx.RowToStructByName[push.Window], pushWindowsSQL, since,
		push.Oldest)
	return list, store.Unavailable(err)
}

// A refused push whose earlier attempt has no answer may be counted, as an unknown one. It is on its way while a retry may send it.
// A push that was never sent without a refusal, and that an operator resolved as delivered, was billed in another way: the provider does
// not count it.
const pushSumsSQL = `SELECT ` + pushColumns +
	`, (state = 'UNKNOWN' AND next_at IS NOT NULL OR state = 'FAILED' AND unknown_since > now() - $7::interval
  OR delivered_at > now() - $6::interval) IS TRUE AS moving FROM pushes
 WHERE provider = $1 AND customer = $2 AND event = $3 AND counted_at >= $4 AND counted_at < $5
  AND (state IN ('DELIVERED', 'FAILED') AND unknown_since IS NOT NULL OR state = 'UNKNOWN') ORDER BY id`

// PushSums implements billing.PushStore.
func (s *Pushes) PushSums(ctx context.Context, w push.Window, settle time.Duration) (push.Sums, error) {
	sums := push.Sums{Delivered: new(big.Int), Unknown: new(big.Int)}
	from, to, _ := domain.PeriodBounds(w.Month)
	type counted struct {
		push.Push
		Moving bool
	}
	list, err := store.FindAll(ctx, s.Store.Pool(), "summing pushes", pgx.RowToStructByName[counted], pushSumsSQL, w.Provider, w.Customer,
		w.Event, from, to, settle, push.UnknownFor)
	for _, p := range list {
		switch {
		case p.Moving:
			sums.OnTheWay++
		case p.State == push.StateDelivered:
			sums.Delivered.Add(sums.Delivered, p.Amount)
		default:
			sums.Unknown.Add(sums.Unknown, p.Amount)
			sums.Undecided = append(sums.Undecided, p.Push)
		}
	}
	return sums, store.Unavailable(err)
}

// Push returns a push, or nil.
func (r Reader) Push(ctx context.Context, id uuid.UUID) (*push.Push, error) {
	return store.Get(ctx, r.Catalogue, pgx.RowToStructByName[push.Push], `SELECT `+pushColumns+` FROM pushes WHERE id = $1`, id)
}

// Ids follow time.
const pushesSQL = `SELECT ` + pushColumns +
	` FROM pushes WHERE ($1 = '' OR state = $1) AND ($2 = '' OR period_key = $2) AND ($3::uuid IS NULL OR tenant_id = $3)
 AND ($4::uuid IS NULL OR id < $4) ORDER BY id DESC LIMIT $5`

// Pushes lists pushes, the newest first.
func (r Reader) Pushes(ctx context.Context, q billing.PushQuery) ([]push.Push, error) {
	return store.List(ctx, r.Catalogue, pgx.RowToStructByName[push.Push], pushesSQL, q.State, q.PeriodKey, q.TenantID,
		store.BeforeID(q.Page), q.Limit)
}
