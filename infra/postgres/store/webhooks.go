package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
)

var (
	_ webhooks.Store  = (*Webhooks)(nil)
	_ webhooks.Tx     = (*Tx)(nil)
	_ webhooks.Reader = (*Catalogue)(nil)
)

// Webhooks changes webhooks and leases them. It implements webhooks.Store and webhooks.Queue.
type Webhooks struct {
	Store *Store
	NewID func() uuid.UUID // of deliveries
}

const (
	webhookColumns = `w.id, w.tenant_id, w.url, w.events, w.status, nullif(w.reason, '') AS reason, w.created_at, w.operators,
 w.cursor, w.replay_after, w.replay_until, w.replay_after < w.replay_until AS replaying, w.failing_since, w.last_success_at,
 (SELECT count(*) FROM webhook_secrets s WHERE s.webhook_id = w.id AND (s.expires_at IS NULL OR s.expires_at > now())) AS secrets`
	webhookSQL      = `SELECT ` + webhookColumns + ` FROM webhooks w WHERE w.id = $1 AND w.tenant_id = $2 AND w.status <> 'REMOVED'`
	lockWebhookSQL  = `SELECT ` + webhookColumns + ` FROM webhooks w WHERE w.id = $1 AND w.tenant_id = $2 AND w.status <> 'REMOVED' FOR UPDATE`
	deliveryColumns = `d.id, d.webhook_id, d.tenant_id, d.event_id, d.type, d.position, d.state, d.attempts, d.sent, d.next_at, ` +
		`d.created_at, d.ended_at`
)

// deliveryRow is a delivery, perhaps with its event, its last attempts or the time.
type deliveryRow struct {
	webhook.Due
	Position *int64 // the number alone, instead of the delivery's
	Now      time.Time
}

func rowToDelivery(row pgx.CollectableRow) (webhook.Delivery, error) {
	d, err := readDelivery(row)
	return d.Delivery, err
}

func readDelivery(row pgx.CollectableRow) (deliveryRow, error) {
	d, err := pgx.RowToStructByNameLax[deliveryRow](row)
	if d.Position != nil {
		d.Delivery.Position = &events.Position{Partition: events.PartitionOf(d.TenantID), Number: *d.Position}
	}
	return d, err
}

// ChangeWebhooks implements webhooks.Store.
func (s *Webhooks) ChangeWebhooks(ctx context.Context, tenant uuid.UUID, decide func(webhooks.Tx) error) error {
	return s.Store.ChangeTenant(ctx, tenant, func(tx *Tx) error { return decide(tx) })
}

// Webhook implements webhooks.Tx.
func (t *Tx) Webhook(tenant, id uuid.UUID) (*webhook.Webhook, error) {
	return Find(t.ctx, t.tx, pgx.RowToStructByName[webhook.Webhook], lockWebhookSQL, id, tenant)
}

// LockedWebhooks implements webhooks.EndTx.
func (t *Tx) LockedWebhooks(tenant uuid.UUID) ([]webhook.Webhook, error) {
	return FindAll(t.ctx, t.tx, "reading webhooks", pgx.RowToStructByName[webhook.Webhook], `SELECT `+webhookColumns+
		` FROM webhooks w WHERE w.tenant_id = $1 AND w.status <> 'REMOVED' ORDER BY w.id FOR UPDATE`, tenant)
}

// CountWebhooks implements webhooks.Tx.
func (t *Tx) CountWebhooks(tenant uuid.UUID) (n int, err error) {
	if err := t.tx.QueryRow(t.ctx, `SELECT count(*) FROM webhooks WHERE tenant_id = $1 AND status <> 'REMOVED'`, tenant).
		Scan(&n); err != nil {
		return 0, fmt.Errorf("counting webhooks: %w", err)
	}
	return n, nil
}

// SaveDeliveryState implements webhooks.EndTx. An enabled webhook is due with its first waiting delivery, which may be from before it was
// disabled (EndDeliveries).
func (t *Tx) SaveDeliveryState(w *webhook.Webhook) error {
	return t.Exec("webhook", `UPDATE webhooks w SET cursor = $2, replay_after = $3, replay_until = $4, failing_since = $5,
		next_at = CASE WHEN w.status = 'ENABLED' AND w.lease IS NULL
 THEN (SELECT min(d.next_at) FROM webhook_deliveries d WHERE d.webhook_id = w.id AND d.state = 'PENDING') ELSE w.next_at END
 WHERE w.id = $1`,
		w.ID, w.Cursor, w.ReplayAfter, w.ReplayUntil, w.FailingSince)
}

// AddSecret implements webhooks.Tx. It deletes the secrets that have ended.
func (t *Tx) AddSecret(w *webhook.Webhook, id uuid.UUID, secret string, overlap time.Duration) (valid int, err error) {
	for _, change := range []struct {
		sql  string
		args []any
	}{
		{`UPDATE webhook_secrets SET expires_at = least(coalesce(expires_at, 'infinity'), now() + $2::interval) WHERE webhook_id = $1`,
			[]any{w.ID, overlap}},
		{`DELETE FROM webhook_secrets WHERE webhook_id = $1 AND expires_at <= now()`, []any{w.ID}},
		{`INSERT INTO webhook_secrets (id, webhook_id, tenant_id, secret, created_at) VALUES ($1, $2, $3, $4, now())`,
			[]any{id, w.ID, w.TenantID, secret}},
	} {
		t.Queue("webhook's secret", change.sql, change.args...)
	}
	if err := t.tx.QueryRow(t.ctx, `SELECT count(*) FROM webhook_secrets WHERE webhook_id = $1`, w.ID).Scan(&valid); err != nil {
		return 0, fmt.Errorf("counting a webhook's secrets: %w", err)
	}
	return valid, nil
}

// DropSecrets implements webhooks.EndTx.
func (t *Tx) DropSecrets(webhook uuid.UUID) error {
	return t.Exec("removal of secrets", `DELETE FROM webhook_secrets WHERE webhook_id = $1`, webhook)
}

// nowDueSQL lets the deliveries of a webhook be looked at. next_at of a leased webhook stays: it is the end of the lease, and the holder
// sees the delivery before it ends the lease.
const nowDueSQL = `UPDATE webhooks SET next_at = CASE WHEN lease IS NULL THEN least(next_at, now()) ELSE next_at END WHERE id = $1`

// AddDelivery implements webhooks.Tx.
func (t *Tx) AddDelivery(d *webhook.Delivery) error {
	var number *int64
	if d.Position != nil {
		number = &d.Position.Number
	}
	saved, err := Find(t.ctx, t.tx, rowToDelivery,
		`INSERT INTO webhook_deliveries AS d (id, webhook_id, tenant_id, event_id, type, position, state, next_at, created_at)
 VALUES ($1, $2, $3, $4, $5, $6, 'PENDING', now(), now()) RETURNING `+deliveryColumns, d.ID, d.WebhookID, d.TenantID, d.EventID, d.Type,
		number)
	if err != nil {
		return err
	}
	*d = *saved
	return t.Exec("webhook", nowDueSQL, d.WebhookID)
}

// waitingTestsSQL reads the newest deliveries only, so that its time does not grow with the queue: tests are the newest when they are
// requested.
const waitingTestsSQL = `SELECT count(*) FROM (SELECT type, state FROM webhook_deliveries WHERE webhook_id = $1 ORDER BY id DESC
	LIMIT 1000) newest
 WHERE state = 'PENDING' AND type = 'webhook.test'`

// WaitingTests implements webhooks.Tx.
func (t *Tx) WaitingTests(webhook uuid.UUID) (n int, err error) {
	if err := t.tx.QueryRow(t.ctx, waitingTestsSQL, webhook).Scan(&n); err != nil {
		return 0, fmt.Errorf("counting tests of a webhook: %w", err)
	}
	return n, nil
}

// Delivery implements webhooks.Tx.
func (t *Tx) Delivery(tenant, id uuid.UUID) (*webhook.Delivery, error) {
	return Find(t.ctx, t.tx, rowToDelivery, `SELECT `+deliveryColumns+` FROM webhook_deliveries d WHERE d.id = $1 AND d.tenant_id = $2 AND
 EXISTS (SELECT FROM webhooks w WHERE w.id = d.webhook_id AND w.status <> 'REMOVED')`, id, tenant)
}

// RepeatDelivery implements webhooks.Tx.
func (t *Tx) RepeatDelivery(d *webhook.Delivery) error {
	saved, err := Find(t.ctx, t.tx, rowToDelivery,
		`UPDATE webhook_deliveries d SET state = 'PENDING', attempts = 0, next_at = now(), ended_at = NULL WHERE id = $1 RETURNING `+
			deliveryColumns, d.ID)
	if err != nil {
		return err
	}
	*d = *saved
	return t.Exec("webhook", nowDueSQL, d.WebhookID)
}

// SettleDelivery implements webhooks.Tx.
func (t *Tx) SettleDelivery(w *webhook.Webhook, d *webhook.Delivery, a webhook.Attempt) error {
	for _, change := range settling(w, d, a) {
		t.Queue("delivery", change.sql, change.args...)
	}
	return nil
}

type statement struct {
	sql  string
	args []any
}

// settling returns the statements that save an attempt.
func settling(w *webhook.Webhook, d *webhook.Delivery, a webhook.Attempt) []statement {
	return []statement{
		{`UPDATE webhook_deliveries SET state = $2, attempts = $3, sent = $4, next_at = $5, ended_at = $6 WHERE id = $1`,
			[]any{d.ID, d.State, d.Attempts, d.Sent, d.NextAt, d.EndedAt}},
		{`INSERT INTO webhook_attempts (delivery_id, tenant_id, n, at, status, duration_ms, error) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
			[]any{d.ID, d.TenantID, a.N, a.At, a.Status, a.DurationMS, a.Error}},
		{`DELETE FROM webhook_attempts WHERE delivery_id = $1 AND n <= $2`, []any{d.ID, a.N - webhook.AttemptsKept}},
		{`UPDATE webhooks SET failing_since = $2, last_success_at = $3 WHERE id = $1`, []any{w.ID, w.FailingSince, w.LastSuccessAt}},
	}
}

// LastRecorded implements webhooks.Tx.
func (t *Tx) LastRecorded(partition int16, before time.Time) (number int64, err error) {
	if err := t.tx.QueryRow(t.ctx, `SELECT recorded_until($1, $2, false)`, partition, before).Scan(&number); err != nil {
		return 0, fmt.Errorf("reading the position of a time: %w", err)
	}
	return number, nil
}

// Webhook returns a webhook of a tenant; nil also for a removed one.
func (c *Catalogue) Webhook(ctx context.Context, tenant, id uuid.UUID) (*webhook.Webhook, error) {
	return Get(ctx, c, pgx.RowToStructByName[webhook.Webhook], webhookSQL, id, tenant)
}

// Webhooks lists the webhooks of a tenant.
func (c *Catalogue) Webhooks(ctx context.Context, tenant uuid.UUID, p commands.Page) ([]webhook.Webhook, error) {
	return List(ctx, c, pgx.RowToStructByName[webhook.Webhook],
		`SELECT `+webhookColumns+` FROM webhooks w WHERE w.tenant_id = $1 AND w.status <> 'REMOVED' AND w.id > $2 ORDER BY w.id LIMIT $3`,
		tenant, AfterID(p), p.Limit)
}

// Ids follow time, within an instance's clock.
const deliveriesSQL = `SELECT ` + deliveryColumns + `, a.last
 FROM webhook_deliveries d, LATERAL (SELECT json_agg(json_build_object('n', n, 'at', at, 'status', status, 'durationMs', duration_ms,
  'error', error) ORDER BY n) AS last FROM webhook_attempts WHERE delivery_id = d.id) a
 WHERE d.webhook_id = $1 AND ($2 = '' OR d.state = $2) AND ($3::uuid IS NULL OR d.id < $3) ORDER BY d.id DESC LIMIT $4`

// Deliveries lists the deliveries of a webhook with their last attempts, the newest first.
func (c *Catalogue) Deliveries(ctx context.Context, q webhooks.DeliveryQuery) ([]webhook.Delivery, error) {
	return List(ctx, c, rowToDelivery, deliveriesSQL, q.WebhookID, q.State, BeforeID(q.Page), q.Limit)
}

// TenantOfDelivery returns the tenant of a delivery; Nil if it is unknown.
func (c *Catalogue) TenantOfDelivery(ctx context.Context, id uuid.UUID) (uuid.UUID, error) {
	tenant, err := Get(ctx, c, pgx.RowTo[uuid.UUID], `SELECT tenant_id FROM webhook_deliveries WHERE id = $1`, id)
	if err != nil || tenant == nil {
		return uuid.Nil, err
	}
	return *tenant, nil
}
