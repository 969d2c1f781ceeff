package metering

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// QuotaLog appends quota requests, and reads their events.
type QuotaLog interface {
	UsageLog
	// Read returns the events of a partition after one position up to and including another, at most limit.
	Read(ctx context.Context, partition int16, after, upTo int64, limit int) ([]events.Envelope, error)
}

// Quotas grants requests to use amounts against limits (P7).
type Quotas struct {
	Log          QuotaLog
	Reservations ReservationTable
	Now          commands.Clock
	NewID        func(now time.Time) uuid.UUID
}

// Consumed is the answer to a granted consumption. It follows from the event alone, so that a repetition gets the same
// answer, whatever has changed since.
type Consumed struct {
	Allowed   bool            `json:"allowed"`
	Feature   string          `json:"feature"`
	EventID   string          `json:"eventId"`
	Amount    int64           `json:"amount"`
	PeriodKey string          `json:"periodKey"`
	Limit     *int64          `json:"limit"`
	Used      *json.Number    `json:"used"`
	Held      *json.Number    `json:"held"`
	Remaining *json.Number    `json:"remaining"`
	ResetAt   *time.Time      `json:"resetAt"`
	Position  events.Position `json:"position"`
}

// Admit refuses a request before it is read, if Consume would refuse it.
func (c *Quotas) Admit(by commands.Caller) error { return c.Log.Admit(by.TenantID) }

// Consume records all consumptions of a tenant, or refuses all. Refusals are those of domain.Ledger, and payload_conflict; their
// pointer is at(i) for the consumption at fault. After ErrUnavailable the outcome is unknown: the same
// request again gets the outcome. known is how many were recorded before.
func (c *Quotas) Consume(ctx context.Context, by commands.Caller, list []intake.Consumption, at func(i int) string) (answers []Consumed,
	known int, err error) {
	submitted := make([]Submitted, len(list))
	now := c.Now()
	by.Actor = by.ActsAs()
	for i := range list {
		c.submit(&submitted[i], &by, &list[i], now)
	}
	recorded, err := c.request(ctx, &by, submitted, at)
	if err != nil {
		return nil, 0, err
	}
	answers = make([]Consumed, len(list))
	for i, e := range recorded {
		if e.known {
			known++
		}
		if answers[i], err = consumed(e.payload, e.at); err != nil {
			return nil, 0, err
		}
	}
	return answers, known, nil
}

// granted is the event of a granted quota request.
type granted struct {
	payload json.RawMessage
	subject events.Subject
	at      events.Position
	known   bool // it was recorded before
}

// request submits quota requests that are granted together, and returns their events.
func (c *Quotas) request(ctx context.Context, by *commands.Caller, submitted []Submitted, at func(i int) string) ([]granted, error) {
	submitted[0].Whole, submitted[0].Admission = true, by.Admission.OrNil()
	outcomes, err := c.Log.Submit(ctx, by.TenantID, submitted)
	if err != nil {
		return nil, err
	}
	for i := range outcomes {
		if refusal := refusalOf(&submitted[i], &outcomes[i]); refusal != nil {
			placed := *refusal
			placed.Pointer = pointerAt(at(i), refusal.Pointer)
			return nil, &placed
		}
	}
	list := make([]granted, len(submitted))
	for i := range outcomes {
		switch outcomes[i].Status {
		case Appended:
			list[i] = granted{submitted[i].Payload, submitted[i].Subject, outcomes[i].Position, false}
		case Duplicate:
			if list[i], err = c.first(ctx, by.TenantID, &submitted[i], outcomes[i].Position); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("%w: the log gave no verdict", commands.ErrUnavailable)
		}
	}
	return list, nil
}

// first reads the event that was recorded under the key of a quota request: one of its subject, or another end of its reservation.
func (c *Quotas) first(ctx context.Context, tenant uuid.UUID, s *Submitted, at events.Position) (granted, error) {
	e, err := c.event(ctx, tenant, at)
	if err != nil {
		return granted{}, err
	}
	ends := []events.Subject{events.ReservationReleased, events.ReservationExpired}
	if e.Subject != s.Subject && !(slices.Contains(ends, e.Subject) && slices.Contains(ends, s.Subject)) {
		return granted{}, fmt.Errorf("the event at %s is not that of a granted request but of subject %d", at, e.Subject)
	}
	return granted{e.Payload, e.Subject, at, true}, nil
}

// refusalOf returns why a quota request was not granted, nil if it was, or if another one was refused.
func refusalOf(s *Submitted, o *Outcome) *domain.Error {
	switch o.Status {
	case Denied:
		return o.Refusal
	case Conflict:
		if s.Subject == events.ReservationHeld {
			return domain.Refuse("reservation_conflict", "/reservationId",
				"reservationId was first used for another feature or amount, at %s; that reservation stays. Use a reservationId of its "+
					"own for another request", o.Position)
		}
		return domain.Refuse("payload_conflict", "/eventId",
			"eventId was first used with another payload, at %s; the first one stays. Use an eventId of its own for another request",
			o.Position)
	}
	return nil
}

// pointerAt returns the pointer of a refusal: that of the refused item, or of the member of a request that has no items, whose
// feature is in the path.
func pointerAt(item, member string) string {
	switch {
	case item != "":
		return item
	case member == "/feature":
		return ""
	}
	return member
}

// submit fills in the event of a consumption, whose payload is completed by the decision.
func (c *Quotas) submit(s *Submitted, by *commands.Caller, consumption *intake.Consumption, now time.Time) {
	s.Pending = events.Pending{
		EventID: c.NewID(now), Subject: events.UsageAdmitted, TenantID: by.TenantID, DedupeKey: events.KeyUsage(consumption.EventID),
		Canonical: intake.CanonicalRequest, Sent: consumption.Sent(), CorrelationID: by.CorrelationID, Actor: by.Actor, OccurredAt: now,
		Replay: by.Replay, Residency: by.Residency, Counts: events.Counts{Accepted: 1},
	}
	s.Quota = &QuotaRequest{LedgerRequest: domain.LedgerRequest{TenantID: by.TenantID, Feature: consumption.Feature,
		Amount: consumption.Amount},
		Grant: func(p *events.Pending, d *domain.Decision) error {
			p.OccurredAt = d.At.UTC().Truncate(time.Microsecond)
			return admit(p, &events.Admitted{Usage: events.Usage{
				EventID: consumption.EventID, Feature: consumption.Feature, Amount: consumption.Amount, Timestamp: p.OccurredAt,
				Metadata: consumption.Metadata, Type: events.TypeUsage,
			}}, events.ByConsume, d)
		}}
}

// admit completes the event of granted usage: its payload, and the change of its account.
func admit(p *events.Pending, usage *events.Admitted, by string, d *domain.Decision) (err error) {
	p.Account, p.Reservation = d.Account, d.Reservation
	usage.Admitted.By, usage.Admitted.SubscriptionID, usage.Admitted.FeatureType = by, d.SubscriptionID, d.FeatureType
	usage.Admitted.PeriodKey, usage.Admitted.Limit = d.PeriodKey, d.Limit
	usage.Admitted.Used, usage.Admitted.Held = number(d.Used), number(d.Held)
	p.Payload, err = codec.EncodePayload(events.UsageAdmitted, usage)
	return err
}

func number(n *big.Int) *json.Number {
	if n == nil {
		return nil
	}
	text := json.Number(n.String())
	return &text
}

// event reads the event of a granted quota request.
func (c *Quotas) event(ctx context.Context, tenant uuid.UUID, at events.Position) (events.Envelope, error) {
	list, err := c.Log.Read(ctx, at.Partition, at.Number-1, at.Number, 1)
	if err != nil {
		return events.Envelope{}, fmt.Errorf("%w: reading the first answer: %w", commands.ErrUnavailable, err)
	}
	if len(list) != 1 || list[0].TenantID != tenant {
		return events.Envelope{}, errors.New("the event of a granted request is not at its position " + at.String())
	}
	return list[0], nil
}

// consumed returns the answer that follows from the event of a consumption.
func consumed(payload json.RawMessage, at events.Position) (Consumed, error) {
	e, err := codec.AdmittedOf(payload)
	if err != nil {
		return Consumed{}, err
	}
	a := Consumed{
		Allowed: true, Feature: e.Feature, EventID: e.EventID, Amount: e.Amount, PeriodKey: e.Admitted.PeriodKey,
		Limit: e.Admitted.Limit, Used: e.Admitted.Used, Held: e.Admitted.Held,
		ResetAt: resetAt(e.Admitted.PeriodKey), Position: at,
	}
	a.Remaining, err = remainingOf(a.Limit, a.Used, a.Held)
	return a, err
}
