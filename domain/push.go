package domain

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

	"github.com/meterplex/meterplex/events"
)

// States of a push.
const (
	PushStatePending   = "PENDING"   // the provider has not counted it
	PushStateUnknown   = "UNKNOWN"   // the provider may have counted it
	PushStateDelivered = "DELIVERED" // the provider counts it
	PushStateFailed    = "FAILED"    // the provider refused it
)

// PushStates lists the states.
func PushStates() []string {
	return []string{PushStatePending, PushStateUnknown, PushStateDelivered, PushStateFailed}
}

const (
	// PushUnknownFor bounds how long a push whose result is unknown is sent again: providers forget identifiers after 24 hours, and would
	// count it twice from then on.
	PushUnknownFor = 23 * time.Hour
	// PushOldest is the age of the oldest timestamp that providers accept.
	PushOldest = 35 * 24 * time.Hour
	// PushDeadline is the time after which the saga of a push that is not delivered is partial.
	PushDeadline = 24 * time.Hour
	// PushAttempt bounds an attempt. It is longer than the timeouts of a provider's client: no two attempts run at the same time.
	PushAttempt = 2 * time.Minute

	pushFirstBackoff   = 5 * time.Second
	pushLongestBackoff = time.Hour
	// pushKeyBackoff bounds the wait after the provider refused the secret key: pushes go on soon after the key is corrected.
	pushKeyBackoff = 5 * time.Minute
	// pushLongestWait bounds the wait that a provider asks for.
	pushLongestWait = 6 * time.Hour
	maxPushError    = 1000
)

// Codes of pushes that the provider did not refuse.
const (
	PushTooOld    = "push_too_old" // failed before it was sent
	PushUndecided = "push_unknown" // its result stays unknown
)

// PushOutcome is the outcome of an attempt.
type PushOutcome string

// PushDelivered and PushRefused are answers. PushLater means that the provider surely did not count the attempt; PushKeyRefused, that it refuses the secret
// key, whatever the push is; PushUnknown, that the answer was lost or says nothing about it.
const (
	PushDelivered  PushOutcome = "delivered"
	PushRefused    PushOutcome = "refused"
	PushKeyRefused PushOutcome = "key_refused"
	PushLater      PushOutcome = "later"
	PushUnknown    PushOutcome = "unknown"
)

// PushOutcomes lists the outcomes.
func PushOutcomes() []PushOutcome {
	return []PushOutcome{PushDelivered, PushRefused, PushKeyRefused, PushLater, PushUnknown}
}

// PushResult is the outcome of an attempt. Code and Reason are the provider's.
type PushResult struct {
	Outcome      PushOutcome
	Code, Reason string
	RetryAfter   time.Duration // 0: the provider named none
}

// Push is an amount that a billing provider counts. Its body is stored before the first attempt, so that every attempt sends the same; Readdress is the exception, of a push that was not counted.
// Its times are of the database's clock.
type Push struct {
	ID        uuid.UUID
	TenantID  uuid.UUID
	Feature   string
	PeriodKey string
	Snapshot  int
	N         int      // 0: the first push of the snapshot; k: of its k-th adjustment
	Amount    *big.Int // negative if less is due than was pushed; never 0

	PushAddress
	Key        string // the idempotency key
	Identifier string // of the provider's event, derived from the key
	Timestamp  time.Time

	State          string
	Attempts       int
	Failures       int // events PushFailed
	Renewals       int // of the idempotency key
	StoredAt       time.Time
	FirstAttemptAt *time.Time
	AttemptedAt    *time.Time // the last attempt
	UnknownSince   *time.Time // the first attempt that the provider may have counted; nil: none
	NextAt         *time.Time // of the next attempt; nil: none follows by itself
	DeliveredAt    *time.Time
	Code           string // of the last error
	LastError      string
	LastReason     string // of an operator
	LastActor      string
}

// Closing returns the snapshot whose amounts are pushed.
func (p *Push) Closing() Closing {
	return Closing{TenantID: p.TenantID, PeriodKey: p.PeriodKey, Snapshot: p.Snapshot}
}

// PushKey is the idempotency key of a push. No part but the last contains a colon.
func PushKey(tenant uuid.UUID, feature, periodKey string, snapshot, n int) string {
	key := tenant.String() + ":" + feature + ":" + periodKey + ":" + strconv.Itoa(snapshot)
	if n > 0 {
		key += ":a" + strconv.Itoa(n)
	}
	return key
}

// RequestKey is the idempotency key of the next attempt. Providers repeat a saved answer for its key, so that an attempt after a refusal has another key. The
// identifier stays: the provider counts it once, whatever the key.
func (p *Push) RequestKey() string {
	if p.Renewals == 0 {
		return p.Key
	}
	return p.Key + ":r" + strconv.Itoa(p.Renewals)
}

// PushIdentifier is the identifier of a push at a provider, which bounds it to 100 characters.
func PushIdentifier(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "mp_" + hex.EncodeToString(sum[:20])
}

// PushTimestamp is the time at which the provider counts a push that is stored at a time: the last second of the period, but no time in the future. An
// adjustment, and a period without an end, count when they are stored.
func PushTimestamp(periodKey string, n int, stored time.Time) time.Time {
	stored = stored.UTC().Truncate(time.Second)
	if _, end, ok := PeriodBounds(periodKey); ok && n == 0 && !end.After(stored) {
		return end.Add(-time.Second)
	}
	return stored
}

// PushDue is what is due of a feature in a closed period.
type PushDue struct {
	Feature  string
	Event    string   // name of the provider's meter event
	Frozen   *big.Int // frozen figures of the snapshot
	Billable *big.Int // frozen figures and approved adjustments
	Pushed   *big.Int // all pushes of all snapshots, in every state
	Last     int      // the greatest N of a push of the snapshot; -1 without one
}

// Credit reports whether less is billable than was pushed.
func (d *PushDue) Credit() bool { return d.Billable.Cmp(d.Pushed) < 0 }

// PlanPushes returns the pushes of the amount that is due; nil if the amount is 0. They are the first ones of the snapshot if frozen figures are due, whatever started the saga:
// they count in their period, or fail because they are too old. They are adjustments if only approved amounts are due. A credit goes to the addresses that are charged, a
// charge to the tenant's customer.
func PlanPushes(newID func() uuid.UUID, c Closing, d *PushDue, charged []PushCharge, to *events.Billing, now time.Time) (planned []Push) {
	n := d.Last + 1
	if d.Frozen.Cmp(d.Pushed) == 0 {
		n = max(n, 1)
	}
	counts := PushTimestamp(c.PeriodKey, n, now)
	amount := new(big.Int).Sub(d.Billable, d.Pushed)
	for _, part := range inDigits(splitPush(amount, charged, PushAddress{Provider: to.Provider, Customer: to.Customer, Event: cmp.Or(d.Event, d.Feature)})) {
		planned = append(planned, stored(&c, newID(), d.Feature, n, part, counts, now))
		n++
	}
	return planned
}

// stored returns push n of a feature in the snapshot.
func stored(c *Closing, id uuid.UUID, feature string, n int, part PushCharge, counts, now time.Time) Push {
	key := PushKey(c.TenantID, feature, c.PeriodKey, c.Snapshot, n)
	return Push{ID: id, TenantID: c.TenantID, Feature: feature, PeriodKey: c.PeriodKey, Snapshot: c.Snapshot, N: n, Amount: part.Amount,
		PushAddress: part.PushAddress, Key: key, Identifier: PushIdentifier(key), Timestamp: counts, State: PushStatePending, StoredAt: now, NextAt: &now}
}

// Open reports whether the push is not delivered.
func (p *Push) Open() bool { return p.State != PushStateDelivered }

// Undecided reports whether the provider may have counted the push, and may have forgotten its identifier: it is not sent again.
func (p *Push) Undecided(now time.Time) bool {
	return p.UnknownSince != nil && !now.Before(p.UnknownSince.Add(PushUnknownFor))
}

// Give returns why a push is not sent any more; "" if it is.
func (p *Push) Give(now time.Time) (code, reason string) {
	switch {
	case p.Undecided(now):
		code, reason = PushUndecided, "the provider did not answer since "+FormatTime(*p.UnknownSince)+", and may have counted the push; resolve it"
	case p.State == PushStatePending && !now.Before(p.Timestamp.Add(PushOldest)):
		code, reason = PushTooOld, fmt.Sprintf("the time %s is more than %d days ago", FormatTime(p.Timestamp), PushOldest/(24*time.Hour))
	}
	return code, reason
}

// Begin begins an attempt and reports whether it is allowed. From here on the provider may have counted the push. No other attempt begins before
// the time PushAttempt.
func (p *Push) Begin(now time.Time) bool {
	if p.State != PushStatePending && p.State != PushStateUnknown || p.NextAt == nil || p.NextAt.After(now) {
		return false
	}
	if code, _ := p.Give(now); code != "" {
		return false
	}
	next := now.Add(PushAttempt)
	p.State, p.AttemptedAt, p.NextAt = PushStateUnknown, &now, &next
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
	return p.State == PushStateUnknown && p.AttemptedAt != nil && p.NextAt != nil && p.NextAt.Equal(p.AttemptedAt.Add(PushAttempt)) && now.Before(*p.NextAt)
}

// Answered applies the result of an attempt and reports whether it has an effect. A delivery counts whenever it is known; another result only
// of the last attempt.
func (p *Push) Answered(r PushResult, attempt int, now time.Time) bool {
	if p.State == PushStateDelivered || r.Outcome != PushDelivered && (attempt != p.Attempts || p.State != PushStateUnknown) {
		return false
	}
	if r.Outcome == PushDelivered {
		p.deliver(now)
		return true
	}
	p.Code, p.LastError = r.Code, pushError(r.Reason)
	if r.Outcome != PushUnknown && p.UnknownSince != nil && p.AttemptedAt != nil && p.UnknownSince.Equal(*p.AttemptedAt) {
		p.State, p.UnknownSince = PushStatePending, nil // no attempt was counted
	}
	if r.Outcome == PushRefused || r.Outcome == PushKeyRefused && p.UnknownSince == nil { // in doubt the first key protects, too
		p.Renewals++
	}
	if r.Outcome == PushRefused {
		p.fail(r.Code, r.Reason)
		return true
	}
	wait := PushBackoff(p.Attempts)
	if r.Outcome == PushKeyRefused {
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
	case p.State == PushStatePending:
		p.fail(code, reason)
	default: // the provider may have counted it
		p.NextAt, p.Code, p.LastError = nil, code, pushError(reason)
		p.Failures++
	}
	return true
}

func (p *Push) fail(code, reason string) {
	p.State, p.NextAt, p.Code, p.LastError = PushStateFailed, nil, code, pushError(reason)
	p.Failures++
}

func (p *Push) deliver(now time.Time) {
	var none Push
	p.State, p.NextAt, p.DeliveredAt, p.Code, p.LastError = PushStateDelivered, nil, &now, none.Code, none.LastError
}

// Retry lets a push be sent again now. It returns the reason against it, nil if it is allowed.
func (p *Push) Retry(reason, actor string, now time.Time) *Error {
	switch {
	case p.State == PushStateDelivered:
		return pushDelivered(p)
	case p.State == PushStatePending:
		return &Error{Code: "push_pending", Message: "The push is PENDING: it is sent by itself"}
	case p.Undecided(now):
		return &Error{Code: "push_unknown", Message: "The provider may have counted the push, and no longer detects a repetition; find it at the provider, and resolve the push"}
	}
	if p.State == PushStateFailed && p.UnknownSince == nil {
		p.State = PushStatePending
	} else {
		p.State = PushStateUnknown
	}
	if !p.running(now) {
		p.NextAt = &now
	}
	p.LastReason, p.LastActor = reason, actor
	return nil
}

// Resolve applies an operator's knowledge of a push: delivered, or surely not counted, so that it is sent again. It returns the reason against it.
func (p *Push) Resolve(delivered bool, reason, actor string, now time.Time) *Error {
	switch {
	case p.State == PushStateDelivered:
		return pushDelivered(p)
	case p.State == PushStatePending:
		return &Error{Code: "push_pending", Message: "The push is PENDING: the provider has not counted it, and it is sent by itself"}
	case p.running(now):
		return &Error{Code: "push_pending", Message: "The push is being sent: nobody can know its result; ask again in " + PushAttempt.String()}
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
	p.State, p.UnknownSince, p.NextAt = PushStatePending, nil, &now
	p.Renewals++ // a failure that the provider saved for the key would be repeated
}

// SettleByTotal ends the doubt about a push by the provider's total. One that the provider refused is not sent again by itself.
func (p *Push) SettleByTotal(counted bool, now time.Time) {
	if p.State == PushStateFailed && !counted {
		p.UnknownSince = nil
		return
	}
	p.Settle(counted, now)
}

func pushDelivered(p *Push) *Error {
	return &Error{Code: "push_delivered", Message: "The push " + p.ID.String() + " is DELIVERED"}
}

// PushBackoff is the wait after a number of attempts.
func PushBackoff(attempts int) time.Duration {
	wait := pushFirstBackoff
	for n := 1; n < attempts && wait < pushLongestBackoff; n++ {
		wait *= 2
	}
	return min(wait, pushLongestBackoff)
}

func pushError(reason string) string {
	reason = strings.ReplaceAll(reason, "\x00", "")
	return strings.ToValidUTF8(reason[:min(len(reason), maxPushError)], "")
}

// PushesOfTotal decides pushes whose result is unknown by the provider's total: all of them are counted, or none. It reports false if the total
// fits neither, or both.
func PushesOfTotal(total, delivered, unknown *big.Int) (counted, decided bool) {
	rest := new(big.Int).Sub(total, delivered)
	if all, none := rest.Cmp(unknown) == 0, rest.Sign() == 0; all != none {
		return all, true
	}
	return false, false
}

// PushWindow is an address in a month of UTC, which a comparison of totals reads.
type PushWindow struct {
	PushAddress
	Month    string // e.g. 2026-11, of the timestamps
	TenantID uuid.UUID
	Feature  string
}

// PushSums are the pushes of a window.
type PushSums struct {
	Delivered *big.Int
	Unknown   *big.Int // of Undecided
	Undecided []Push   // not sent again: the provider may have counted them
	OnTheWay  int      // pushes that are sent, or were delivered a moment ago
}

// Equal reports whether two readings of a window are equal.
func (s *PushSums) Equal(o *PushSums) bool {
	return s.Delivered.Cmp(o.Delivered) == 0 && s.Unknown.Cmp(o.Unknown) == 0 && len(s.Undecided) == len(o.Undecided) && s.OnTheWay == o.OnTheWay
}
