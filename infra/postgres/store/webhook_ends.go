package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/infra/postgres"
)

const (
	// failedInChange bounds the deliveries that a change of a webhook lets fail: it holds the head of its partition, and that of an
	// archived tenant has 20 webhooks.
	failedInChange = 100
	// failedAtOnce bounds the deliveries that one transaction of EndDeliveries lets fail: a change of their webhook waits for it.
	failedAtOnce = 500
)

// failDeliveriesSQL reads a page of the index of waiting deliveries, under the lock of the webhook's row. The state is not compared again:
// for that the planner reads the whole index.
const failDeliveriesSQL = `UPDATE webhook_deliveries SET state = 'FAILED', next_at = NULL, ended_at = now()
 WHERE id = ANY (ARRAY(SELECT id FROM webhook_deliveries WHERE webhook_id = $1 AND state = 'PENDING' ORDER BY next_at LIMIT $2))`

// FailDeliveries implements webhooks.EndTx. A lease ends with it: the result of a running request is dropped. EndDeliveries lets the other
// deliveries fail.
func (t *Tx) FailDeliveries(webhook uuid.UUID) error {
	t.Queue("delivery", failDeliveriesSQL, webhook, failedInChange)
	return t.Exec("webhook", `UPDATE webhooks SET lease = NULL, next_at = NULL WHERE id = $1`, webhook)
}

// endedWebhooksSQL steps from webhook to webhook in the index of waiting deliveries: its time grows with the webhooks that have one, and
// not with the deliveries or with the webhooks that were removed.
const endedWebhooksSQL = `WITH RECURSIVE waiting (webhook) AS (
  (SELECT webhook_id FROM webhook_deliveries WHERE state = 'PENDING' ORDER BY webhook_id LIMIT 1)
  UNION ALL
  SELECT (SELECT d.webhook_id FROM webhook_deliveries d WHERE d.state = 'PENDING' AND d.webhook_id > waiting.webhook ORDER BY d.webhook_id
  LIMIT 1)
  FROM waiting WHERE waiting.webhook IS NOT NULL)
 SELECT w.id FROM waiting JOIN webhooks w ON w.id = waiting.webhook WHERE w.status <> 'ENABLED'`

// EndDeliveries implements webhooks.Queue.
func (s *Webhooks) EndDeliveries(ctx context.Context) error {
	ids, err := FindAll(ctx, s.Store.pool, "finding webhooks that ended", pgx.RowTo[uuid.UUID], endedWebhooksSQL)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := loop.Batches(ctx, func() (more bool, err error) { return s.endSome(ctx, id) }); err != nil {
			return fmt.Errorf("ending deliveries of a webhook: %w", err)
		}
	}
	return nil
}

// endSome lets some waiting deliveries of a webhook fail, unless it is enabled again: deliveries that still wait then are sent. It locks
// the row of the webhook, under which all deliveries change, and no head. A row that another session has locked is left to the next run.
func (s *Webhooks) endSome(ctx context.Context, webhook uuid.UUID) (more bool, err error) {
	err = postgres.InTx(ctx, s.Store.pool, func(tx pgx.Tx) error {
		locked, err := tx.Exec(ctx, `SELECT FROM webhooks w WHERE w.id = $1 AND w.status <> 'ENABLED' FOR UPDATE SKIP LOCKED`, webhook)
		if err != nil || locked.RowsAffected() == 0 {
			more = false
			return err
		}
		failed, err := tx.Exec(ctx, failDeliveriesSQL, webhook, failedAtOnce)
		more = failed.RowsAffected() == failedAtOnce
		return err
	})
	return more, err
}
