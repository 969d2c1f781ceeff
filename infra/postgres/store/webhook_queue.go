package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
)

var _ webhooks.Queue = (*Webhooks)(nil)

const (
	// feedSpan bounds the positions of a partition that one transaction reads for a webhook.
	feedSpan = 10_000
	// feedWebhooks bounds the webhooks of one look, and feedBatch those of a transaction: each statement of it serves all of them.
	feedWebhooks = 200
	feedBatch    = 50
)

// fed selects the enabled webhooks behind whose cursor an event of their types may be, and those that replay a range. Billing,
// notifications and reservations have topics of their own: usage does not move a cursor, except in large steps.
var fed = events.SQL(`w.status = 'ENABLED' AND (w.replay_after < w.replay_until OR h.position > w.cursor AND (h.position > w.cursor + 10000
  OR greatest(h.topic_positions[{meterplex.billing}], h.topic_positions[{meterplex.notifications}]) > w.cursor
  OR 'reservation.expired' = ANY (w.events) AND h.topic_positions[{usage.reservations}] > w.cursor
  OR 'usage.refused' = ANY (w.events) AND h.topic_positions[{usage.duplicates}] > w.cursor
  OR 'adjustment.pending' = ANY (w.events) AND EXISTS (SELECT FROM adjustments a WHERE a.tenant_id = w.tenant_id
  AND a.position > w.cursor)))`)

var lookSQL = `SELECT EXISTS (SELECT FROM webhooks WHERE status = 'ENABLED'),
 EXISTS (SELECT FROM webhooks w JOIN log_heads h USING (partition) WHERE ` + fed + `),
 EXISTS (SELECT FROM webhooks WHERE status = 'ENABLED' AND next_at <= now())`

// LookForWebhooks implements webhooks.Queue.
func (s *Webhooks) LookForWebhooks(ctx context.Context) (some, feed, due bool, err error) {
	if err := s.Store.pool.QueryRow(ctx, lookSQL).Scan(&some, &feed, &due); err != nil {
		return false, false, false, fmt.Errorf("looking for deliveries of webhooks: %w", err)
	}
	return some, feed, due, nil
}

var awaitsEventsSQL = `SELECT EXISTS (SELECT FROM webhooks w JOIN log_heads h USING (partition) WHERE w.id = $1 AND ` + fed + `)`

// AwaitsEvents implements webhooks.Tx.
func (t *Tx) AwaitsEvents(webhook uuid.UUID) (awaits bool, err error) {
	if err := t.tx.QueryRow(t.ctx, awaitsEventsSQL, webhook).Scan(&awaits); err != nil {
		return false, fmt.Errorf("looking for events of a webhook: %w", err)
	}
	return awaits, nil
}

// FeedWebhooks implements webhooks.Queue. A transaction feeds some webhooks, and leaves those out that another instance feeds.
func (s *Webhooks) FeedWebhooks(ctx context.Context) error {
	ids, err := FindAll(ctx, s.Store.pool, "finding webhooks with events", pgx.RowTo[uuid.UUID],
		`SELECT w.id FROM webhooks w JOIN log_heads h USING (partition) WHERE `+fed+` LIMIT $1`, feedWebhooks)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(ids, feedBatch) {
		if err := postgres.InTx(ctx, s.Store.pool, func(tx pgx.Tx) error { return s.feed(ctx, tx, some) }); err != nil {
			return fmt.Errorf("making deliveries of webhooks: %w", err)
		}
	}
	return nil
}

// feeding is a webhook that is fed: the next events behind its cursor, and the next part of the range that it replays.
type feeding struct {
	webhook.Webhook
	Head  int64
	added bool
}

// feed makes the deliveries of webhooks.
func (s *Webhooks) feed(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) error {
	// Positions follow the order of commits: the events up to these heads are visible to the next statement.
	list, err := FindAll(ctx, tx, "locking webhooks", pgx.RowToAddrOfStructByName[feeding], `SELECT `+webhookColumns+`,
 (SELECT h.position FROM log_heads h WHERE h.partition = w.partition) AS head
 FROM webhooks w WHERE w.id = ANY ($1) AND w.status = 'ENABLED' ORDER BY w.id FOR UPDATE SKIP LOCKED`, ids)
	var batch pgx.Batch
	var fresh, again deliveries
	for _, f := range list {
		if upTo := min(f.Head, f.Cursor+feedSpan); upTo > f.Cursor {
			s.read(&batch, f, f.Cursor, upTo, &fresh)
			f.Cursor = upTo
		}
		if f.Replaying {
			upTo := min(f.ReplayUntil, f.ReplayAfter+feedSpan)
			s.read(&batch, f, f.ReplayAfter, upTo, &again)
			f.ReplayAfter = upTo
		}
	}
	if err == nil && batch.Len() > 0 {
		err = tx.SendBatch(ctx, &batch).Close()
	}
	if err == nil {
		err = fresh.add(ctx, tx, `NOTHING`)
	}
	if err == nil {
		err = again.add(ctx, tx, againSQL)
	}
	if err != nil {
		return err
	}
	return saveFed(ctx, tx, list)
}

const fedSQL = `UPDATE webhooks w SET cursor = u.cursor, replay_after = u.replay_after, next_at = CASE WHEN u.added
	AND w.lease IS NULL THEN least(w.next_at, now()) ELSE w.next_at END
 FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::boolean[]) AS u (id, cursor, replay_after, added) WHERE w.id = u.id`

func saveFed(ctx context.Context, tx pgx.Tx, list []*feeding) error {
	var ids []uuid.UUID
	var cursors, replays []int64
	var added []bool
	for _, f := range list {
		ids, cursors, replays, added = append(ids, f.ID), append(cursors, f.Cursor), append(replays, f.ReplayAfter), append(added, f.added)
	}
	_, err := tx.Exec(ctx, fedSQL, ids, cursors, replays, added)
	return err
}

// An adjustment that is void from its start was never pending.
var eventsOfWebhookSQL = events.SQL(`SELECT l.position, l.event_id, l.subject::int,
	CASE WHEN l.subject = {usage.event.refusals_seen} THEN payload(l)::text END FROM event_log_rows l
 WHERE l.partition = $1 AND l.position > $2 AND l.position <= $3 AND l.tenant_id = $4 AND l.subject = ANY ($5::smallint[])
 UNION ALL
 SELECT a.position, a.id, 0, NULL FROM adjustments a
 WHERE $6 AND a.tenant_id = $4 AND a.position > $2 AND a.position <= $3 AND (a.decided IS NULL OR a.decided > a.position)
 ORDER BY 1`)

const (
	newDeliveriesSQL = `INSERT INTO webhook_deliveries (id, webhook_id, tenant_id, event_id, type, position, state, next_at, created_at)
 SELECT u.id, u.webhook, u.tenant, u.event, u.type, u.position, 'PENDING', now(), now()
 FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::bigint[]) AS u (id, webhook, tenant, event, type, position)
 ON CONFLICT (webhook_id, event_id) DO `
	againSQL = `UPDATE SET state = 'PENDING', attempts = 0, next_at = now(), ended_at = NULL`
)

// deliveries are new rows, by columns.
type deliveries struct {
	ids, webhooks, tenants, events []uuid.UUID
	types                          []string
	positions                      []int64
	noticed                        map[[2]uuid.UUID]bool // the notices of refusals by webhook: a statement has each once
}

// of adds the delivery of an event.
func (d *deliveries) of(w *feeding, id, event uuid.UUID, kind string, position int64) {
	d.ids, d.webhooks, d.tenants = append(d.ids, id), append(d.webhooks, w.ID), append(d.tenants, w.TenantID)
	d.events, d.types, d.positions = append(d.events, event), append(d.types, kind), append(d.positions, position)
	w.added = true
}

// refusals adds the deliveries of an event of refusals, one for each group that has none in its minute.
func (d *deliveries) refusals(w *feeding, newID func() uuid.UUID, payload string, position int64) error {
	notices, err := webhook.RefusalNotices(w.TenantID, []byte(payload))
	if err != nil {
		return err
	}
	if d.noticed == nil {
		d.noticed = map[[2]uuid.UUID]bool{}
	}
	for event := range notices {
		if key := [2]uuid.UUID{w.ID, event}; !d.noticed[key] {
			d.noticed[key] = true
			d.of(w, newID(), event, webhook.UsageRefused, position)
		}
	}
	return nil
}

// add inserts the deliveries. An event that has one is left out, or sent again.
func (d *deliveries) add(ctx context.Context, tx pgx.Tx, conflict string) error {
	if len(d.ids) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, newDeliveriesSQL+conflict, d.ids, d.webhooks, d.tenants, d.events, d.types, d.positions)
	return err
}

// read queues the query of a webhook's events in a range, each of which is a delivery.
func (s *Webhooks) read(batch *pgx.Batch, w *feeding, after, upTo int64, to *deliveries) {
	var subjects []int16
	kinds, pending := map[int]string{0: webhook.AdjustmentPending}, false
	for _, kind := range w.Events {
		if subject := webhook.Subject(kind); subject != 0 {
			subjects, kinds[int(subject)] = append(subjects, int16(subject)), kind
		} else {
			pending = true
		}
	}
	batch.Queue(eventsOfWebhookSQL, events.PartitionOf(w.TenantID), after, upTo, w.TenantID, subjects, pending).
		Query(func(rows pgx.Rows) error {
			var position int64
			var event uuid.UUID
			var subject int
			var refusals *string
			_, err := pgx.ForEachRow(rows, []any{&position, &event, &subject, &refusals}, func() error {
				if refusals != nil {
					return to.refusals(w, s.NewID, *refusals, position)
				}
				to.of(w, s.NewID(), event, kinds[subject], position)
				return nil
			})
			return err
		})
}

// The lease lasts without a transaction. next_at moves to its end, so that a leased webhook is not due.
const leaseWebhooksSQL = `UPDATE webhooks SET lease = $2, next_at = now() + $3::interval WHERE id = ANY (ARRAY(
  SELECT id FROM webhooks WHERE status = 'ENABLED' AND next_at <= now() AND (failing_since IS NOT NULL) = $1 ORDER BY next_at LIMIT $4
  FOR UPDATE SKIP LOCKED)) RETURNING id, tenant_id`

// LeaseWebhooks implements webhooks.Queue.
func (s *Webhooks) LeaseWebhooks(ctx context.Context, failing bool, limit int, lease uuid.UUID,
	until time.Duration) ([]webhooks.LeasedWebhook, error) {
	return FindAll(ctx, s.Store.pool, "leasing webhooks", pgx.RowToStructByPos[webhooks.LeasedWebhook], leaseWebhooksSQL, failing, lease,
		until, limit)
}

const (
	renewWebhookSQL = `UPDATE webhooks SET next_at = now() + $3::interval WHERE id = $1 AND lease = $2 AND status = 'ENABLED' RETURNING url,
		operators`

	secretsSQL = `SELECT secret FROM webhook_secrets WHERE webhook_id = $1 AND (expires_at IS NULL OR expires_at > now()) ORDER BY id DESC`

	// The id of a notice of refused usage is not that of its event.
	dueDeliverySQL = `SELECT ` + deliveryColumns + `, coalesce(l.subject, 0) AS subject,
 coalesce(l.occurred_at, d.created_at) AS occurred_at, coalesce(l.correlation_id, '00000000-0000-0000-0000-000000000000') AS trace,
 coalesce(payload(l)::text, 'null') AS payload
 FROM webhook_deliveries d LEFT JOIN event_log_rows l ON l.partition = $2 AND l.position = d.position AND (l.event_id = d.event_id
 OR d.type = 'usage.refused' AND l.tenant_id = d.tenant_id)
 WHERE d.webhook_id = $1 AND d.state = 'PENDING' AND d.next_at <= now() ORDER BY d.next_at, d.id LIMIT 1`

	// A webhook whose last request failed rests for a second, so that a long queue is not sent in a rush. Once no delivery waits, its
	// failures have ended: the next one, which may be that of an event weeks later, begins anew.
	releaseWebhookSQL = `UPDATE webhooks w SET lease = NULL, failing_since = CASE WHEN d.next_at IS NOT NULL THEN w.failing_since END,
 next_at = CASE WHEN d.next_at IS NOT NULL THEN greatest(d.next_at,
 CASE WHEN w.failing_since IS NOT NULL THEN now() + interval '1 second' END) END
 FROM (SELECT (SELECT next_at FROM webhook_deliveries WHERE webhook_id = $1 AND state = 'PENDING' ORDER BY next_at LIMIT 1) AS next_at) d
 WHERE w.id = $1 AND w.lease = $2`
)

// inTurn runs a transaction of a delivery. Hundreds of webhooks are sent at the same time; the connections are those through which events
// are written.
func (s *Webhooks) inTurn(ctx context.Context, change func(pgx.Tx) error) error {
	leave, err := s.Store.deliveries.acquireWithin(ctx, deliveryPatience)
	if err != nil {
		return err
	}
	defer leave()
	return postgres.InTx(ctx, s.Store.pool, change)
}

// NextDelivery implements webhooks.Queue. The row of the webhook is locked, so that a delivery which is added meanwhile lets the webhook be
// due.
func (s *Webhooks) NextDelivery(ctx context.Context, id, lease uuid.UUID, until time.Duration) (due *webhook.Due, err error) {
	err = s.inTurn(ctx, func(tx pgx.Tx) error {
		due = nil
		w, err := Find(ctx, tx, pgx.RowToStructByNameLax[webhook.Webhook], renewWebhookSQL+`, tenant_id`, id, lease, until)
		if err != nil || w == nil {
			return err
		}
		found, err := Find(ctx, tx, readDelivery, dueDeliverySQL, id, events.PartitionOf(w.TenantID))
		if err != nil {
			return err
		}
		if found == nil {
			_, err := tx.Exec(ctx, releaseWebhookSQL, id, lease)
			return err
		}
		found.URL, found.Operators = w.URL, w.Operators
		if found.Secrets, err = FindAll(ctx, tx, "reading secrets", pgx.RowTo[string], secretsSQL, id); err == nil {
			due = &found.Due
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading a delivery of a webhook: %w", err)
	}
	return due, nil
}

// SettleDelivery implements webhooks.Queue. It does not change a delivery that was settled meanwhile.
func (s *Webhooks) SettleDelivery(ctx context.Context, id, lease, delivery uuid.UUID,
	settle func(*webhook.Webhook, *webhook.Delivery, time.Time) (webhook.Attempt, bool)) (held bool, err error) {
	err = s.inTurn(ctx, func(tx pgx.Tx) error {
		held = false
		w, err := Find(ctx, tx, pgx.RowToStructByName[webhook.Webhook],
			`SELECT `+webhookColumns+` FROM webhooks w WHERE w.id = $1 AND w.lease = $2 FOR UPDATE`, id, lease)
		if err != nil || w == nil {
			return err
		}
		d, err := Find(ctx, tx, readDelivery, `SELECT `+deliveryColumns+`, clock_timestamp() AS now
			FROM webhook_deliveries d WHERE d.id = $1 AND d.state = 'PENDING' FOR UPDATE`, delivery)
		if err != nil || d == nil {
			return err
		}
		held = true
		attempt, save := settle(w, &d.Delivery, d.Now)
		if !save {
			return nil
		}
		for _, change := range settling(w, &d.Delivery, attempt) {
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

// ReleaseWebhook implements webhooks.Queue.
func (s *Webhooks) ReleaseWebhook(ctx context.Context, webhook, lease uuid.UUID) error {
	err := s.inTurn(ctx, func(tx pgx.Tx) error {
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
