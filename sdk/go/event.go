package meterplex

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"time"
)

// Types of events.
const (
	TypeUsage      = "usage"      // the default
	TypeCorrection = "correction" // replaces the amount of recorded usage
	TypeRetraction = "retraction" // takes recorded usage back, for ever
)

const (
	maxAmount        = 1<<53 - 1
	maxMetadata      = 4096
	maxMetadataLevel = 5
)

// Event is usage of a feature, or its correction or retraction.
type Event struct {
	// EventID identifies the use: the service counts it once, however often it is sent. 1 to 255 printable ASCII characters without
	// space. Default: a random UUIDv7. EventID (the function) makes one from the use itself.
	EventID string
	// Feature is the key of the feature, e.g. "api_calls".
	Feature string
	// Amount is 1 to 9007199254740991. For a correction it is the new amount, 0 or more; for a retraction it is 0.
	Amount int64
	// Timestamp is the time of the use; default: now. It is cut to microseconds. The service refuses usage that is more than 7 days old.
	Timestamp time.Time
	// Metadata is kept with the event: at most 4096 bytes as canonical JSON and 5 levels. A number that a float64 does not hold exactly is
	// refused.
	Metadata map[string]any
	// Type is TypeUsage if empty.
	Type string
	// CorrectionRef is the EventID of the usage to correct or retract.
	CorrectionRef string
}

var (
	eventIDForm = regexp.MustCompile(`^[!-~]{1,255}$`)
	featureForm = regexp.MustCompile(`^[a-z][a-z0-9_.-]{0,63}$`)
)

// withDefaults fixes the id and the time, before the first attempt to send the event.
func (e Event) withDefaults() Event {
	if e.EventID == "" {
		e.EventID = newID()
	}
	if e.Timestamp.IsZero() {
		e.Timestamp = time.Now()
	}
	e.Timestamp = cut(e.Timestamp)
	return e
}

// cut drops what is below a microsecond, never rounding up.
func cut(t time.Time) time.Time {
	t = t.UTC()
	return t.Add(-time.Duration(t.Nanosecond() % 1000))
}

// Canonical returns the event in the form in which it is stored and sent (RFC 8785). The error has the code with which the service would
// refuse it.
func (e Event) Canonical() ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	b := []byte("{")
	if e.Type != TypeRetraction {
		b = append(strconv.AppendInt(append(b, `"amount":`...), e.Amount, 10), ',')
	}
	if e.CorrectionRef != "" {
		b = append(appendString(append(b, `"correctionRef":`...), e.CorrectionRef), ',')
	}
	b = appendString(append(b, `"eventId":`...), e.EventID)
	b = appendString(append(b, `,"feature":`...), e.Feature)
	b, err := appendMetadata(b, e.Metadata)
	if err != nil {
		return nil, err
	}
	b = append(b, `,"timestamp":"`...)
	b = append(e.Timestamp.UTC().AppendFormat(b, "2006-01-02T15:04:05.999999Z"), '"')
	if e.Type != "" && e.Type != TypeUsage {
		b = appendString(append(b, `,"type":`...), e.Type)
	}
	return append(b, '}'), nil
}

// check compares the members with the rules of the service, in its order.
func (e *Event) check() error {
	usage := e.Type == "" || e.Type == TypeUsage
	switch {
	case !usage && e.Type != TypeCorrection && e.Type != TypeRetraction:
		return invalid("type_invalid", "Type %q is neither usage, correction nor retraction", e.Type)
	case !eventIDForm.MatchString(e.EventID):
		return invalid("event_id_invalid", "EventID %.300q must have 1 to 255 printable ASCII characters without space", e.EventID)
	case !featureForm.MatchString(e.Feature):
		return invalid("feature_invalid", "Feature %.300q must match %s", e.Feature, featureForm)
	case e.Type == TypeRetraction && e.Amount != 0:
		return invalid("amount_invalid", "A retraction takes back the whole amount: leave Amount out")
	case e.Amount < 0 || usage && e.Amount == 0 || e.Amount > maxAmount:
		return invalid("amount_invalid", "Amount %d must be 1 to 9007199254740991, for a correction also 0", e.Amount)
	}
	if year := e.Timestamp.UTC().Year(); e.Timestamp.IsZero() || year < 1 || year > 9999 {
		return invalid("timestamp_invalid", "Timestamp %s must be in the years 1 to 9999 in UTC", e.Timestamp)
	}
	switch {
	case usage && e.CorrectionRef != "":
		return invalid("correction_ref_invalid", "CorrectionRef is for corrections and retractions only: set Type, or leave it out")
	case !usage && e.CorrectionRef == "":
		return invalid("member_missing", "CorrectionRef is missing: name the EventID of the usage of this %s", e.Type)
	case !usage && (!eventIDForm.MatchString(e.CorrectionRef) || e.CorrectionRef == e.EventID):
		return invalid("correction_ref_invalid", "CorrectionRef %.300q must be the EventID of another event", e.CorrectionRef)
	}
	return nil
}

func invalid(code, format string, args ...any) *Error { return newError(code, nil, format, args...) }

// UnmarshalJSON reads an event of the service's form: {"eventId":…,"feature":…,"amount":…,"timestamp":…}. Numbers of metadata stay exact
// (json.Number).
func (e *Event) UnmarshalJSON(b []byte) error {
	var in struct {
		EventID, Feature, Type, CorrectionRef string
		Amount                                json.Number
		Timestamp                             *string
		Metadata                              map[string]any
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&in); err != nil {
		return newError("event_invalid", err, "The event cannot be read")
	}
	*e = Event{EventID: in.EventID, Feature: in.Feature, Metadata: in.Metadata, Type: in.Type, CorrectionRef: in.CorrectionRef}
	var err error
	if in.Amount != "" {
		if e.Amount, err = strconv.ParseInt(in.Amount.String(), 10, 64); err != nil {
			return invalid("amount_invalid", "The amount %s is no integer up to 9007199254740991", in.Amount)
		}
	}
	if in.Timestamp != nil {
		if e.Timestamp, err = time.Parse(time.RFC3339Nano, *in.Timestamp); err != nil {
			return invalid("timestamp_invalid", "The timestamp %q is no time of RFC 3339 with an offset", *in.Timestamp)
		}
	}
	return nil
}
