package metering

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// ReservationTable reads reservations.
type ReservationTable interface {
	// Reservation returns a tenant's reservation of a feature; nil for an unknown id, or if it ended more than 7 days ago.
	Reservation(ctx context.Context, tenant uuid.UUID, feature, id string) (*events.ReservationState, error)
	// Due lists reservations that are held although their time is over, the first ones to end first, without those of some
	// tenants.
	Due(ctx context.Context, now time.Time, without []uuid.UUID, limit int) ([]DueReservation, error)
	// NextDue returns when the time of the first reservation that is held is over; held is false if no reservation is held.
	NextDue(ctx context.Context) (at time.Time, held bool, err error)
}

// DueReservation is a reservation to expire.
type DueReservation struct {
	TenantID      uuid.UUID
	Residency     string // of the tenant's data
	ReservationID string
	Feature       string
}

// Reserved is the answer about a reservation that was held, extended or released: the reservation, and the account after the request.
type Reserved struct {
	ReservationID string          `json:"reservationId"`
	Feature       string          `json:"feature"`
	Amount        int64           `json:"amount"`
	State         string          `json:"state"`
	Released      *int64          `json:"released,omitempty"` // of an ended reservation: the amount that is held no longer
	PeriodKey     string          `json:"periodKey"`
	ExpiresAt     time.Time       `json:"expiresAt"`
	Limit         *int64          `json:"limit"`
	Used          *json.Number    `json:"used"`
	Held          *json.Number    `json:"held"`
	Remaining     *json.Number    `json:"remaining"`
	ResetAt       *time.Time      `json:"resetAt"`
	Position      events.Position `json:"position"`
}

// Committed is the answer to a commit. It follows from the event alone.
type Committed struct {
	ReservationID string          `json:"reservationId"`
	Feature       string          `json:"feature"`
	State         string          `json:"state"`
	EventID       string          `json:"eventId"`
	Amount        int64           `json:"amount"`
	Released      int64           `json:"released"` // of the held amount, the part that is not used
	PeriodKey     string          `json:"periodKey"`
	Limit         *int64          `json:"limit"`
	Used          *json.Number    `json:"used"`
	Held          *json.Number    `json:"held"`
	Remaining     *json.Number    `json:"remaining"`
	ResetAt       *time.Time      `json:"resetAt"`
	Position      events.Position `json:"position"`
}

// Hold holds all amounts of a tenant, or refuses all. Refusals are those of Consume, and reservation_conflict. known is how many were
// made before: their states are the present ones.
func (c *Quotas) Hold(ctx context.Context, by commands.Caller, list []intake.Holding, at func(i int) string) (answers []Reserved, known int,
	err error) {
	submitted := make([]Submitted, len(list))
	by.Actor = by.ActsAs()
	for i := range list {
		r := &list[i]
		c.prepare(&submitted[i], &by, events.ReservationHeld, events.KeyHold(r.ReservationID),
			domain.LedgerRequest{Kind: domain.Hold, Feature: r.Feature, Amount: r.Amount, ReservationID: r.ReservationID, Lasts: r.Lasts})
		submitted[i].Canonical, submitted[i].Sent = intake.CanonicalRequest, r.Sent()
	}
	recorded, err := c.request(ctx, &by, submitted, at)
	if err != nil {
		return nil, 0, err
	}
	answers = make([]Reserved, len(list))
	for i, e := range recorded {
		if answers[i], err = reserved(e.payload, events.StateHeld, e.at); err != nil {
			return nil, 0, err
		}
		if !e.known {
			continue
		}
		known++
		if err := c.present(ctx, &by, &answers[i]); err != nil {
			return nil, 0, err
		}
	}
	return answers, known, nil
}

// present completes the answer to a repeated hold by the present state.
func (c *Quotas) present(ctx context.Context, by *commands.Caller, a *Reserved) error {
	s, err := c.Reservations.Reservation(ctx, by.TenantID, a.Feature, a.ReservationID)
	if err != nil {
		return fmt.Errorf("%w: reading the reservation: %w", commands.ErrUnavailable, err)
	}
	if s == nil { // it ended more than 7 days ago: only an end without usage has a key, so that the committed amount is not known
		a.State, err = c.ended(ctx, by, a.ReservationID)
		if a.State == "" {
			a.State = events.StateCommitted
		} else {
			a.Released = &a.Amount
		}
		return err
	}
	a.State, a.ExpiresAt = s.State, s.ExpiresAt
	if s.State != events.StateHeld {
		released := max(0, s.Amount-s.Committed)
		a.Released = &released
	}
	return nil
}

// ended returns how a reservation ended without usage; "" if it did not.
func (c *Quotas) ended(ctx context.Context, by *commands.Caller, id string) (state string, err error) {
	probe := []Submitted{{Refusal: domain.ReservationNotFound()}}
	c.prepare(&probe[0], by, events.ReservationReleased, events.KeyReservationEnd(id), domain.LedgerRequest{})
	probe[0].Quota = nil
	outcomes, err := c.Log.Submit(ctx, by.TenantID, probe)
	if err != nil || outcomes[0].Status != Duplicate {
		return "", err
	}
	e, err := c.first(ctx, by.TenantID, &probe[0], outcomes[0].Position)
	if err != nil || e.subject != events.ReservationExpired {
		return events.StateReleased, err
	}
	return events.StateExpired, nil
}

// Commit records usage of at most the held amount, and releases the rest. known is 1 if it was recorded before.
func (c *Quotas) Commit(ctx context.Context, by commands.Caller, r *intake.Commitment) (answer Committed, known int, err error) {
	submitted := make([]Submitted, 1)
	by.Actor = by.ActsAs()
	s := &submitted[0]
	c.prepare(s, &by, events.UsageAdmitted, events.KeyUsage(r.EventID), domain.LedgerRequest{
		Kind: domain.Commit, Feature: r.Feature, Amount: r.Amount, ReservationID: r.ReservationID, EventID: r.EventID, Overage: r.Overage})
	s.Canonical, s.Sent, s.Counts = intake.CanonicalRequest, r.Sent(), events.Counts{Accepted: 1}
	s.Quota.Grant = func(p *events.Pending, d *domain.Decision) error {
		p.OccurredAt = d.At.UTC().Truncate(time.Microsecond)
		usage := &events.Admitted{Usage: events.Usage{EventID: r.EventID, Feature: r.Feature, Amount: r.Amount, Timestamp: p.OccurredAt,
			Type: events.TypeUsage}}
		usage.Admitted.ReservationID, usage.Admitted.HeldAmount = r.ReservationID, d.HeldAmount
		if r.Overage {
			usage.Admitted.Overage = events.OverageRecord
		}
		return admit(p, usage, events.ByCommit, d)
	}
	recorded, err := c.request(ctx, &by, submitted, ofOne)
	if err != nil {
		return Committed{}, 0, err
	}
	if recorded[0].known {
		known = 1
	}
	answer, err = committed(recorded[0].payload, recorded[0].at)
	return answer, known, err
}

// ofOne is the pointer of a request that has no items.
func ofOne(int) string { return "" }

// Extend holds an amount for a time from now, if that is longer than before.
func (c *Quotas) Extend(ctx context.Context, by commands.Caller, feature, id string, lasts time.Duration) (Reserved, error) {
	submitted := make([]Submitted, 1)
	by.Actor = by.ActsAs()
	c.prepare(&submitted[0], &by, events.ReservationExtended, "", domain.LedgerRequest{Kind: domain.Extend, Feature: feature,
		ReservationID: id, Lasts: lasts})
	recorded, err := c.request(ctx, &by, submitted, ofOne)
	if err != nil {
		return Reserved{}, err
	}
	return reserved(recorded[0].payload, events.StateHeld, recorded[0].at)
}

// Release ends a reservation without usage. A repetition gets the same answer.
func (c *Quotas) Release(ctx context.Context, by commands.Caller, feature, id string) (Reserved, error) {
	submitted := make([]Submitted, 1)
	by.Actor = by.ActsAs()
	c.prepare(&submitted[0], &by, events.ReservationReleased, events.KeyReservationEnd(id),
		domain.LedgerRequest{Kind: domain.Release, Feature: feature, ReservationID: id})
	recorded, err := c.request(ctx, &by, submitted, ofOne)
	if err != nil {
		return Reserved{}, err
	}
	answer, err := reserved(recorded[0].payload, events.StateReleased, recorded[0].at)
	switch {
	case err != nil:
		return Reserved{}, err
	case answer.Feature != feature:
		return Reserved{}, domain.ReservationNotFound()
	case recorded[0].subject == events.ReservationExpired:
		return Reserved{}, domain.ReservationEnded(events.StateExpired)
	}
	return answer, nil
}

// prepare fills in the event of a request about a reservation, whose payload is completed by the decision.
func (c *Quotas) prepare(s *Submitted, by *commands.Caller, subject events.Subject, key string, r domain.LedgerRequest) {
	now := c.Now()
	r.TenantID = by.TenantID
	s.Pending = events.Pending{
		EventID: c.NewID(now), Subject: subject, TenantID: by.TenantID, DedupeKey: key, CorrelationID: by.CorrelationID, Actor: by.Actor,
		OccurredAt: now, Replay: by.Replay, Residency: by.Residency,
	}
	if key == "" {
		s.DedupeKey = events.KeyEvent(s.EventID)
	}
	s.Quota = &QuotaRequest{LedgerRequest: r, Grant: reserve}
}

// ExpiredOf makes the event that the time of a reservation is over, which makes room for the request of p. The log calls
// it under the head's lock, and sets the event's id.
func ExpiredOf(p *events.Pending, d *domain.Decision) (events.Pending, error) {
	expired := events.Pending{
		Subject: events.ReservationExpired, TenantID: p.TenantID, DedupeKey: events.KeyReservationEnd(d.Reservation.ID),
		CorrelationID: p.CorrelationID, Actor: p.Actor, Residency: p.Residency,
	}
	return expired, reserve(&expired, d)
}

// Expire ends the reservations of a tenant whose time is over by the clock of this instance, those that are still held,
// and returns how many it ended.
func (c *Quotas) Expire(ctx context.Context, due []DueReservation) (ended int, err error) {
	by := commands.Caller{TenantID: due[0].TenantID, Actor: events.Actor{Type: "service", ID: events.GroupCommands},
		Residency: due[0].Residency}
	submitted := make([]Submitted, len(due))
	for i := range due {
		c.prepare(&submitted[i], &by, events.ReservationExpired, events.KeyReservationEnd(due[i].ReservationID),
			domain.LedgerRequest{Kind: domain.Expire, Feature: due[i].Feature, ReservationID: due[i].ReservationID})
	}
	outcomes, err := c.Log.Submit(ctx, by.TenantID, submitted)
	if err != nil {
		return 0, err
	}
	for i := range outcomes {
		if outcomes[i].Status == Appended {
			ended++
		}
	}
	return ended, nil
}

// reserve completes the event of a reservation that is not committed.
func reserve(p *events.Pending, d *domain.Decision) (err error) {
	r := d.Reservation
	p.OccurredAt = d.At.UTC().Truncate(time.Microsecond)
	p.Account, p.Reservation = d.Account, r
	p.Payload, err = codec.EncodePayload(p.Subject, &events.Reservation{
		ReservationID: r.ID, Feature: r.Feature, PeriodKey: r.PeriodKey, SubscriptionID: r.SubscriptionID, FeatureType: r.FeatureType,
		Amount: r.Amount, ExpiresAt: r.ExpiresAt, Limit: d.Limit, Used: number(d.Used), Held: number(d.Held),
	})
	return err
}

// reserved returns the answer that follows from an event about a reservation.
func reserved(payload json.RawMessage, state string, at events.Position) (Reserved, error) {
	var e events.Reservation
	if err := json.Unmarshal(payload, &e); err != nil {
		return Reserved{}, fmt.Errorf("decoding a reservation: %w", err)
	}
	a := Reserved{
		ReservationID: e.ReservationID, Feature: e.Feature, Amount: e.Amount, State: state, PeriodKey: e.PeriodKey, ExpiresAt: e.ExpiresAt,
		Limit: e.Limit, Used: e.Used, Held: e.Held, ResetAt: resetAt(e.PeriodKey), Position: at,
	}
	if state != events.StateHeld {
		a.Released = &a.Amount
	}
	var err error
	a.Remaining, err = remainingOf(e.Limit, e.Used, e.Held)
	return a, err
}

// committed returns the answer that follows from the event of a commit.
func committed(payload json.RawMessage, at events.Position) (Committed, error) {
	e, err := codec.AdmittedOf(payload)
	if err != nil {
		return Committed{}, err
	}
	g := &e.Admitted
	a := Committed{
		ReservationID: g.ReservationID, Feature: e.Feature, State: events.StateCommitted, EventID: e.EventID, Amount: e.Amount,
		Released: max(0, g.HeldAmount-e.Amount), PeriodKey: g.PeriodKey, Limit: g.Limit, Used: g.Used, Held: g.Held,
		ResetAt: resetAt(g.PeriodKey), Position: at,
	}
	a.Remaining, err = remainingOf(g.Limit, g.Used, g.Held)
	return a, err
}

// resetAt returns the end of a period, nil if it never ends.
func resetAt(period string) *time.Time {
	if _, end, ok := domain.PeriodBounds(period); ok {
		return &end
	}
	return nil
}

// remainingOf returns the rest of a limit by the account of an event; nil without a limit or an account.
func remainingOf(limit *int64, used, held *json.Number) (*json.Number, error) {
	if limit == nil || used == nil || held == nil {
		return nil, nil
	}
	isUsed, ok := new(big.Int).SetString(string(*used), 10)
	isHeld, too := new(big.Int).SetString(string(*held), 10)
	if !ok || !too {
		return nil, errors.New("a granted request has an account that is no sum: " + string(*used) + " and " + string(*held))
	}
	return number(domain.Remaining(big.NewInt(*limit), isUsed, isHeld)), nil
}
