package codec

import (
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/meterplex/meterplex/events"
)

// EncodePayload writes the payload of an event in the form of its row. An error means that payload is not of the
// type that the registry pairs with the subject, by value or by pointer, or that its raw JSON
// is invalid.
func EncodePayload(subject events.Subject, payload any) ([]byte, error) {
	if verdict, ok := payload.(*events.Validated); ok && subject == events.UsageValidated { // of each event: no reflection
		return VerdictBody(verdict), nil
	}
	if admitted, ok := payload.(*events.Admitted); ok && subject == events.UsageAdmitted { // as often
		return AdmittedJSON(admitted)
	}
	given := reflect.TypeOf(payload)
	if given != nil && given.Kind() == reflect.Pointer {
		given = given.Elem()
	}
	if info, _ := subject.Info(); given == nil || given != info.Payload {
		return nil, fmt.Errorf("events: a payload of subject %d is %v, not %v", subject, info.Payload, given)
	}
	body, err := json.Marshal(payload)
	if err != nil {
		return nil, fmt.Errorf("events: encoding a payload of subject %d: %w", subject, err)
	}
	return body, nil
}

// WithReason adds the member reason to the payload of a subject that takes one. The payload must be an object with at least one member.
func WithReason(subject events.Subject, payload []byte, reason string) []byte {
	if reason == "" || !subject.TakesReason() {
		return payload
	}
	text, _ := json.Marshal(reason) // a string cannot fail
	whole := append(payload[:len(payload)-1:len(payload)-1], `,"reason":`...)
	return append(append(whole, text...), '}')
}
