package domain

import (
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// MaxAmount is the largest integer that every JSON reader reads exactly: 2^53-1.
const MaxAmount = 9007199254740991

// TimestampWindow is the maximum age of an event's timestamp, and how far in the future it
// may be. The settings METERPLEX_INGEST_AHEAD and METERPLEX_INGEST_BEHIND set it.
type TimestampWindow struct {
	Ahead  time.Duration // how far ahead of the server a timestamp may be
	Behind time.Duration // how far behind; keys with usage:backfill may go further
}

// Check compares the time of an event with the server's: it may be at most Ahead after now
// (else timestamp_in_future), and at most Behind before it (else timestamp_too_old). A
// backfill has no bound behind. Both bounds are inclusive. Now is cut to microseconds like
// the event's time; otherwise an event exactly at the bound would be refused for digits that
// it cannot have.
func (w TimestampWindow) Check(ts, now time.Time, backfill bool) *Error {
	now = now.Truncate(time.Microsecond)
	if ts.After(now.Add(w.Ahead)) {
		return &Error{Code: "timestamp_in_future", Pointer: "/timestamp",
			Message: "timestamp " + FormatTime(ts) + " is more than " + w.Ahead.String() +
				" ahead of the server; check the producer's clock"}
	}
	if !backfill && ts.Before(now.Add(-w.Behind)) {
		return &Error{Code: "timestamp_too_old", Pointer: "/timestamp",
			Message: "timestamp " + FormatTime(ts) + " is more than " + w.Behind.String() +
				" before the server's time; use a key with usage:backfill for older usage"}
	}
	return nil
}

// UsageEvent is one decoded event with a valid shape. TimestampWindow, subscription and
// quota are not checked by package intake, which decodes it.
type UsageEvent struct {
	EventID string
	Feature string
	Amount  int64  // that of the usage, or the new one by a correction; 0 in a retraction
	Type    string // events.TypeUsage, events.TypeCorrection or events.TypeRetraction
	// CorrectionRef is the eventId of the corrected or retracted usage; "" for usage.
	CorrectionRef string
	Timestamp     time.Time // UTC, microseconds
	// Source is where the event comes from, "" if it does not say: always set for a CloudEvent.
	Source string
	// TraceParent is a CloudEvent's traceparent if it is well formed. It describes the
	// transport of the event and is not part of Payload.
	TraceParent string
	// Body is Payload in the form that the log stores: without the values of EventID
	// and Timestamp (events/codec/stored.go). It is read-only. A correction or a retraction has its whole payload here.
	Body []byte
}

// Payload returns the producer's event in the form of Canonical, with defaults filled
// in and the time in UTC. This form is stored and compared.
func (e *UsageEvent) Payload() []byte {
	return codec.WholePayload(e.Subject(), events.KeyUsage(e.EventID), e.Timestamp, e.Body)
}

// Subject is the subject under which the event is recorded.
func (e *UsageEvent) Subject() events.Subject {
	switch e.Type {
	case events.TypeCorrection:
		return events.UsageCorrected
	case events.TypeRetraction:
		return events.UsageRetracted
	}
	return events.UsageRecorded
}
