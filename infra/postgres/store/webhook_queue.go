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
)

var _ commands.WebhookQueue = (*Webhooks)(nil)

const (
	// feedSpan bounds the positions of a partition that one transaction reads for a webhook.
	feedSpan = 10_000
	// feedWebhooks bounds the webhooks of one look.
	feedWebhooks = 200
)

// fed selects the enabled webhooks behind whose cursor an event of their types may be, and those that replay a range. Billing, notifications and reservations have
// topics of their own: usage does not move a cursor, except in large steps.
var fed = events.SQL(`w.status = 'ENABLED' AND (w.replay_after < w.replay_until OR h.position > w.cursor AND (h.position > w.cursor + 10000
  OR greatest(h.topic_positions[{meterplex.billing}], h.topic_positions[{meterplex.notifications}]) > w.cursor
  OR 'reservation.expired' = ANY (w.events) AND h.topic_positions[{usage.reservations}] > w.cursor
  OR 'adjustment.pending' = ANY (w.events) AND EXISTS (SELECT FROM adjustments a WHERE a.tenant_id = w.tenant_id AND a.position > w.cursor)))`)

var lookSQL = `SELECT EXISTS (SELECT FROM webhooks WHERE status = 'ENABLED'),
 EXISTS (SELECT FROM webhooks w JOIN log_heads h USING (partition) WHERE ` + fed + `),
 EXISTS (SELECT FROM webhooks WHERE status = 'ENABLED' AND next_at <= now())`

// LookForWebhooks implements commands.WebhookQueue.
func (s *Webhooks) LookForWebhooks(ctx context.Context) (some, feed, due bool, err error) {
	if err := s.Store.pool.QueryRow(ctx, lookSQL).Scan(&some, &feed, &due); err != nil {
		return false, false, false, fmt.Errorf("looking for deliveries of webhooks: %w", err)
	}
	return some, feed, due, nil
}

// FeedWebhooks implements commands.WebhookQueue. Each webhook has a transaction of its own, which another instance leaves out.
func (s *Webhooks) FeedWebhooks(ctx context.Context) error {
	rows, err := s.Store.pool.Query(ctx, `SELECT w.id FROM webhooks w JOIN log_heads h USING (partition) WHERE `+fed+` LIMIT $1`, feedWebhooks)
	if err != nil {
		return fmt.Errorf("finding webhooks with events: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("finding webhooks with events: %w", err)
	}
	for _, id := range ids {
		if err := postgres.InTx(ctx, s.Store.pool, func(tx pgx.Tx) error { return s.feed(ctx, tx, id) }); err != nil {
			return fmt.Errorf("making deliveries of the webhook %s: %w", id, err)
		}
	}
	return nil
}

// feed makes the deliveries of a webhook: of the next events behind its cursor, and of the next part of the range that it replays.
func (s *Webhooks) feed(ctx context.Context, tx pgx.Tx, id uuid.UUID) error {
	// Positions follow the order of commits: the events up to this head are visible to the next statement.
	var head int64
	w, err := scanWebhook(tx.QueryRow(ctx, `SELECT `+webhookColumns+`, (SELECT h.position FROM log_heads h WHERE h.partition = w.partition)
 FROM webhooks w WHERE w.id = $1 AND w.status = 'ENABLED' FOR UPDATE SKIP LOCKED`, id), &head)
	if err != nil || w == nil {
		return err
	}
	added := false
	if upTo := min(head, w.Cursor+feedSpan); upTo > w.Cursor {
		if err := s.addDeliveries(ctx, tx, w, w.Cursor, upTo, false, &added); err != nil {
			return err
		}
		w.Cursor = upTo
	}
	if w.Replaying() {
		upTo := min(w.ReplayUntil, w.ReplayAfter+feedSpan)
		if err := s.addDeliveries(ctx, tx, w, w.ReplayAfter, upTo, true, &added); err != nil {
			return err
		}
		w.ReplayAfter = upTo
	}
	_, err = tx.Exec(ctx, fedSQL, id, w.Cursor, w.ReplayAfter, added)
	return err
}

const fedSQL = `UPDATE webhooks SET cursor = $2, replay_after = $3, next_at = CASE WHEN $4 AND lease IS NULL THEN least(next_at, now()) ELSE next_at END WHERE id = $1`

// An adjustment that is void from its start was never pending.
const eventsOfWebhookSQL = `SELECT l.position, l.event_id, l.subject::int FROM event_log_rows l
 WHERE l.partition = $1 AND l.position > $2 AND l.position <= $3 AND l.tenant_id = $4 AND l.subject = ANY ($5::smallint[])
 UNION ALL
 SELECT a.position, a.id, 0 FROM adjustments a
 WHERE $6 AND a.tenant_id = $4 AND a.position > $2 AND a.position <= $3 AND (a.decided IS NULL OR a.decided > a.position)
 ORDER BY 1`

const (
	newDeliveriesSQL = `INSERT INTO webhook_deliveries (id, webhook_id, tenant_id, event_id, type, position, state, next_at, created_at)
 SELECT u.id, $1, $2, u.event, u.type, u.position, 'PENDING', now(), now() FROM unnest($3::uuid[], $4::uuid[], $5::text[], $6::bigint[]) AS u (id, event, type, position)
 ON CONFLICT (webhook_id, event_id) DO `
	againSQL = `UPDATE SET state = 'PENDING', attempts = 0, next_at = now(), ended_at = NULL`
)

// addDeliveries adds a delivery for each event of a range. An event that has one is left out, or sent again.
func (s *Webhooks) addDeliveries(ctx context.Context, tx pgx.Tx, w *domain.Webhook, after, upTo int64, again bool, added *bool) error {
	var subjects []int16
	kinds, pending := map[int]string{0: domain.WebhookAdjustmentPending}, false
	for _, kind := range w.Events {
		if subject := domain.WebhookSubject(kind); subject != 0 {
			subjects, kinds[int(subject)] = append(subjects, int16(subject)), kind
		} else {
			pending = true
		}
	}
	rows, err := tx.Query(ctx, eventsOfWebhookSQL, events.PartitionOf(w.TenantID), after, upTo, w.TenantID, subjects, pending)
	if err != nil {
		return err
	}
	var (
		ids, of   []uuid.UUID
		types     []string
		positions []int64
		position  int64
		event     uuid.UUID
		subject   int
	)
	if _, err := pgx.ForEachRow(rows, []any{&position, &event, &subject}, func() error {
		ids, of, types, positions = append(ids, s.NewID()), append(of, event), append(types, kinds[subject]), append(positions, position)
		return nil
	}); err != nil || len(ids) == 0 {
		return err
	}
	conflict := `NOTHING`
	if again {
		conflict = againSQL
	}
	*added = true
	_, err = tx.Exec(ctx, newDeliveriesSQL+conflict, w.ID, w.TenantID, ids, of, types, positions)
	return err
}

// The lease lasts without a transaction. next_at moves to its end, so that a leased webhook is not due.
const leaseWebhookSQL = `WITH leased AS (UPDATE webhooks SET lease = $2, next_at = now() + $3::interval WHERE id = (
  SELECT id FROM webhooks WHERE status = 'ENABLED' AND next_at <= now() AND (failing_since IS NOT NULL) = $1 ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING *)
 SELECT ` + webhookColumns + ` FROM leased w`

// LeaseWebhook implements commands.WebhookQueue.
func (s *Webhooks) LeaseWebhook(ctx context.Context, failing bool, lease uuid.UUID, until time.Duration) (*domain.Webhook, error) {
	return scanWebhook(s.Store.pool.QueryRow(ctx, leaseWebhookSQL, failing, lease, until))
}

const (
	renewWebhookSQL = `UPDATE webhooks SET next_at = now() + $3::interval WHERE id = $1 AND lease = $2 AND status = 'ENABLED' RETURNING url`

	secretsSQL = `SELECT secret FROM webhook_secrets WHERE webhook_id = $1 AND (expires_at IS NULL OR expires_at > now()) ORDER BY id DESC`

	dueDeliverySQL = `SELECT ` + deliveryColumns + `, coalesce(l.subject, 0)::int, coalesce(l.occurred_at, d.created_at), coalesce(payload(l)::text, 'null')
 FROM webhook_deliveries d LEFT JOIN event_log_rows l ON l.partition = $2 AND l.position = d.position AND l.event_id = d.event_id
 WHERE d.webhook_id = $1 AND d.state = 'PENDING' AND d.next_at <= now() ORDER BY d.next_at, d.id LIMIT 1`

	// A webhook whose last request failed rests for a second, so that a long queue is not sent in a rush.
	releaseWebhookSQL = `UPDATE webhooks w SET lease = NULL, next_at = (SELECT greatest(min(d.next_at), CASE WHEN w.failing_since IS NOT NULL THEN now() + interval '1 second' END)
   FROM webhook_deliveries d WHERE d.webhook_id = w.id AND d.state = 'PENDING' HAVING count(*) > 0) WHERE w.id = $1 AND w.lease = $2`
)

// NextDelivery implements commands.WebhookQueue. The row of the webhook is locked, so that a delivery which is added meanwhile lets the webhook be due.
func (s *Webhooks) NextDelivery(ctx context.Context, webhook, lease uuid.UUID, until time.Duration) (due *commands.DueDelivery, err error) {
	err = postgres.InTx(ctx, s.Store.pool, func(tx pgx.Tx) error {
		found := &commands.DueDelivery{}
		due = nil
		var tenant uuid.UUID
		if err := tx.QueryRow(ctx, renewWebhookSQL+`, tenant_id`, webhook, lease, until).Scan(&found.URL, &tenant); errors.Is(err, pgx.ErrNoRows) {
			return nil
		} else if err != nil {
			return err
		}
		var subject int
		d, err := scanDelivery(tx.QueryRow(ctx, dueDeliverySQL, webhook, events.PartitionOf(tenant)), &subject, &found.OccurredAt, &found.Payload)
		if err != nil {
			return err
		}
		if d == nil {
			_, err := tx.Exec(ctx, releaseWebhookSQL, webhook, lease)
			return err
		}
		rows, err := tx.Query(ctx, secretsSQL, webhook)
		if err != nil {
			return err
		}
		if found.Secrets, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return err
		}
		found.Delivery, found.Subject, due = *d, events.Subject(subject), found
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading a delivery of a webhook: %w", err)
	}
	return due, nil
}

// SettleDelivery implements commands.WebhookQueue. It does not change a delivery that was settled meanwhile.
func (s *Webhooks) SettleDelivery(ctx context.Context, webhook, lease, delivery uuid.UUID,
	settle func(*domain.Webhook, *domain.Delivery, time.Time) (domain.WebhookAttempt, bool)) (held bool, err error) {
	err = postgres.InTx(ctx, s.Store.pool, func(tx pgx.Tx) error {
		held = false
		w, err := scanWebhook(tx.QueryRow(ctx, `SELECT `+webhookColumns+` FROM webhooks w WHERE w.id = $1 AND w.lease = $2 FOR UPDATE`, webhook, lease))
		if err != nil || w == nil {
			return err
		}
		var now time.Time
		d, err := scanDelivery(tx.QueryRow(ctx, `SELECT `+deliveryColumns+`, clock_timestamp() FROM webhook_deliveries d WHERE d.id = $1 AND d.state = 'PENDING' FOR UPDATE`, delivery), &now)
		if err != nil || d == nil {
			return err
		}
		held = true
		attempt, save := settle(w, d, now)
		if !save {
			return nil
		}
		for _, change := range settling(w, d, attempt) {
			if _, err := tx.Exec(ctx, change.sql, change.args...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("saving a delivery of a webhook: %w", err)
	}
	return held, nil
}

// ReleaseWebhook implements commands.WebhookQueue.
func (s *Webhooks) ReleaseWebhook(ctx context.Context, webhook, lease uuid.UUID) error {
	err := postgres.InTx(ctx, s.Store.pool, func(tx pgx.Tx) error {
		// Whoever adds deliveries holds the row: the second statement sees them, which waits for nobody.
		if _, err := tx.Exec(ctx, `SELECT FROM webhooks w WHERE w.id = $1 FOR UPDATE`, webhook); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, releaseWebhookSQL, webhook, lease)
		return err
	})
	if err != nil {
		return fmt.Errorf("ending the lease of a webhook: %w", err)
	}
	return nil
}
