package store

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// A lease that ends while the queue is fed must not hide the new delivery behind the retry of an older one, or for ever.
func TestTheEndOfALeaseSeesDeliveriesThatAreAddedMeanwhile(t *testing.T) {
	for name, older := range map[string]string{"behind a retry": `UPDATE webhook_deliveries SET next_at = now() + interval '24 hours'`,
		"alone": `UPDATE webhook_deliveries SET state = 'DELIVERED', next_at = NULL, ended_at = now()`} {
		t.Run(name, func(t *testing.T) {
			f := newHookFixture(t)
			tenant := f.tenant()
			w := f.create(tenant, "https://example.com")
			f.crossed(tenant, 1)
			queue, lease := &Webhooks{Store: f.store, NewID: newTestID}, newTestID()
			f.must(queue.FeedWebhooks(t.Context()))
			if leased, err := queue.LeaseWebhooks(t.Context(), false, 1, lease, time.Minute); err != nil || len(leased) != 1 {
				t.Fatal(leased, err)
			}
			_, err := f.pool.Exec(t.Context(), older)
			f.must(err)
			f.crossed(tenant, 1)
			feeding, err := f.pool.Begin(t.Context())
			f.must(err)
			defer func() { _ = feeding.Rollback(context.Background()) }()
			f.must(queue.feed(t.Context(), feeding, []uuid.UUID{w.ID}))
			ended := make(chan error, 1)
			go func() { ended <- queue.ReleaseWebhook(t.Context(), w.ID, lease) }()
			f.until("the lease ends once the queue is fed", func() bool {
				return f.count(`SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted AND a.datname = current_database()`) > 0
			})
			f.must(feeding.Commit(t.Context()))
			f.must(<-ended)
			if f.count(`SELECT count(*) FROM webhooks WHERE lease IS NULL AND next_at <= now()`) != 1 || f.read(tenant, w.ID).Status != events.WebhookEnabled {
				t.Error("the new delivery is not due")
			}
		})
	}
}
