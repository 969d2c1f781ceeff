package domain

import (
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// MaxRetries bounds the retries of a dead letter: after so many failures a person
// must look at it.
const MaxRetries = 100

// DeadLetterRef identifies a dead letter and its tenant.
type DeadLetterRef struct{ ID, TenantID uuid.UUID }

// DeadLetter is the state on which decisions about a dead letter depend. All of it,
// except the description of the failure, follows from the log, so it never lags.
type DeadLetter struct {
	ID            uuid.UUID
	TenantID      uuid.UUID
	Stage         string
	Source        int64 // number of the event that failed
	SourceSubject events.Subject
	RawPosition   int64 // number of the recorded event
	// Counted is the account change of the verdict that failed, nil if its account does not count it by the verdict: it is no
	// verdict, not of a QUOTA feature, or on admitted usage.
	Counted *events.AccountChange
	// Corrected is true for the verdict on a correction or a retraction, and for a verdict whose usage is corrected or retracted.
	Corrected bool
	Archived  bool // its tenant is archived: no period of it is closed any more

	Status   string      // FAILED, RETRYING, RESOLVED or DISCARDED
	Attempts int         // retries so far
	Parked   bool        // its last failure counted it as parked and was no rejection
	Rejected bool        // it was rejected, before or after it was parked
	Requests int         // retries requested by bulks
	Waiting  bool        // the last of these is not yet executed
	AskedBy  []uuid.UUID // the bulks that requested a retry or discarded it
}

// LaterEvent is an event of the log that follows a dead letter.
type LaterEvent struct {
	Key      string // the dedupe key, which contains the kind of event and the attempt
	Position int64
	Cause    uuid.UUID
	Closed   string // the status, if the event closes the letter
}

// Evolve sets the letter's state from its later events in the order of their
// positions. Requests for retries are executed up to the position executed.
func (l *DeadLetter) Evolve(later []LaterEvent, executed int64) {
	keys := make(map[string]bool, len(later))
	requested := strings.TrimSuffix(events.KeyRequested(l.ID, 0), "0")
	closed := ""
	rejection := strings.TrimSuffix(events.KeyRejected(l.RawPosition, 0), "0")
	l.Requests, l.Waiting, l.AskedBy, l.Rejected = 0, false, nil, false
	for _, e := range later {
		keys[e.Key] = true
		l.Rejected = l.Rejected || strings.HasPrefix(e.Key, rejection)
		switch {
		case strings.HasPrefix(e.Key, requested):
			l.Requests++
			l.Waiting = e.Position > executed
		case e.Key == events.KeyClosed(l.ID):
			closed = e.Closed
		default:
			continue
		}
		l.AskedBy = append(l.AskedBy, e.Cause)
	}
	l.Attempts = 0
	for l.Attempts < MaxRetries && keys[events.KeyRetry(l.ID, l.Attempts+1)] {
		l.Attempts++
	}
	l.Status, l.Parked = l.status(keys, closed), l.parked(keys)
}

// parked reports whether the last failure was counted as parked. Rejections are not,
// nor are events that were never accepted or do not lead to the aggregates.
func (l *DeadLetter) parked(keys map[string]bool) bool {
	if l.Attempts > 0 {
		return keys[events.KeyFailedAgain(l.ID, l.Attempts)]
	}
	topic := l.SourceSubject.Topic()
	parks := l.Stage == events.StagePublishing || l.Stage == events.StageAggregation
	return parks && (topic == events.TopicUsageRaw || topic == events.TopicUsageValidated)
}

func (l *DeadLetter) status(keys map[string]bool, closed string) string {
	validates := l.Stage == events.StageValidation || l.Stage == events.StagePublishing
	validated := validates && l.SourceSubject.Topic() == events.TopicUsageRaw && keys[events.KeyValidated(l.RawPosition)]
	switch {
	case closed != "":
		return closed
	case validated:
		return events.StatusResolved
	case l.Attempts == 0 || keys[events.KeyFailedAgain(l.ID, l.Attempts)] || keys[events.KeyRejected(l.RawPosition, l.Attempts)]:
		return events.StatusFailed
	default:
		return events.StatusRetrying
	}
}

// Retryable returns the reason against a retry, nil if it is allowed.
func (l *DeadLetter) Retryable() *Error {
	refuse := func(format string, args ...any) *Error {
		return &Error{Code: "dead_letter_not_retryable", Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case l.Stage == events.StageIngestion:
		return refuse("refused usage cannot be retried: send it again, after a conflict under an eventId of its own")
	case l.Attempts >= MaxRetries:
		return refuse("the dead letter was retried %d times; remove the cause and send the usage again", MaxRetries)
	case l.Status != events.StatusFailed:
		return refuse("the dead letter is %s; only FAILED ones are retried", l.Status)
	case l.SourceSubject.Topic() != events.TopicUsageRaw && l.SourceSubject.Topic() != events.TopicUsageValidated &&
		l.SourceSubject != events.UsageRejected:
		return refuse("only usage is retried")
	case l.Archived:
		return archived()
	}
	return nil
}

// Discardable returns the reason against a discard, nil if it is allowed.
func (l *DeadLetter) Discardable() *Error {
	const code = "dead_letter_not_discardable"
	switch l.Status {
	case events.StatusFailed:
		if l.Corrected {
			return &Error{Code: "dead_letter_has_corrections", Message: "the dead letter is a correction, or its usage is corrected: " +
				"without it the corrections would not add up; retry it, then retract the usage"}
		}
		return nil
	case events.StatusRetrying:
		return &Error{Code: code, Message: "the dead letter is RETRYING: its event may still be counted; wait for the outcome"}
	case events.StatusResolved:
		return &Error{Code: code, Message: "the dead letter is RESOLVED: it cannot be discarded"}
	default:
		return &Error{Code: code, Message: "the dead letter is " + l.Status + " already"}
	}
}

// Repeats returns the number of the event that a retry repeats: the verdict that
// could not be folded, else the recorded usage.
func (l *DeadLetter) Repeats() int64 {
	if l.SourceSubject.Topic() == events.TopicUsageValidated {
		return l.Source
	}
	return l.RawPosition
}
