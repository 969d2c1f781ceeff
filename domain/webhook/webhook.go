// Package webhook has the rules of webhooks: their events, addresses, deliveries and attempts. Like domain, it is pure.
package webhook

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Types of webhooks' events.
const (
	PeriodClosed       = "period.closed"
	AdjustmentPending  = "adjustment.pending"
	ThresholdCrossed   = "threshold.crossed"
	ReservationExpired = "reservation.expired"
	PushFailed         = "push.failed"
	// UsageRefused is sent for a group of refused usage, at most once a minute.
	UsageRefused = "usage.refused"
	// Test is sent by request only; each webhook gets it.
	Test = "webhook.test"
)

// selectable has the types that a webhook can select, each with the subject of its events. That of adjustment.pending is 0: its events are
// those of the table of adjustments, verdicts on late usage and proposals. Schemas, texts and checks follow from it; verify and
// docs/reference/webhooks.md have lists of their own.
var selectable = [...]struct {
	kind    string
	subject events.Subject
}{
	{PeriodClosed, events.PeriodClosed},
	{AdjustmentPending, 0},
	{ThresholdCrossed, events.ThresholdCrossed},
	{ReservationExpired, events.ReservationExpired},
	{PushFailed, events.PushFailed},
	{UsageRefused, events.RefusalsSeen},
}

// Events lists the types that a webhook can select.
func Events() (kinds []string) {
	for _, t := range selectable {
		kinds = append(kinds, t.kind)
	}
	return kinds
}

// Subject returns the subject whose events have a type; 0 for adjustment.pending.
func Subject(kind string) events.Subject {
	for _, t := range selectable {
		if t.kind == kind {
			return t.subject
		}
	}
	return 0
}

// Bounds of webhooks.
const (
	// MaxWebhooks bounds the webhooks of a tenant.
	MaxWebhooks = 20
	// MaxWebhookSecrets bounds the secrets of a webhook that are valid at the same time.
	MaxWebhookSecrets = 5
	// MaxWebhookTests bounds the test deliveries of a webhook that wait.
	MaxWebhookTests = 100
	// AttemptsKept bounds the attempts of a delivery that are kept: the last ones.
	AttemptsKept = 20
	// Patience is the time of failures without a success after which a webhook is disabled.
	Patience = 5 * 24 * time.Hour
	// DeliveriesKept is the time since the end of a delivery after which it is deleted. Its event remains.
	DeliveriesKept = 90 * 24 * time.Hour
	// maxWebhookError bounds the bytes of an attempt's error.
	maxWebhookError = 200
)

// Retries returns the waits between the attempts of a delivery, as Standard Webhooks recommends.
func Retries() []time.Duration {
	return []time.Duration{5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 14 * time.Hour,
		20 * time.Hour, 24 * time.Hour}
}

// Webhook is an endpoint of a tenant, with the state of its deliveries.
type Webhook struct {
	events.Webhook
	Reason    *string `json:"reason" doc:"The reason for which the service disabled it; null: none."`
	Operators bool    `json:"-"`
	DeliveryState
}

// DeliveryState is the part of a webhook's row that is in no event: which events were considered, and how the last requests ended. A
// webhook that is leased has the lease and its end in the row, too.
type DeliveryState struct {
	// Cursor is the number of the last event of the tenant's partition that was considered.
	Cursor int64 `json:"-"`
	// ReplayAfter and ReplayUntil are the range of numbers that is delivered again; equal: no replay runs.
	ReplayAfter   int64      `json:"-"`
	ReplayUntil   int64      `json:"-"`
	Replaying     bool       `json:"replaying" doc:"Whether a time range is being sent again."`
	FailingSince  *time.Time `json:"failingSince" doc:"The first failure after the last success. 5 days later the webhook is disabled. null: the last request succeeded, or all deliveries have ended."`
	LastSuccessAt *time.Time `json:"lastSuccessAt" doc:"Time of the last 2xx answer; null: none."`
}

// Event returns the payload of the event of a change.
func (w *Webhook) Event() events.ChangedWebhook {
	return events.ChangedWebhook{Webhook: w.Webhook, Operators: w.Operators, DisabledFor: w.Reason}
}

// Replay sets the range that is delivered again; an empty one ends a replay.
func (s *DeliveryState) Replay(after, until int64) {
	s.ReplayAfter, s.ReplayUntil, s.Replaying = after, until, after < until
}

// States of a delivery.
const (
	DeliveryPending   = "PENDING"
	DeliveryDelivered = "DELIVERED"
	DeliveryFailed    = "FAILED" // it is not sent again without a request
)

// Delivery is an event on its way to a webhook.
type Delivery struct {
	ID        uuid.UUID
	WebhookID uuid.UUID
	TenantID  uuid.UUID
	EventID   uuid.UUID // the webhook-id of each attempt
	Type      string
	Position  *events.Position // nil for webhook.test
	State     string
	Attempts  int        // since the delivery was created or replayed
	Sent      int        // all attempts
	NextAt    *time.Time // of the next attempt; nil: no attempt follows
	CreatedAt time.Time
	EndedAt   *time.Time
	Last      []Attempt // the last attempts, oldest first
}

// Attempt is an attempt of a delivery.
type Attempt struct {
	N          int // counts all attempts of the delivery
	At         time.Time
	Status     int // of HTTP; 0: no answer
	DurationMS int64
	Error      string // "": success
}

// Result is the outcome of a request.
type Result struct {
	Status   int // of HTTP; 0: no answer
	Duration time.Duration
	Error    string // why there was no answer; "" with one
}

// Delivered reports whether the endpoint accepted the event: only 2xx does.
func (r *Result) Delivered() bool { return r.Status >= 200 && r.Status <= 299 }

// Reasons for which the service disables a webhook.
const (
	Gone    = "the endpoint answered 410 Gone"
	Failing = "no request succeeded for 5 days"
	// Archived is the reason of the webhooks of an archived tenant.
	Archived = "the tenant is archived"
)

const statusGone = 410

// Settle applies the result of an attempt that ended now. It returns the reason for which the webhook must be disabled, "" if it must not.
// After the last of retries the delivery is FAILED. A result of another URL than that of now does not count for the webhook.
func (w *Webhook) Settle(d *Delivery, url string, r Result, retries []time.Duration, now time.Time) (attempt Attempt, disable string) {
	d.Attempts++
	d.Sent++
	attempt = Attempt{N: d.Sent, At: now.Add(-r.Duration), Status: r.Status, DurationMS: r.Duration.Milliseconds(), Error: r.Error}
	if r.Delivered() {
		attempt.Error = ""
		d.State, d.NextAt, d.EndedAt = DeliveryDelivered, nil, &now
		if url == w.URL {
			w.FailingSince, w.LastSuccessAt = nil, &now
		}
		return attempt, ""
	}
	if attempt.Error == "" {
		attempt.Error = "the answer is not 2xx"
	}
	attempt.Error = attempt.Error[:min(len(attempt.Error), maxWebhookError)]
	if w.FailingSince == nil && url == w.URL {
		w.FailingSince = &now
	}
	switch {
	case url != w.URL:
	case r.Status == statusGone:
		disable = Gone
	case now.Sub(*w.FailingSince) >= Patience:
		disable = Failing
	}
	if disable != "" || d.Attempts > len(retries) {
		d.State, d.NextAt, d.EndedAt = DeliveryFailed, nil, &now
		return attempt, disable
	}
	next := now.Add(retries[d.Attempts-1])
	d.NextAt = &next
	return attempt, ""
}

// Disable disables the webhook for a reason.
func (w *Webhook) Disable(reason string) { w.Status, w.Reason = events.WebhookDisabled, &reason }

// CheckEvents refuses a list of types that a webhook cannot have, and returns it sorted.
func CheckEvents(list []string) ([]string, *domain.Error) {
	sorted := slices.Sorted(slices.Values(list))
	if len(sorted) == 0 || len(slices.Compact(slices.Clone(sorted))) < len(sorted) {
		return nil, &domain.Error{Code: "events_invalid", Message: "events must be different types, at least one", Pointer: "/events"}
	}
	all := Events()
	for _, kind := range sorted {
		if last := len(all) - 1; !slices.Contains(all, kind) {
			return nil, &domain.Error{Code: "events_invalid", Message: "events must be among " + strings.Join(all[:last], ", ") + " and " +
				all[last], Pointer: "/events"}
		}
	}
	return sorted, nil
}
