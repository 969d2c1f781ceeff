package commands

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// MaxRetries bounds how often a dead letter is retried: what failed so often needs
// a person, not another try.
const MaxRetries = 100

// DeadLetters retries what failed. The request is answered 202 and recorded; the
// command router executes it. A retry is a new event, never the old one again.
type DeadLetters struct {
	Store Store
	Now   Clock
	NewID func() uuid.UUID
}

func (d *DeadLetters) now() time.Time { return d.Now().UTC().Truncate(time.Microsecond) }

// RequestRetry records the wish to retry a tenant's dead letter.
func (d *DeadLetters) RequestRetry(ctx context.Context, by Caller, once Once, id, tenant uuid.UUID, reason string) (events.Position, error) {
	return changeOne(ctx, d.Store, tenant, by, once, func(tx Tx) (events.Position, error) {
		letter, err := tx.DeadLetter(id)
		if err != nil {
			return events.Position{}, err
		}
		if letter == nil || letter.TenantID != tenant {
			return events.Position{}, refuse("dead_letter_not_found", "", "no such dead letter")
		}
		if refusal := retryable(letter); refusal != nil {
			return events.Position{}, refusal
		}
		return appendEvent(tx, d.NewID(), d.now(), by, once, tenant, events.RetryRequested, events.Retry{DeadLetterID: id, Reason: reason})
	})
}

func retryable(l *DeadLetter) *domain.Error {
	switch {
	case l.Stage == events.StageIngestion:
		return refuse("dead_letter_not_retryable", "", "a payload conflict cannot be retried: the first payload stays; send the usage under an eventId of its own")
	case l.Attempts >= MaxRetries:
		return refuse("dead_letter_not_retryable", "", "the dead letter was retried %d times; what fails so often needs a mended cause and usage sent anew", MaxRetries)
	case l.Status != events.StatusFailed:
		return refuse("dead_letter_not_retryable", "", "the dead letter is %s; only FAILED ones are retried", l.Status)
	case l.SourceSubject.Topic() != events.TopicUsageRaw && l.SourceSubject.Topic() != events.TopicUsageValidated && l.SourceSubject != events.UsageRejected:
		return refuse("dead_letter_not_retryable", "", "only usage is retried")
	}
	return nil
}

// ExecuteRetry does what RetryRequested asks, in the transaction that passes the
// request: it appends the new event and the fact that it was, or the refusal.
func (d *DeadLetters) ExecuteRetry(tx Tx, request *events.Envelope) error {
	var ask events.Retry
	if err := json.Unmarshal(request.Payload, &ask); err != nil {
		return fmt.Errorf("decoding a retry request: %w", err)
	}
	letter, err := tx.DeadLetter(ask.DeadLetterID)
	if err != nil {
		return err
	}
	refusal := refuse("dead_letter_not_found", "", "no such dead letter")
	if letter != nil {
		refusal = retryable(letter)
	}
	if refusal != nil {
		return d.append(tx, request, events.RetryRefused, "", events.Counts{},
			events.Refused{DeadLetterID: ask.DeadLetterID, Code: refusal.Code, Reason: refusal.Message})
	}
	return d.retry(tx, request, letter)
}

func (d *DeadLetters) retry(tx Tx, request *events.Envelope, l *DeadLetter) error {
	attempt := l.Attempts + 1
	subject, payload, counts, err := again(tx, l, attempt)
	if err != nil {
		return err
	}
	if err := d.append(tx, request, subject, events.KeyRetry(l.ID, attempt), counts, payload); err != nil {
		return err
	}
	return d.append(tx, request, events.DeadLetterRetried, "", events.Counts{},
		events.RetryDone{DeadLetterID: l.ID, Attempt: attempt})
}

// again makes the event that takes the failed one's way once more. A rejection
// that is retried is accepted anew; what was parked is parked no longer.
func again(tx Tx, l *DeadLetter, attempt int) (events.Subject, any, events.Counts, error) {
	counts := events.Counts{Accepted: 1}
	if l.Parked {
		counts = events.Counts{Parked: -1}
	}
	if l.SourceSubject.Topic() == events.TopicUsageValidated {
		verdict, err := tx.Payload(l.Source)
		if err != nil {
			return 0, nil, counts, err
		}
		v, err := events.VerdictOf(&verdict)
		return events.Reaggregated, events.Reaggregate{DeadLetterID: l.ID, Attempt: attempt, Validated: v}, counts, err
	}
	raw, err := tx.Payload(l.RawPosition)
	return events.UsageRetried, events.Retried{RawPosition: l.RawPosition, DeadLetterID: l.ID, Attempt: attempt, Usage: raw.Payload}, counts, err
}

// append gives the event its place; its key is its own id where none is given.
func (d *DeadLetters) append(tx Tx, request *events.Envelope, subject events.Subject, key string, counts events.Counts, payload any) error {
	body, err := json.Marshal(payload)
	if err != nil {
		return fmt.Errorf("encoding a retry: %w", err)
	}
	id := d.NewID()
	if key == "" {
		key = events.KeyEvent(id)
	}
	_, err = tx.Append(events.Pending{
		EventID: id, Subject: subject, TenantID: request.TenantID, DedupeKey: key, CorrelationID: request.CorrelationID,
		CausationID: request.EventID, Actor: events.Actor{Type: "service", ID: events.GroupCommands},
		OccurredAt: d.now(), Payload: body, Counts: counts,
	})
	return err
}
