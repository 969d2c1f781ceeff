package repair

import (
	"context"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Discarded is a dead letter that was discarded. Position is that of its event.
type Discarded struct {
	ID       uuid.UUID       `json:"id"`
	Status   string          `json:"status"`
	Position events.Position `json:"position"`
}

// Discard closes a tenant's dead letter permanently. The failed event is never
// counted, not even in a rebuild.
func (d *DeadLetters) Discard(ctx context.Context, req commands.Request, id, tenant uuid.UUID, reason string) (Discarded, error) {
	if refusal := reasonFault(reason); refusal != nil {
		return Discarded{}, refusal
	}
	return commands.Change(d.changeOf(ctx, tenant), req, func(tx DeadLetterTx) (Discarded, error) {
		letter, err := deadLetter(tx, id, tenant)
		if err != nil {
			return Discarded{}, err
		}
		if refusal := letter.Discardable(); refusal != nil {
			return Discarded{}, refusal
		}
		closed, err := d.discard(&req, letter, uuid.Nil, reason)
		if err != nil {
			return Discarded{}, err
		}
		voided, err := voidedBy(tx, &closed)
		if err != nil {
			return Discarded{}, err
		}
		position, err := commands.AppendOne(tx, closed)
		if err != nil {
			return Discarded{}, err
		}
		return Discarded{id, events.StatusDiscarded, position}, billing.StartPushes(tx, d.NewID, voided, position)
	})
}

// voidedBy returns the snapshots of which a discard voids an approved amount, which may be pushed: the difference is due.
func voidedBy(tx DeadLetterTx, closed *events.Pending) ([]domain.Closing, error) {
	if closed.Decided == nil {
		return nil, nil
	}
	return tx.Approved(closed.TenantID, closed.Decided.Recorded)
}

// reasonFault checks the reason of a change of dead letters or accounts, whose fault has one code.
func reasonFault(reason string) *domain.Error {
	fault := domain.CheckReason(reason)
	if fault != nil {
		fault.Code = "reason_invalid"
	}
	return fault
}

// discard makes the event of a discard. A parked event counts as rejected from then
// on, its account no longer counts it, and its adjustments are void. An event that was rejected, or never accepted, stays so. Admitted
// usage stays used: it was granted.
func (d *DeadLetters) discard(req *commands.Request, l *domain.DeadLetter, cause uuid.UUID, reason string) (events.Pending, error) {
	p, err := d.request(req, l, cause, events.DeadLetterClosed, events.KeyClosed(l.ID),
		events.Closed{DeadLetterID: l.ID, Status: events.StatusDiscarded, Reason: reason})
	if l.Parked {
		p.Counts = events.Counts{Parked: -1, Rejected: 1}
		p.Decided = &events.AdjustmentChange{State: events.AdjustmentVoid, Reason: "its dead letter was discarded", Recorded: l.RawPosition}
		if c := l.Counted; c != nil {
			p.Account = &events.AccountChange{Feature: c.Feature, PeriodKey: c.PeriodKey, Used: -c.Used}
		}
	}
	return p, err
}
