package metering

import (
	"context"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Submitted is an event to append to the log.
type Submitted struct {
	events.Pending
	// Refusal, if set, refuses the event unless its key is known: the log compares it, but never stores it.
	Refusal *domain.Error
	// Inbox is the key under which a refusal of this event is recorded, "" if refusals
	// are only returned. If the log has the key, the event was refused before. It is
	// then neither compared nor stored, however often it is delivered.
	Inbox string
	// Refuse makes the event that records a refusal under the key Inbox; nil without one.
	Refuse func(refusal *domain.Error) events.Pending
	// Target, if set, is looked up under the head's lock, in the turn of the event: the event is stored only if it can be corrected.
	Target *CorrectionTarget
	// Quota, if set, is decided under the head's lock, in the turn of the event: the event is stored only if it is granted.
	Quota *QuotaRequest
	// Admission, of the first event of a submission, is compared under the head's lock: if the key or its tenant has ended, Submit returns
	// that refusal, and the log stores no event of the submission. Nil: it is not compared.
	Admission *commands.Admission
	// Whole, of the first event of a submission, means that all its events are stored, or no event if the log would not store one.
	Whole bool
}

// QuotaRequest requests to use an amount of a feature, to hold one, or to change a reservation.
type QuotaRequest struct {
	domain.LedgerRequest
	// Grant completes the event by the decision.
	Grant func(p *events.Pending, d *domain.Decision) error
}

// CorrectionTarget is the usage that a correction or a retraction names.
type CorrectionTarget struct {
	Ref        string // eventId of the target
	Feature    string // of the correction
	Retraction bool
}

// Outcome is the outcome of a submitted event.
type Outcome struct {
	Status   OutcomeStatus
	Position events.Position // of the event, or of the one that was stored first
	Refusal  *domain.Error   // of a denied event, also if the denial is stored; nil if only an earlier delivery was refused
}

// OutcomeStatus is one of the statuses of an outcome.
type OutcomeStatus int

// Statuses of an outcome.
const (
	Unknown   OutcomeStatus = iota // never returned without an error
	Appended                       // stored now
	Duplicate                      // the same payload is stored at Position
	Conflict                       // another payload is stored at Position; the conflict is recorded
	Absent                         // not stored, because another event of a whole submission was refused
	Undecided                      // a quota request that is not decided: submit it again
	Refused                        // the refusal is stored at Position, now or earlier
	Denied                         // refused before, by a limit or by its target, for the reason in Refusal; no row is stored
)

// UsageLog appends usage to the log.
type UsageLog interface {
	// Submit appends the events of one tenant in order and deduplicates them in the
	// transaction that stores them. Concurrent calls may share the transaction. Submit
	// returns after the commit. If a commit gets no response, Submit looks its events
	// up until the outcome is known; if that fails, the error is ErrUnavailable
	// (wrapped), and the outcome is unknown. Overloaded is returned at once, and then
	// no event was stored. Without an error, no reference to batch remains.
	Submit(ctx context.Context, tenant uuid.UUID, batch []Submitted) ([]Outcome, error)
	// Admit returns Overloaded if Submit would return it now. It is called before a
	// batch is read, so that a refusal costs less than serving.
	Admit(tenant uuid.UUID) error
}

// Histories loads the subscriptions on which verdicts depend.
type Histories interface {
	// Cached may be older than the tables by the time that the other instances need
	// to announce a change; Fresh reads the tables. Both are as of "now": every entry
	// counts, whatever its position.
	Cached(ctx context.Context, tenant uuid.UUID) (domain.TenantHistory, error)
	Fresh(ctx context.Context, tenant uuid.UUID) (domain.TenantHistory, error)
}
