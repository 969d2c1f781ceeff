package store

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// Failures are a series as long as deliveries wait. Otherwise the first failure of an event weeks later would disable the webhook.
func TestTheFailuresOfAWebhookEndWithItsDeliveries(t *testing.T) {
	for state, failing := range map[string]bool{
		`state = 'FAILED', next_at = NULL, ended_at = now()`: false,
		`next_at = now() + interval '1 hour'`:                true,
	} {
		f := newHookFixture(t)
		tenant := f.tenant()
		w := f.create(tenant, "https://example.com")
		f.crossed(tenant, 1)
		queue, lease := &Webhooks{Store: f.store, NewID: newTestID}, newTestID()
		f.must(queue.FeedWebhooks(t.Context()))
		if leased, err := queue.LeaseWebhooks(t.Context(), false, 1, lease, time.Minute); err != nil || len(leased) != 1 {
			t.Fatal(leased, err)
		}
		_, err := f.pool.Exec(t.Context(), `UPDATE webhooks SET failing_since = now() - interval '4 days'`)
		f.must(err)
		_, err = f.pool.Exec(t.Context(), `UPDATE webhook_deliveries SET `+state)
		f.must(err)
		f.must(queue.ReleaseWebhook(t.Context(), w.ID, lease))
		if got := f.read(tenant, w.ID); (got.FailingSince != nil) != failing {
			t.Errorf("with %s: failing since %v", state, got.FailingSince)
		}
		if n := f.count(`SELECT count(*) FROM webhooks WHERE lease IS NULL AND (next_at IS NOT NULL) = ` + map[bool]string{true: "true", false: "false"}[failing]); n != 1 {
			t.Errorf("with %s: the webhook's lease or its next time is wrong", state)
		}
	}
}

// Any number of deliveries leaves connections to the writers of events.
func TestP9_DeliveriesLeaveConnectionsToWriters(t *testing.T) {
	f := newHookFixture(t)
	tenant := f.tenant()
	w := f.create(tenant, "https://example.com")
	holder, err := f.pool.Begin(t.Context())
	f.must(err)
	defer func() { _ = holder.Rollback(context.Background()) }()
	_, err = holder.Exec(t.Context(), `SET LOCAL idle_in_transaction_session_timeout = 0`)
	f.must(err)
	_, err = holder.Exec(t.Context(), `SELECT FROM webhooks FOR UPDATE`)
	f.must(err)
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 2 * f.pool.Config().MaxConns {
		all.Go(func() {
			_ = (&Webhooks{Store: f.store, NewID: newTestID}).ReleaseWebhook(ctx, w.ID, uuid.New())
		})
	}
	f.until("transactions wait for the webhook", func() bool {
		return f.count(`SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted AND a.datname = current_database()`) >= maxDeliveries
	})
	for range 50 {
		if n := f.pool.Stat().AcquiredConns(); n > maxDeliveries+1 {
			t.Fatalf("deliveries have %d connections", n-1)
		}
		time.Sleep(2 * time.Millisecond)
	}
	f.crossed(tenant, 1) // is written
	stop()
	all.Wait()
}
