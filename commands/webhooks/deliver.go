package webhooks

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/domain/retries"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
)

// Sender sends a request to an endpoint. Every outcome is a result.
type Sender interface {
	Send(ctx context.Context, m webhook.Message) webhook.Result
}

// Queue finds the events of webhooks, and leases webhooks with deliveries that are due. All times are of the database's clock.
type Queue interface {
	// LookForWebhooks reports whether there is an enabled webhook, and whether events or deliveries of one may wait.
	LookForWebhooks(ctx context.Context) (some, fed, due bool, err error)
	// FeedWebhooks makes deliveries of the events behind the cursors of webhooks and in the ranges that are replayed.
	FeedWebhooks(ctx context.Context) error
	// EndDeliveries lets all waiting deliveries of webhooks that are not enabled fail, in short transactions.
	EndDeliveries(ctx context.Context) error
	// LeaseWebhooks leases the webhooks whose deliveries are due for the longest time, limit at most, among those whose last request failed
	// or among the others.
	LeaseWebhooks(ctx context.Context, failing bool, limit int, lease uuid.UUID, until time.Duration) ([]LeasedWebhook, error)
	// NextDelivery renews the lease and returns the delivery that is due for the longest time, with its event and the valid secrets, the
	// newest first. Nil: no delivery is due, or the lease is lost, and the lease has ended.
	NextDelivery(ctx context.Context, webhook, lease uuid.UUID, until time.Duration) (*webhook.Due, error)
	// SettleDelivery runs settle on a leased webhook and saves the result, unless settle returns false. It reports false if the lease is
	// lost.
	SettleDelivery(ctx context.Context, webhook, lease uuid.UUID, delivery uuid.UUID, settle func(w *webhook.Webhook, d *webhook.Delivery,
		now time.Time) (a webhook.Attempt, save bool)) (held bool, err error)
	// ReleaseWebhook ends a lease.
	ReleaseWebhook(ctx context.Context, webhook, lease uuid.UUID) error
}

// LeasedWebhook is a webhook whose deliveries this instance sends.
type LeasedWebhook struct{ ID, TenantID uuid.UUID }

// Deliverer sends the deliveries of webhooks. Each webhook has a queue of its own, with one request at a time. Any number of instances may
// run it: a webhook is leased to one of them.
type Deliverer struct {
	Queue    Queue
	Webhooks *Commands
	Sender   Sender
	NewID    func() uuid.UUID
	Requests loop.Hint                           // that a delivery may be due, also given by a free slot; nil: only by that
	Sent     func(kind string, r webhook.Result) // is called for each attempt; may be nil
	Disabled func(w *webhook.Webhook)            // is called for each webhook that the service disables; may be nil
	Retries  []time.Duration                     // nil: webhook.Retries
	Logger   *slog.Logger
	Ticks    loop.Ticks    // the moments of looks
	Every    time.Duration // the longest time between two looks while there are webhooks; 0: 200 ms
	EndEvery time.Duration // the time between two looks for deliveries of disabled webhooks; 0: 5 s
	Lease    time.Duration // longer than a request; 0: 30 s
	// the requests at the same time, beside as many slow ones; 0: 256. Webhooks whose last request failed have half of them
	Slots int
	Slow  time.Duration // the time after which a request is a slow one; 0: 1 s
}

const (
	// deliverEvery bounds the time between an event and its first request.
	deliverEvery = 200 * time.Millisecond
	// deliverIdle is the time between two looks without webhooks.
	deliverIdle = time.Second
	// deliverEndEvery is the time between two looks for deliveries of webhooks that were disabled or removed. A change lets most of them
	// fail itself.
	deliverEndEvery = 5 * time.Second
	// deliverLease bounds how long a webhook waits after its instance was killed. It is renewed before each request.
	deliverLease = 30 * time.Second
	// deliverSlots bounds the requests of an instance. A request that waits needs no connection to the database.
	deliverSlots = 256
	// deliverSlow is the time after which a request gives its slot to another webhook's.
	deliverSlow = time.Second
	// deliverAtOnce bounds the webhooks that one statement leases.
	deliverAtOnce = 64
	// deliverSaving bounds how long a stopping instance saves a result.
	deliverSaving = 5 * time.Second
)

// Run sends deliveries until ctx ends, and returns when all requests have ended.
func (d *Deliverer) Run(ctx context.Context) error {
	slots := cmp.Or(d.Slots, deliverSlots)
	r := &delivering{Deliverer: d, all: make(chan struct{}, slots), failing: make(chan struct{}, max(slots/2, 1)),
		slow: make(chan struct{}, slots), feeding: make(chan struct{}, 1),
		queue: retries.New(d.Logger, slog.LevelWarn, "cannot read or save deliveries of webhooks; will retry", ""),
		sends: retries.New(d.Logger, slog.LevelWarn, "cannot send or save a delivery of a webhook; will retry", "")}
	if d.Requests == nil {
		d.Requests = loop.NewHint()
	}
	defer r.running.Wait()
	r.running.Go(func() {
		ends := loop.Loop{Every: cmp.Or(d.EndEvery, deliverEndEvery), Logger: d.Logger,
			Failed: "cannot end deliveries of disabled webhooks; will retry"}
		_ = ends.Run(ctx, d.Queue.EndDeliveries)
	})
	return loop.Loop{Wake: d.Requests}.RunPaced(ctx, func(ctx context.Context) (time.Duration, error) {
		wait, err := r.look(ctx)
		r.queue.Report(ctx, err)
		return wait, nil
	})
}

// delivering is a running Deliverer.
type delivering struct {
	*Deliverer
	all, failing chan struct{} // slots that are taken
	slow         chan struct{} // slots of slow requests that are taken
	feeding      chan struct{} // taken while the queues are fed
	running      sync.WaitGroup
	queue, sends *retries.Log
}

// look feeds the queues and leases webhooks while there are slots. If nothing waits it costs one read.
func (r *delivering) look(ctx context.Context) (wait time.Duration, err error) {
	every := r.Ticks.Until(cmp.Or(r.Every, deliverEvery))
	some, fed, due, err := r.Queue.LookForWebhooks(ctx)
	if err != nil || !some {
		return r.Ticks.Until(deliverIdle), err
	}
	if fed && take(r.feeding) { // beside the looks: the first queues are sent while the last are fed
		r.running.Go(func() {
			err := r.Queue.FeedWebhooks(ctx)
			<-r.feeding
			if r.queue.Report(ctx, err); err == nil {
				r.Requests.Notify()
			}
		})
	}
	if !due {
		return every, nil
	}
	for _, failing := range []bool{false, true} {
		for found := true; found; {
			if found, err = r.start(ctx, failing); err != nil {
				return every, err
			}
		}
	}
	return every, nil
}

// start leases webhooks and sends their deliveries, as far as there are slots.
func (r *delivering) start(ctx context.Context, failing bool) (found bool, err error) {
	var free []*slot
	for len(free) < deliverAtOnce {
		p := r.slot(failing)
		if p == nil {
			break
		}
		free = append(free, p)
	}
	if len(free) == 0 {
		return false, nil
	}
	lease := r.NewID()
	list, err := r.Queue.LeaseWebhooks(ctx, failing, len(free), lease, cmp.Or(r.Lease, deliverLease))
	if err != nil {
		list = nil // the leases end by themselves
	}
	for _, p := range free[len(list):] {
		p.end()
	}
	for i := range list {
		r.running.Go(func() {
			r.deliver(ctx, &list[i], lease, free[i])
			free[i].end()
			r.Requests.Notify()
		})
	}
	return len(list) == len(free), err
}

// deliver sends the due deliveries of a leased webhook one after the other, until one fails. A failing webhook gives its slot to the next
// one.
func (r *delivering) deliver(ctx context.Context, w *LeasedWebhook, lease uuid.UUID, p *slot) {
	for {
		leased, lasts := time.Now(), cmp.Or(r.Lease, deliverLease)
		due, err := r.Queue.NextDelivery(ctx, w.ID, lease, lasts)
		if err == nil && due == nil {
			return
		}
		delivered := false
		if err == nil {
			within, cancel := context.WithDeadline(ctx, leased.Add(lasts))
			delivered, err = r.attempt(within, w, due, lease, p)
			cancel()
		}
		r.sends.Report(ctx, err, "webhook", w.ID)
		if err != nil || !delivered || ctx.Err() != nil {
			saving, cancel := context.WithTimeout(context.WithoutCancel(ctx), deliverSaving)
			_ = r.Queue.ReleaseWebhook(saving, w.ID, lease) // otherwise the lease ends by itself
			cancel()
			return
		}
	}
}

// attempt sends a delivery once and saves the result, while ctx says that the webhook is leased. The result of a stopping instance, or of
// one without the lease, is not saved: the next instance repeats the request.
func (r *delivering) attempt(ctx context.Context, w *LeasedWebhook, due *webhook.Due, lease uuid.UUID, p *slot) (delivered bool,
	err error) {
	message, err := due.Message(r.Webhooks.Now())
	if err != nil {
		return false, err
	}
	slow := time.AfterFunc(cmp.Or(r.Slow, deliverSlow), p.slowDown)
	result := r.Sender.Send(ctx, message)
	slow.Stop()
	if ctx.Err() != nil && !result.Delivered() {
		return false, ctx.Err()
	}
	if r.Sent != nil {
		r.Sent(due.Type, result)
	}
	saving, cancel := context.WithTimeout(context.WithoutCancel(ctx), deliverSaving)
	defer cancel()
	retries := r.Retries
	if retries == nil {
		retries = webhook.Retries()
	}
	reason := ""
	held, err := r.Queue.SettleDelivery(saving, w.ID, lease, due.ID, func(w *webhook.Webhook, d *webhook.Delivery,
		now time.Time) (a webhook.Attempt, save bool) {
		a, reason = w.Settle(d, due.URL, result, retries, now)
		return a, reason == ""
	})
	if err != nil || !held {
		return false, err
	}
	if reason != "" {
		return false, r.disable(saving, w, due, result, retries)
	}
	return result.Delivered(), nil
}

// disable saves an attempt that disables its webhook, with the event of the change.
func (r *delivering) disable(ctx context.Context, of *LeasedWebhook, due *webhook.Due, result webhook.Result,
	retries []time.Duration) error {
	var disabled *webhook.Webhook
	err := r.Webhooks.Store.ChangeWebhooks(ctx, of.TenantID, func(tx Tx) error {
		disabled = nil
		w, err := tx.Webhook(of.TenantID, of.ID)
		if err != nil || w == nil || w.Status != events.WebhookEnabled {
			return err
		}
		d, err := tx.Delivery(of.TenantID, due.ID)
		if err != nil || d == nil || d.State != webhook.DeliveryPending {
			return err
		}
		now, err := tx.DatabaseTime()
		if err != nil {
			return err
		}
		attempt, reason := w.Settle(d, due.URL, result, retries, now)
		if reason == "" {
			return nil
		}
		w.Disable(reason)
		if err := tx.SettleDelivery(w, d, attempt); err != nil {
			return err
		}
		if err := tx.FailDeliveries(w.ID); err != nil {
			return err
		}
		w.Replay(0, 0)
		req := commands.Request{By: commands.Caller{TenantID: events.Platform,
			Actor: events.Actor{Type: "service", ID: "meterplex-notifier"}}}
		disabled = w
		return r.Webhooks.record(tx, &req, w)
	})
	if err == nil && disabled != nil {
		r.Logger.WarnContext(ctx, "a webhook is disabled", "webhook", disabled.ID, "tenant", disabled.TenantID, "reason", *disabled.Reason)
		if r.Disabled != nil {
			r.Disabled(disabled)
		}
	}
	return err
}
