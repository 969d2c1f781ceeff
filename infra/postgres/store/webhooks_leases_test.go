package store

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
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
			queue, lease := &Webhooks{Store: f.store, NewID: newID}, newID()
			must.OK(f, queue.FeedWebhooks(t.Context()))
			if leased, err := queue.LeaseWebhooks(t.Context(), false, 1, lease, time.Minute); err != nil || len(leased) != 1 {
				t.Fatal(leased, err)
			}
			_, err := f.pool.Exec(t.Context(), older)
			must.OK(f, err)
			f.crossed(tenant, 1)
			feeding, err := f.pool.Begin(t.Context())
			must.OK(f, err)
			defer func() { _ = feeding.Rollback(context.Background()) }()
			must.OK(f, queue.feed(t.Context(), feeding, []uuid.UUID{w.ID}))
			ended := make(chan error, 1)
			go func() { ended <- queue.ReleaseWebhook(t.Context(), w.ID, lease) }()
			f.until("the lease ends once the queue is fed", func() bool {
				return f.count(`SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted
					AND a.datname = current_database()`) > 0
			})
			must.OK(f, feeding.Commit(t.Context()))
			must.OK(f, <-ended)
			if f.count(`SELECT count(*) FROM webhooks WHERE lease IS NULL AND next_at <= now()`) != 1 ||
				f.read(tenant, w.ID).Status != events.WebhookEnabled {
				t.Error("the new delivery is not due")
			}
		})
	}
}

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
		queue, lease := &Webhooks{Store: f.store, NewID: newID}, newID()
		must.OK(f, queue.FeedWebhooks(t.Context()))
		if leased, err := queue.LeaseWebhooks(t.Context(), false, 1, lease, time.Minute); err != nil || len(leased) != 1 {
			t.Fatal(leased, err)
		}
		_, err := f.pool.Exec(t.Context(), `UPDATE webhooks SET failing_since = now() - interval '4 days'`)
		must.OK(f, err)
		must.Exec(f, f.pool, `UPDATE webhook_deliveries SET `+state)
		must.OK(f, queue.ReleaseWebhook(t.Context(), w.ID, lease))
		if got := f.read(tenant, w.ID); (got.FailingSince != nil) != failing {
			t.Errorf("with %s: failing since %v", state, got.FailingSince)
		}
		if n := f.count(`SELECT count(*) FROM webhooks WHERE lease IS NULL AND (next_at IS NOT NULL) = ` +
			map[bool]string{true: "true", false: "false"}[failing]); n != 1 {
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
	must.OK(f, err)
	defer func() { _ = holder.Rollback(context.Background()) }()
	must.Exec(f, holder, `SET LOCAL idle_in_transaction_session_timeout = 0`)
	must.Exec(f, holder, `SELECT FROM webhooks FOR UPDATE`)
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 2 * f.pool.Config().MaxConns {
		all.Go(func() {
			_ = (&Webhooks{Store: f.store, NewID: newID}).ReleaseWebhook(ctx, w.ID, uuid.New())
		})
	}
	f.until("transactions wait for the webhook", func() bool {
		return f.count(`SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted
			AND a.datname = current_database()`) >= maxDeliveries
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

// frozenQueue is the queue of an instance that is frozen with a delivery in hand, until it is resumed.
type frozenQueue struct {
	webhooks.Queue
	got, resumed, left chan struct{}
}

func (q *frozenQueue) NextDelivery(ctx context.Context, webhook, lease uuid.UUID, until time.Duration) (*webhook.Due, error) {
	due, err := q.Queue.NextDelivery(ctx, webhook, lease, until)
	if due != nil {
		q.got <- struct{}{}
		<-q.resumed
	}
	return due, err
}

func (q *frozenQueue) ReleaseWebhook(ctx context.Context, webhook, lease uuid.UUID) error {
	defer func() { q.left <- struct{}{} }()
	return q.Queue.ReleaseWebhook(ctx, webhook, lease)
}

// An instance that was frozen with a delivery in hand for longer than its lease does not send it on its return: another one has sent it, or
// the webhook is disabled.
func TestAFrozenInstanceSendsNoDeliveryOnItsReturn(t *testing.T) {
	for sent, what := range []string{"disabled", "sent by another"} {
		t.Run(what, func(t *testing.T) {
			f := newHookFixture(t)
			tenant, r := f.tenant(), newReceiver(t, always(200))
			w := f.create(tenant, r.URL)
			f.crossed(tenant, 1)
			d, other := f.deliverer(f.store), f.deliverer(f.store)
			q := &frozenQueue{d.Queue, make(chan struct{}, 10), make(chan struct{}), make(chan struct{}, 10)}
			d.Queue, d.Lease = q, 300*time.Millisecond
			stop := f.run(d)
			<-q.got
			began := time.Now()
			if sent == 0 {
				_, err := f.webhooks.Change(t.Context(), commands.Request{}, tenant, w.ID,
					webhooks.ChangeWebhook{Status: new(events.WebhookDisabled)})
				must.OK(t, err)
			} else {
				f.run(other)
			}
			f.until("the lease has ended, and the delivery", func() bool { return time.Since(began) > d.Lease && f.noneLeft() })
			close(q.resumed)
			<-q.left
			stop()
			if got := r.all(); len(got) != sent {
				t.Errorf("%d requests were sent, want %d", len(got), sent)
			}
		})
	}
}
