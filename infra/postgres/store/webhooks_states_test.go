package store

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

// Each state of a delivery has one meaning for all of its readers: those that list and send it, that end, repeat and delete it.
func TestEachReaderOfDeliveriesKnowsEachState(t *testing.T) {
	f := newHookFixture(t)
	hooks, tenant := &Webhooks{Store: f.store, NewID: newID}, f.tenant()
	w := f.create(tenant, "http://127.0.0.1:1/")
	for _, c := range []struct {
		state, nextAt, endedAt string
		sent                   bool   // now
		waits                  bool   // its webhook is looked at again, and an answer is saved
		disabled               string // its state once the webhook is disabled, and enabled again
		kept                   bool   // by the retention
	}{
		{"PENDING", "now()", "NULL", true, true, "FAILED", true},
		{"PENDING", "now() + interval '1 hour'", "NULL", false, true, "FAILED", true},
		{"DELIVERED", "NULL", "now()", false, false, "DELIVERED", true},
		{"DELIVERED", "NULL", "now() - interval '91 days'", false, false, "DELIVERED", false},
		{"FAILED", "NULL", "now()", false, false, "FAILED", true},
		{"FAILED", "NULL", "now() - interval '91 days'", false, false, "FAILED", false},
	} {
		what := c.state + ", next " + c.nextAt + ", ended " + c.endedAt
		must.Exec(t, f.pool, `DELETE FROM webhook_deliveries`)
		f.crossed(tenant, 1)
		must.OK(t, hooks.FeedWebhooks(t.Context()))
		set := func() (delivery, lease uuid.UUID) {
			must.Exec(t, f.pool, fmt.Sprintf(`UPDATE webhook_deliveries SET state = '%s', next_at = %s, ended_at = %s`, c.state, c.nextAt,
				c.endedAt))
			must.Exec(t, f.pool, `UPDATE webhooks SET lease = NULL, next_at = now()`)
			lease = newID()
			_, err := hooks.LeaseWebhooks(t.Context(), false, 1, lease, time.Minute)
			must.OK(t, err)
			must.OK(t, f.pool.QueryRow(t.Context(), `SELECT id FROM webhook_deliveries`).Scan(&delivery))
			return delivery, lease
		}
		same := func(reader string, got, want any) {
			t.Helper()
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: %s: %v instead of %v", what, reader, got, want)
			}
		}
		_, lease := set()
		for _, state := range []string{webhook.DeliveryPending, webhook.DeliveryDelivered, webhook.DeliveryFailed} {
			list, err := (&Catalogue{Pool: f.pool}).Deliveries(t.Context(), webhooks.DeliveryQuery{WebhookID: w.ID, State: state,
				Page: commands.Page{Limit: 9}})
			must.OK(t, err)
			same("the list of "+state, len(list) == 1, state == c.state)
		}
		due, err := hooks.NextDelivery(t.Context(), w.ID, lease, time.Minute)
		must.OK(t, err)
		same("the sender", due != nil, c.sent)
		must.OK(t, hooks.ReleaseWebhook(t.Context(), w.ID, lease))
		same("the queue", f.count(`SELECT count(*) FROM webhooks WHERE next_at IS NOT NULL`) == 1, c.waits)
		delivery, lease := set()
		held, err := hooks.SettleDelivery(t.Context(), w.ID, lease, delivery,
			func(*webhook.Webhook, *webhook.Delivery, time.Time) (a webhook.Attempt, save bool) {
				return a, false
			})
		must.OK(t, err)
		same("an answer", held, c.waits)
		f.setStatus(w, events.WebhookDisabled)
		same("a disabled webhook", f.states(w.ID), []string{c.disabled})
		f.setStatus(w, events.WebhookEnabled)
		same("an enabled webhook", f.states(w.ID), []string{c.disabled})
		set()
		_, err = f.webhooks.Replay(t.Context(), commands.Request{}, tenant, delivery)
		must.OK(t, err)
		same("a repetition", f.states(w.ID), []string{"PENDING"})
		set()
		_, err = f.webhooks.ReplayRange(t.Context(), commands.Request{}, tenant, w.ID, time.Now().Add(-time.Hour),
			time.Now().Add(time.Hour))
		must.OK(t, err)
		must.OK(t, hooks.FeedWebhooks(t.Context()))
		same("a repetition of the range", f.count(`SELECT count(*) FROM webhook_deliveries WHERE id = $1 AND state = 'PENDING'`, delivery),
			1)
		set()
		must.OK(t, (&Retention{Pool: f.pool, Batch: 9, Logger: slog.New(slog.DiscardHandler)}).Look(t.Context()))
		same("the retention", f.count(`SELECT count(*) FROM webhook_deliveries WHERE id = $1`, delivery) == 1, c.kept)
	}
}
