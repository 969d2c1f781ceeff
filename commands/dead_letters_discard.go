package commands

import (
	"context"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// maxDiscardReason bounds the reason for a discard, in characters.
const maxDiscardReason = 500

// Discarded is a dead letter that was discarded. Position is that of its event.
type Discarded struct {
	ID       uuid.UUID       `json:"id"`
	Status   string          `json:"status"`
	Position events.Position `json:"position"`
}

// Discard closes a tenant's dead letter permanently. The failed event is never
// counted, not even in a rebuild.
func (d *DeadLetters) Discard(ctx context.Context, by Caller, once Once, id, tenant uuid.UUID, reason string) (Discarded, error) {
	if refusal := reasonFault(reason); refusal != nil {
		return Discarded{}, refusal
	}
	return changeOne(ctx, d.Store, tenant, by, once, func(tx Tx) (Discarded, error) {
		letter, err := deadLetter(tx, id, tenant)
		if err != nil {
			return Discarded{}, err
		}
		if refusal := discardable(letter); refusal != nil {
			return Discarded{}, refusal
		}
		p, err := d.discard(letter, by, uuid.Nil, reason)
		if err != nil {
			return Discarded{}, err
		}
		closed := []events.Pending{p}
		if err := underResidency(tx, closed); err != nil {
			return Discarded{}, err
		}
		position, err := tx.Append(closed[0])
		return Discarded{id, events.StatusDiscarded, position}, err
	})
}

func reasonFault(reason string) *domain.Error {
	if strings.TrimSpace(reason) == "" || utf8.RuneCountInString(reason) > maxDiscardReason || !utf8.ValidString(reason) || strings.ContainsFunc(reason, unicode.IsControl) {
		return refuse("reason_invalid", "/reason", "reason must be 1 to %d characters of text without control characters: the log keeps it", maxDiscardReason)
	}
	return nil
}

func discardable(l *DeadLetter) *domain.Error {
	const code = "dead_letter_not_discardable"
	switch l.Status {
	case events.StatusFailed:
		return nil
	case events.StatusRetrying:
		return refuse(code, "", "the dead letter is RETRYING: its event may still be counted; wait for the outcome")
	case events.StatusResolved:
		return refuse(code, "", "the dead letter is RESOLVED: it cannot be discarded")
	default:
		return refuse(code, "", "the dead letter is %s already", l.Status)
	}
}

// discard makes the event of a discard. A parked event counts as rejected from then
// on. An event that was rejected, or never accepted, stays so.
func (d *DeadLetters) discard(l *DeadLetter, by Caller, cause uuid.UUID, reason string) (events.Pending, error) {
	p, err := d.newRequest(l, by, cause, events.DeadLetterClosed, events.KeyClosed(l.ID),
		events.Closed{DeadLetterID: l.ID, Status: events.StatusDiscarded, Reason: reason})
	if l.Parked {
		p.Counts = events.Counts{Parked: -1, Rejected: 1}
	}
	return p, err
}
