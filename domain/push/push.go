// Package push decides which amounts of closed periods a billing provider has to count, and the consequence of each attempt. Like domain,
// it is pure.
package push

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// States of a push.
const (
	StatePending   = "PENDING"   // the provider has not counted it
	StateUnknown   = "UNKNOWN"   // the provider may have counted it
	StateDelivered = "DELIVERED" // the provider counts it
	StateFailed    = "FAILED"    // the provider refused it
)

const (
	// UnknownFor bounds how long a push whose result is unknown is sent again: providers forget identifiers after 24 hours, and would
	// count it twice from then on.
	UnknownFor = 23 * time.Hour
	// Oldest is the age of the oldest timestamp that providers accept.
	Oldest = 35 * 24 * time.Hour
	// Deadline is the time after which the saga of a push that is not delivered is partial.
	Deadline = 24 * time.Hour
	// Attempt bounds an attempt. It is longer than the timeouts of a provider's client: no two attempts run at the same time.
	Attempt = 2 * time.Minute

	// pushKeyBackoff bounds the wait after the provider refused the secret key: pushes go on soon after the key is corrected.
	pushKeyBackoff = 5 * time.Minute
	// pushLongestWait bounds the wait that a provider asks for.
	pushLongestWait = 6 * time.Hour
	maxPushError    = 1000
)

var pushBackoff = domain.Backoff{First: 5 * time.Second, Longest: time.Hour}

// Codes of pushes that the provider did not refuse.
const (
	TooOld    = "push_too_old" // failed before it was sent
	Undecided = "push_unknown" // its result stays unknown
)

// Outcome is the outcome of an attempt.
type Outcome string

// Delivered and Refused are answers. Later means that the provider surely did not count the attempt; KeyRefused, that it refuses the secret
// key, whatever the push is; Unknown, that the answer was lost or does not show whether the attempt was counted.
const (
	Delivered  Outcome = "delivered"
	Refused    Outcome = "refused"
	KeyRefused Outcome = "key_refused"
	Later      Outcome = "later"
	Unknown    Outcome = "unknown"
)

// Outcomes lists the outcomes.
func Outcomes() []Outcome {
	return []Outcome{Delivered, Refused, KeyRefused, Later, Unknown}
}

// Result is the outcome of an attempt. Code and Reason are the provider's.
type Result struct {
	Outcome      Outcome
	Code, Reason string
	RetryAfter   time.Duration // 0: the provider named no delay
}

// Push is an amount that a billing provider counts. Its body is stored before the first attempt, so that every attempt sends the same;
// Readdress is the exception, of a push that was not counted. Its times are of the database's clock.
type Push struct {
	ID        uuid.UUID `json:"id"`
	TenantID  uuid.UUID `json:"tenantId"`
	Feature   string    `json:"feature"`
	PeriodKey string    `json:"periodKey"`
	Snapshot  int       `json:"snapshot" doc:"Of the period, when the delivery was stored."`
	// N is 0 for the first push of the snapshot, k for that of its k-th adjustment.
	N int `json:"-"`
	// Amount is never 0.
	Amount *big.Int `json:"amount" doc:"The amount due: billable less all earlier deliveries; negative if less is billable."`

	Address
	Key        string    `json:"key" doc:"The idempotency key of each attempt."`
	Identifier string    `json:"identifier" doc:"Of the provider's event, derived from the key."`
	Timestamp  time.Time `json:"timestamp" doc:"The time at which the provider counts the amount."`

	State          string     `json:"state" enum:"PENDING,UNKNOWN,DELIVERED,FAILED" doc:"UNKNOWN: the provider may have counted it."`
	Attempts       int        `json:"attempts" doc:"Times that it was sent."`
	Failures       int        `json:"-"` // events PushFailed
	Renewals       int        `json:"-"` // of the idempotency key
	StoredAt       time.Time  `json:"storedAt" doc:"Before its first attempt."`
	FirstAttemptAt *time.Time `json:"firstAttemptAt" doc:"null: it was never sent."`
	AttemptedAt    *time.Time `json:"-"`            // the last attempt
	UnknownSince   *time.Time `json:"unknownSince"` // the first attempt that the provider may have counted; nil: no such attempt
	NextAt         *time.Time `json:"nextAt" doc:"Of the next attempt; null: no attempt follows by itself."`
	DeliveredAt    *time.Time `json:"deliveredAt" doc:"null: it is not delivered."`
	Code           string     `json:"lastCode"` // of the last error
	LastError      string     `json:"lastError"`
	LastReason     string     `json:"lastReason"` // of an operator
	LastActor      string     `json:"lastActor"`
}

// Closing returns the snapshot whose amounts are pushed.
func (p *Push) Closing() domain.Closing {
	return domain.Closing{TenantID: p.TenantID, PeriodKey: p.PeriodKey, Snapshot: p.Snapshot}
}

// Key is the idempotency key of a push. No part but the last contains a colon.
func Key(tenant uuid.UUID, feature, periodKey string, snapshot, n int) string {
	key := tenant.String() + ":" + feature + ":" + periodKey + ":" + strconv.Itoa(snapshot)
	if n > 0 {
		key += ":a" + strconv.Itoa(n)
	}
	return key
}

// RequestKey is the idempotency key of the next attempt. Providers repeat a saved answer for its key, so that an attempt after a refusal
// has another key. The identifier stays: the provider counts it once, whatever the key.
func (p *Push) RequestKey() string {
	if p.Renewals == 0 {
		return p.Key
	}
	return p.Key + ":r" + strconv.Itoa(p.Renewals)
}

// Identifier is the identifier of a push at a provider, which bounds it to 100 characters.
func Identifier(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "mp_" + hex.EncodeToString(sum[:20])
}

// Timestamp is the time at which the provider counts a push that is stored at a time: the last second of the period, but no time in the
// future. An adjustment, and a period without an end, count when they are stored.
func Timestamp(periodKey string, n int, stored time.Time) time.Time {
	stored = stored.UTC().Truncate(time.Second)
	if _, end, ok := domain.PeriodBounds(periodKey); ok && n == 0 && !end.After(stored) {
		return end.Add(-time.Second)
	}
	return stored
}

// Due is the amount due of a feature in a closed period.
type Due struct {
	Feature  string
	Event    string   // name of the provider's meter event
	Frozen   *big.Int // frozen figures of the snapshot
	Billable *big.Int // frozen figures and approved adjustments
	Pushed   *big.Int // all pushes of all snapshots, in every state
	Last     int      // the greatest N of a push of the snapshot; -1 without one
}

// Credit reports whether less is billable than was pushed.
func (d *Due) Credit() bool { return d.Billable.Cmp(d.Pushed) < 0 }

// Plan returns the pushes of the amount that is due; nil if the amount is 0. They are the first ones of the snapshot if frozen figures are
// due, whatever started the saga: they count in their period, or fail because they are too old. They are adjustments if only approved
// amounts are due. A credit goes to the addresses that are charged, a charge to the tenant's customer.
func Plan(newID func() uuid.UUID, c domain.Closing, d *Due, charged []Charge, to *events.Billing, now time.Time) (planned []Push) {
	n := d.Last + 1
	if d.Frozen.Cmp(d.Pushed) == 0 {
		n = max(n, 1)
	}
	counts := Timestamp(c.PeriodKey, n, now)
	amount := new(big.Int).Sub(d.Billable, d.Pushed)
	for _, part := range inDigits(splitPush(amount, charged, Address{Provider: to.Provider, Customer: to.Customer,
		Event: cmp.Or(d.Event, d.Feature)})) {
		planned = append(planned, stored(&c, newID(), d.Feature, n, part, counts, now))
		n++
	}
	return planned
}

// stored returns push n of a feature in the snapshot.
func stored(c *domain.Closing, id uuid.UUID, feature string, n int, part Charge, counts, now time.Time) Push {
	key := Key(c.TenantID, feature, c.PeriodKey, c.Snapshot, n)
	return Push{ID: id, TenantID: c.TenantID, Feature: feature, PeriodKey: c.PeriodKey, Snapshot: c.Snapshot, N: n, Amount: part.Amount,
		Address: part.Address, Key: key, Identifier: Identifier(key), Timestamp: counts, State: StatePending, StoredAt: now, NextAt: &now}
}

// Open reports whether the push is not delivered.
func (p *Push) Open() bool { return p.State != StateDelivered }

// Undecided reports whether the provider may have counted the push, and may have forgotten its identifier: it is not sent again.
func (p *Push) Undecided(now time.Time) bool {
	return p.UnknownSince != nil && !now.Before(p.UnknownSince.Add(UnknownFor))
}

// Give returns why a push is not sent any more; "" if it is.
func (p *Push) Give(now time.Time) (code, reason string) {
	switch {
	case p.Undecided(now):
		code, reason = Undecided, "the provider did not answer since "+domain.FormatTime(*p.UnknownSince)+
			", and may have counted the Stripe delivery; resolve it"
	case p.State == StatePending && !now.Before(p.Timestamp.Add(Oldest)):
		code, reason = TooOld, fmt.Sprintf("the time %s is more than %d days ago", domain.FormatTime(p.Timestamp), Oldest/(24*time.Hour))
	}
	return code, reason
}

// Begin begins an attempt and reports whether it is allowed. From here on the provider may have counted the push. No other attempt begins
// before Attempt is over.
func (p *Push) Begin(now time.Time) bool {
	if p.State != StatePending && p.State != StateUnknown || p.NextAt == nil || p.NextAt.After(now) {
		return false
	}
	if code, _ := p.Give(now); code != "" {
		return false
	}
	next := now.Add(Attempt)
	p.State, p.AttemptedAt, p.NextAt = StateUnknown, &now, &next
	p.Attempts++
	if p.FirstAttemptAt == nil {
		p.FirstAttemptAt = &now
	}
	if p.UnknownSince == nil {
		p.UnknownSince = &now
	}
	return true
}

// running reports whether an attempt may still wait for its answer.
func (p *Push) running(now time.Time) bool {
	return p.State == StateUnknown && p.AttemptedAt != nil && p.NextAt != nil && p.NextAt.Equal(p.AttemptedAt.Add(Attempt)) &&
		now.Before(*p.NextAt)
}

// Answered applies the result of an attempt and reports whether it has an effect. A delivery counts whenever it is known; another result
// only of the last attempt.
func (p *Push) Answered(r Result, attempt int, now time.Time) bool {
	if p.State == StateDelivered || r.Outcome != Delivered && (attempt != p.Attempts || p.State != StateUnknown) {
		return false
	}
	if r.Outcome == Delivered {
		p.deliver(now)
		return true
	}
	p.Code, p.LastError = r.Code, pushError(r.Reason)
	if r.Outcome != Unknown && p.UnknownSince != nil && p.AttemptedAt != nil && p.UnknownSince.Equal(*p.AttemptedAt) {
		p.State, p.UnknownSince = StatePending, nil // no attempt was counted
	}
	if r.Outcome == Refused || r.Outcome == KeyRefused && p.UnknownSince == nil { // in doubt the first key protects, too
		p.Renewals++
	}
	if r.Outcome == Refused {
		p.fail(r.Code, r.Reason)
		return true
	}
	wait := pushBackoff.After(p.Attempts)
	if r.Outcome == KeyRefused {
		wait = min(wait, pushKeyBackoff)
	}
	next := now.Add(max(wait, min(r.RetryAfter, pushLongestWait)))
	p.NextAt = &next
	return true
}

// Stop ends the attempts of a push that is due and is not sent any more, and reports whether it is one.
func (p *Push) Stop(now time.Time) bool {
	code, reason := p.Give(now)
	switch {
	case code == "" || p.NextAt == nil || p.NextAt.After(now):
		return false
	case p.State == StatePending:
		p.fail(code, reason)
	default: // the provider may have counted it
		p.NextAt, p.Code, p.LastError = nil, code, pushError(reason)
		p.Failures++
	}
	return true
}

func (p *Push) fail(code, reason string) {
	p.State, p.NextAt, p.Code, p.LastError = StateFailed, nil, code, pushError(reason)
	p.Failures++
}

func (p *Push) deliver(now time.Time) {
	var none Push
	p.State, p.NextAt, p.DeliveredAt, p.Code, p.LastError = StateDelivered, nil, &now, none.Code, none.LastError
}

// Retry lets a push be sent again now. It returns the reason against it, nil if it is allowed.
func (p *Push) Retry(reason, actor string, now time.Time) *domain.Error {
	switch {
	case p.State == StateDelivered:
		return pushDelivered(p)
	case p.State == StatePending:
		return &domain.Error{Code: "push_pending", Message: "The Stripe delivery is PENDING: it is sent by itself"}
	case p.Undecided(now):
		return &domain.Error{Code: "push_unknown",
			Message: "The provider may have counted the Stripe delivery, and no longer detects a repetition; find it at the provider, " +
				"and resolve the delivery"}
	}
	if p.State == StateFailed && p.UnknownSince == nil {
		p.State = StatePending
	} else {
		p.State = StateUnknown
	}
	if !p.running(now) {
		p.NextAt = &now
	}
	p.LastReason, p.LastActor = reason, actor
	return nil
}

// Resolve applies an operator's knowledge of a push: delivered, or surely not counted, so that it is sent again. It returns the reason
// against it.
func (p *Push) Resolve(delivered bool, reason, actor string, now time.Time) *domain.Error {
	switch {
	case p.State == StateDelivered:
		return pushDelivered(p)
	case p.State == StatePending:
		return &domain.Error{Code: "push_pending",
			Message: "The Stripe delivery is PENDING: the provider has not counted it, and it is sent by itself"}
	case p.running(now):
		return &domain.Error{Code: "push_pending",
			Message: "The Stripe delivery is being sent: its result is not known yet; ask again in " +
				Attempt.String()}
	}
	p.LastReason, p.LastActor = reason, actor
	p.Settle(delivered, now)
	return nil
}

// Settle ends the doubt about a push: it is delivered, or sent again.
func (p *Push) Settle(delivered bool, now time.Time) {
	if delivered {
		p.deliver(now)
		return
	}
	p.State, p.UnknownSince, p.NextAt = StatePending, nil, &now
	p.Renewals++ // a failure that the provider saved for the key would be repeated
}

// SettleByTotal ends the doubt about a push by the provider's total. One that the provider refused is not sent again by itself.
func (p *Push) SettleByTotal(counted bool, now time.Time) {
	if p.State == StateFailed && !counted {
		p.UnknownSince = nil
		return
	}
	p.Settle(counted, now)
}

func pushDelivered(p *Push) *domain.Error {
	return &domain.Error{Code: "push_delivered", Message: "The Stripe delivery " + p.ID.String() + " is DELIVERED"}
}

func pushError(reason string) string {
	reason = strings.ReplaceAll(reason, "\x00", "")
	return strings.ToValidUTF8(reason[:min(len(reason), maxPushError)], "")
}

// OfTotal decides pushes whose result is unknown by the provider's total: all of them are counted, or none. It reports false if the
// total fits neither, or both.
func OfTotal(total, delivered, unknown *big.Int) (counted, decided bool) {
	rest := new(big.Int).Sub(total, delivered)
	if all, none := rest.Cmp(unknown) == 0, rest.Sign() == 0; all != none {
		return all, true
	}
	return false, false
}

// Window is an address in a month of UTC, which a comparison of totals reads.
type Window struct {
	Address
	Month    string // e.g. 2026-11, of the timestamps
	TenantID uuid.UUID
	Feature  string
}

// Sums are the pushes of a window.
type Sums struct {
	Delivered *big.Int
	Unknown   *big.Int // of Undecided
	Undecided []Push   // not sent again: the provider may have counted them
	OnTheWay  int      // pushes that are sent, or were delivered a moment ago
}

// Equal reports whether two readings of a window are equal.
func (s *Sums) Equal(o *Sums) bool {
	return s.Delivered.Cmp(o.Delivered) == 0 && s.Unknown.Cmp(o.Unknown) == 0 && len(s.Undecided) == len(o.Undecided) &&
		s.OnTheWay == o.OnTheWay
}
