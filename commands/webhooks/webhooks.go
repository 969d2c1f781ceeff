// Package webhooks changes the webhooks of tenants, and delivers events to them.
package webhooks

import (
	"context"
	"encoding/base64"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
)

// Commands changes the webhooks of tenants. A change of an endpoint is an event; a secret is in no event.
type Commands struct {
	Store     Store
	Addresses webhook.Addresses
	Now       commands.Clock
	NewID     func() uuid.UUID
	NewSecret func() [32]byte // 256 random bits
	Wake      func()          // wakes the deliverer of this instance; may be nil
}

// Store runs changes of webhooks.
type Store interface {
	// ChangeWebhooks runs decide as commands.Store.Change does.
	ChangeWebhooks(ctx context.Context, tenant uuid.UUID, decide func(Tx) error) error
}

// Tx is the transaction of a change of webhooks. Its times are of the database's clock.
type Tx interface {
	EndTx
	commands.Offboardings
	commands.DatabaseClock
	// Webhook loads and locks a webhook of a tenant; nil also for a removed one.
	Webhook(tenant, id uuid.UUID) (*webhook.Webhook, error)
	// CountWebhooks counts the webhooks of a tenant that are not removed.
	CountWebhooks(tenant uuid.UUID) (int, error)
	// AddSecret adds the newest secret, and lets the others end after overlap. It returns the number of valid ones.
	AddSecret(w *webhook.Webhook, id uuid.UUID, secret string, overlap time.Duration) (valid int, err error)
	// AddDelivery adds a delivery that is due at once.
	AddDelivery(d *webhook.Delivery) error
	// AwaitsEvents reports whether an event of the types that a webhook has in the database may be behind its cursor.
	AwaitsEvents(webhook uuid.UUID) (bool, error)
	// WaitingTests counts the tests among the newest deliveries of a webhook that wait.
	WaitingTests(webhook uuid.UUID) (int, error)
	// Delivery loads a delivery of a tenant.
	Delivery(tenant, id uuid.UUID) (*webhook.Delivery, error)
	// RepeatDelivery lets a delivery be due at once, with all its attempts.
	RepeatDelivery(d *webhook.Delivery) error
	// SettleDelivery saves an attempt and its delivery, and the members of its webhook that attempts change.
	SettleDelivery(w *webhook.Webhook, d *webhook.Delivery, a webhook.Attempt) error
	// LastRecorded returns the number of the last event of a partition recorded before a time.
	LastRecorded(partition int16, before time.Time) (int64, error)
}

// EndTx is the transaction of a change that ends webhooks.
type EndTx interface {
	commands.Tx
	// LockedWebhooks loads and locks the webhooks of a tenant that are not removed.
	LockedWebhooks(tenant uuid.UUID) ([]webhook.Webhook, error)
	// SaveDeliveryState saves the state of a webhook's deliveries. Its other members follow from its event.
	SaveDeliveryState(w *webhook.Webhook) error
	// DropSecrets deletes the secrets of a webhook.
	DropSecrets(webhook uuid.UUID) error
	// FailDeliveries lets waiting deliveries of a webhook fail, as many as one change may. The others fail by Queue.EndDeliveries, because
	// the webhook is not enabled any more.
	FailDeliveries(webhook uuid.UUID) error
}

// Reader reads webhooks.
type Reader interface {
	// Webhook returns a webhook of a tenant; nil also for a removed one.
	Webhook(ctx context.Context, tenant, id uuid.UUID) (*webhook.Webhook, error)
	Webhooks(ctx context.Context, tenant uuid.UUID, p commands.Page) ([]webhook.Webhook, error)
	Deliveries(ctx context.Context, q DeliveryQuery) ([]webhook.Delivery, error)
	// TenantOfDelivery returns the tenant of a delivery; Nil if it is unknown.
	TenantOfDelivery(ctx context.Context, id uuid.UUID) (uuid.UUID, error)
}

// DeliveryQuery selects a page of the deliveries of a webhook, the newest first.
type DeliveryQuery struct {
	WebhookID uuid.UUID
	State     string // "": any
	commands.Page
}

// ChangeWebhook is a request to create or change a webhook; nil leaves a member unchanged.
type ChangeWebhook struct {
	URL    *string
	Events *[]string
	Status *string
}

// CreatedWebhook is a webhook with its new secret. The secret is in no stored answer, so that it is empty if the request is repeated.
type CreatedWebhook struct {
	webhook.Webhook
	Secret   string `json:"-"`
	Repeated bool   `json:"-"`
}

// MaxOverlap is the longest time that an earlier secret may stay valid.
const MaxOverlap = 7 * 24 * time.Hour

func (c *Commands) now() time.Time { return c.Now().UTC().Truncate(time.Microsecond) }

func (c *Commands) changeOf(ctx context.Context, tenant uuid.UUID) commands.Transaction[Tx] {
	return func(decide func(Tx) error) error { return c.Store.ChangeWebhooks(ctx, tenant, decide) }
}

func (c *Commands) wake() {
	if c.Wake != nil {
		c.Wake()
	}
}

// apply sets the members of a request, and refuses invalid ones.
func (c *Commands) apply(req *commands.Request, w *webhook.Webhook, in *ChangeWebhook) error {
	if in.URL != nil {
		w.Operators = req.By.TenantID == events.Platform || w.Operators && w.URL == *in.URL
		if refusal := c.Addresses.Of(w.Operators).CheckURL(*in.URL); refusal != nil {
			return refusal
		}
		if w.URL != *in.URL {
			w.FailingSince = nil // failures of another endpoint
		}
		w.URL = *in.URL
	}
	if in.Events != nil {
		sorted, refusal := webhook.CheckEvents(*in.Events)
		if refusal != nil {
			return refusal
		}
		w.Events = sorted
	}
	if in.Status != nil {
		if err := commands.OneOf(*in.Status, "status_invalid", "/status", events.WebhookEnabled, events.WebhookDisabled); err != nil {
			return err
		}
		if w.Status != *in.Status {
			w.Reason, w.FailingSince = nil, nil
		}
		w.Status = *in.Status
	}
	return nil
}

// Create makes a webhook. It gets the events behind its position.
func (c *Commands) Create(ctx context.Context, req commands.Request, tenant uuid.UUID, url string, types []string) (CreatedWebhook, error) {
	w := webhook.Webhook{Webhook: events.Webhook{TenantID: tenant, Status: events.WebhookEnabled}}
	if err := c.apply(&req, &w, &ChangeWebhook{URL: &url, Events: &types}); err != nil {
		return CreatedWebhook{}, err
	}
	return c.issue(c.changeOf(ctx, tenant), req, func(tx Tx) (created CreatedWebhook, err error) {
		if _, err = commands.Changeable(tx, tenant); err != nil {
			return created, err
		}
		n, err := tx.CountWebhooks(tenant)
		if err != nil {
			return created, err
		}
		if n >= webhook.MaxWebhooks {
			return created, domain.Refuse("webhooks_limit", "", "the tenant has %d webhooks, which is the limit; remove one first", n)
		}
		w.ID, w.Secrets, w.CreatedAt = c.NewID(), 1, c.now()
		if err := c.record(tx, &req, &w); err != nil {
			return created, err
		}
		secret := c.newSecret()
		if _, err := tx.AddSecret(&w, c.NewID(), secret, 0); err != nil {
			return created, err
		}
		return CreatedWebhook{Webhook: w, Secret: secret}, nil
	})
}

// record appends the event of a change, and saves the state of the deliveries. A webhook that is created or enabled considers the events
// behind the change.
func (c *Commands) record(tx EndTx, req *commands.Request, w *webhook.Webhook) error {
	at, err := commands.AppendEvent(tx, req, c.NewID(), c.now(), w.TenantID, events.WebhookChanged, w.Event())
	if err != nil {
		return err
	}
	if w.Cursor == 0 {
		w.Cursor = at.Number
	}
	return tx.SaveDeliveryState(w)
}

func (c *Commands) newSecret() string {
	random := c.NewSecret()
	return "whsec_" + base64.StdEncoding.EncodeToString(random[:])
}

// issue runs decide, whose answer has a secret.
func (c *Commands) issue(in commands.Transaction[Tx], req commands.Request, decide func(Tx) (CreatedWebhook, error)) (CreatedWebhook,
	error) {
	w, err := commands.Change(in, req, decide)
	w.Repeated = err == nil && w.Secret == ""
	return w, err
}

func loadWebhook(tx Tx, tenant, id uuid.UUID) (*webhook.Webhook, error) {
	w, err := tx.Webhook(tenant, id)
	if err == nil && w == nil {
		err = domain.Refuse("webhook_not_found", "", "no such webhook")
	}
	return w, err
}

// loadChangeable loads a webhook of a tenant that is not being offboarded.
func loadChangeable(tx Tx, tenant, id uuid.UUID) (*webhook.Webhook, error) {
	w, err := loadWebhook(tx, tenant, id)
	if err == nil {
		err = commands.RefuseOffboarding(tx, tenant)
	}
	return w, err
}

// Change changes a webhook. One that is disabled gets no events; those recorded meanwhile are delivered by a replay only. Deliveries that
// still wait when it is enabled again are sent.
func (c *Commands) Change(ctx context.Context, req commands.Request, tenant, id uuid.UUID, in ChangeWebhook) (webhook.Webhook, error) {
	changed, err := commands.Change(c.changeOf(ctx, tenant), req, func(tx Tx) (webhook.Webhook, error) {
		w, err := loadChangeable(tx, tenant, id)
		if err != nil {
			return webhook.Webhook{}, err
		}
		before := *w
		before.Events = slices.Clone(w.Events)
		if err := c.apply(&req, w, &in); err != nil {
			return *w, err
		}
		if before.URL == w.URL && before.Operators == w.Operators && before.Status == w.Status && slices.Equal(before.Events, w.Events) {
			return *w, nil
		}
		if w.Status == events.WebhookDisabled && before.Status != w.Status {
			w.Replay(0, 0)
			if err := tx.FailDeliveries(id); err != nil {
				return *w, err
			}
		}
		if w.Status == events.WebhookEnabled && before.Status != w.Status {
			w.Cursor = 0
		} else if !slices.Equal(before.Events, w.Events) {
			// Usage and reservations do not move the cursor of a webhook of other types: events from before the change would be of the new
			// types, too.
			awaits, err := tx.AwaitsEvents(id)
			if err != nil {
				return *w, err
			}
			if !awaits {
				w.Cursor = 0
			}
		}
		return *w, c.record(tx, &req, w)
	})
	c.wake()
	return changed, err
}

// Remove removes a webhook and deletes its secrets. Its deliveries are kept for a time.
func (c *Commands) Remove(ctx context.Context, req commands.Request, tenant, id uuid.UUID) error {
	_, err := commands.Change(c.changeOf(ctx, tenant), req, func(tx Tx) (none struct{}, err error) {
		w, err := loadWebhook(tx, tenant, id)
		if err != nil {
			return none, err
		}
		w.Status, w.Reason, w.Secrets = events.WebhookRemoved, nil, 0
		if err := tx.DropSecrets(id); err != nil {
			return none, err
		}
		if err := tx.FailDeliveries(id); err != nil {
			return none, err
		}
		return none, c.record(tx, &req, w)
	})
	return err
}

// EndAll disables all webhooks of a tenant for ever: their secrets are deleted, and their waiting deliveries fail soon.
func (c *Commands) EndAll(tx EndTx, req *commands.Request, tenant uuid.UUID, reason string) error {
	list, err := tx.LockedWebhooks(tenant)
	if err != nil {
		return err
	}
	for i := range list {
		w := &list[i]
		w.Disable(reason)
		w.Secrets = 0
		w.Replay(0, 0)
		if err := tx.DropSecrets(w.ID); err != nil {
			return err
		}
		if err := tx.FailDeliveries(w.ID); err != nil {
			return err
		}
		if err := c.record(tx, req, w); err != nil {
			return err
		}
	}
	return nil
}

// Rotate adds a secret. The earlier ones stay valid for overlap: meanwhile each request has a signature of each.
func (c *Commands) Rotate(ctx context.Context, req commands.Request, tenant, id uuid.UUID, overlap time.Duration) (CreatedWebhook, error) {
	if overlap < 0 || overlap > MaxOverlap {
		return CreatedWebhook{}, domain.Refuse("overlap_invalid", "/overlapSeconds", "overlapSeconds must be 0 to %d",
			int(MaxOverlap.Seconds()))
	}
	return c.issue(c.changeOf(ctx, tenant), req, func(tx Tx) (CreatedWebhook, error) {
		w, err := loadChangeable(tx, tenant, id)
		if err != nil {
			return CreatedWebhook{}, err
		}
		secret := c.newSecret()
		if w.Secrets, err = tx.AddSecret(w, c.NewID(), secret, overlap); err != nil {
			return CreatedWebhook{}, err
		}
		if w.Secrets > webhook.MaxWebhookSecrets {
			return CreatedWebhook{}, domain.Refuse("webhook_secrets_limit", "",
				"%d secrets would be valid, and %d are possible; wait until earlier ones end", w.Secrets, webhook.MaxWebhookSecrets)
		}
		return CreatedWebhook{Webhook: *w, Secret: secret}, c.record(tx, &req, w)
	})
}

// enabled loads a webhook that gets deliveries. One of a tenant that is being offboarded gets them until the tenant is archived.
func enabled(tx Tx, tenant, id uuid.UUID) (*webhook.Webhook, error) {
	w, err := loadWebhook(tx, tenant, id)
	if err != nil || w.Status == events.WebhookEnabled {
		return w, err
	}
	if err = commands.RefuseOffboarding(tx, tenant); err == nil {
		err = domain.Refuse("webhook_disabled", "", "the webhook is disabled; enable it first: PATCH its status to ENABLED")
	}
	return w, err
}

// Test sends webhook.test to a webhook.
func (c *Commands) Test(ctx context.Context, req commands.Request, tenant, id uuid.UUID) (webhook.Delivery, error) {
	d, err := commands.Change(c.changeOf(ctx, tenant), req, func(tx Tx) (d webhook.Delivery, err error) {
		if _, err := enabled(tx, tenant, id); err != nil {
			return d, err
		}
		if n, err := tx.WaitingTests(id); err != nil {
			return d, err
		} else if n >= webhook.MaxWebhookTests {
			return d, domain.Refuse("webhook_tests_limit", "",
				"%d tests of the webhook wait, which is the limit; send the request again after some were sent", n)
		}
		d = webhook.Delivery{ID: c.NewID(), WebhookID: id, TenantID: tenant, EventID: c.NewID(), Type: webhook.Test}
		return d, tx.AddDelivery(&d)
	})
	c.wake()
	return d, err
}

// Replay lets a delivery be sent again, with the same webhook-id.
func (c *Commands) Replay(ctx context.Context, req commands.Request, tenant, delivery uuid.UUID) (webhook.Delivery, error) {
	d, err := commands.Change(c.changeOf(ctx, tenant), req, func(tx Tx) (webhook.Delivery, error) {
		d, err := tx.Delivery(tenant, delivery)
		if err != nil || d == nil {
			return webhook.Delivery{}, commands.OrRefuse(err, "delivery_not_found", "", "no such delivery")
		}
		if _, err := enabled(tx, tenant, d.WebhookID); err != nil {
			return *d, err
		}
		return *d, tx.RepeatDelivery(d)
	})
	c.wake()
	return d, err
}

// ReplayedRange is the answer to a replay of a range of time: events behind After, up to UpTo.
type ReplayedRange struct {
	After events.Position
	UpTo  events.Position
}

// ReplayRange lets the events of a webhook's types that were recorded from one time until before another be sent again, also those recorded
// while it was disabled.
func (c *Commands) ReplayRange(ctx context.Context, req commands.Request, tenant, id uuid.UUID, from, to time.Time) (ReplayedRange, error) {
	if !from.Before(to) {
		return ReplayedRange{}, domain.Refuse("to_invalid", "/to", "to must be after from")
	}
	answer, err := commands.Change(c.changeOf(ctx, tenant), req, func(tx Tx) (r ReplayedRange, err error) {
		w, err := enabled(tx, tenant, id)
		if err != nil {
			return r, err
		}
		if w.Replaying {
			return r, domain.Refuse("webhook_replaying", "", "a replay of the webhook is running; wait until it has ended")
		}
		p := events.PartitionOf(tenant)
		after, err := tx.LastRecorded(p, from)
		if err != nil {
			return r, err
		}
		until, err := tx.LastRecorded(p, to)
		if err != nil {
			return r, err
		}
		w.Replay(after, max(min(until, w.Cursor), after)) // later events are delivered in any case
		r = ReplayedRange{events.Position{Partition: p, Number: w.ReplayAfter}, events.Position{Partition: p, Number: w.ReplayUntil}}
		return r, tx.SaveDeliveryState(w)
	})
	c.wake()
	return answer, err
}
