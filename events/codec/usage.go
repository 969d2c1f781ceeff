package codec

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/meterplex/meterplex/events"
)

// UsageOf reads the payload of UsageRecorded. It may share the payload's memory.
func UsageOf(payload []byte) (events.Usage, error) {
	if u, ok := parseUsage(payload); ok {
		return u, nil
	}
	var u events.Usage
	if err := json.Unmarshal(payload, &u); err != nil {
		return events.Usage{}, fmt.Errorf("decoding usage: %w", err)
	}
	return u, nil
}

// CorrectionOf reads the payload of UsageCorrected or UsageRetracted. It may share the payload's memory.
func CorrectionOf(payload []byte) (events.Correction, error) {
	if c, ok := parseCorrection(payload); ok {
		return c, nil
	}
	var c events.Correction
	if err := json.Unmarshal(payload, &c); err != nil {
		return c, fmt.Errorf("decoding a correction: %w", err)
	}
	return c, nil
}

// parseCorrection reads a correction or a retraction only in the exact form in which it is accepted (RFC 8785); ok is false for any other
// form.
func parseCorrection(payload []byte) (c events.Correction, ok bool) {
	r := payloadReader{rest: payload}
	r.skip(`{`)
	if r.skipIf(`"amount":`) {
		amount := r.number(64)
		c.Amount = &amount
		r.skip(`,`)
	}
	r.skip(`"correctionRef":"`)
	c.CorrectionRef = string(r.text())
	r.skip(`,"eventId":"`)
	c.EventID = string(r.text())
	r.skip(`,"feature":"`)
	c.Feature = string(r.text())
	if r.skipIf(`,"metadata":`) {
		c.Metadata = r.object()
	}
	if r.skipIf(`,"source":"`) {
		c.Source = string(r.text())
	}
	r.skip(`,"timestamp":"`)
	c.Timestamp = r.time()
	r.skip(`,"type":"`)
	c.Type = r.known(events.TypeCorrection, events.TypeRetraction)
	r.skip(`}`)
	return c, !r.bad && len(r.rest) == 0
}

// parseUsage reads usage only in the exact form in which it is accepted (RFC 8785);
// ok is false for any other form.
func parseUsage(payload []byte) (u events.Usage, ok bool) {
	r := payloadReader{rest: payload}
	r.skip(`{"amount":`)
	u.Amount = r.number(64)
	r.skip(`,"eventId":"`)
	u.EventID = string(r.text())
	r.skip(`,"feature":"`)
	u.Feature = string(r.text())
	if r.skipIf(`,"metadata":`) {
		u.Metadata = r.object()
	}
	if r.skipIf(`,"source":"`) {
		u.Source = string(r.text())
	}
	r.skip(`,"timestamp":"`)
	u.Timestamp = r.time()
	r.skip(`,"type":"`)
	u.Type = r.known("usage")
	r.skip(`}`)
	return u, !r.bad && len(r.rest) == 0
}

// object reads an object. Payloads in the log are JSON: they are not checked again.
func (r *payloadReader) object() json.RawMessage {
	if r.bad || len(r.rest) == 0 || r.rest[0] != '{' {
		r.bad = true
		return nil
	}
	n := valueEnd(r.rest)
	v := r.rest[:n:n]
	r.rest = r.rest[n:]
	return json.RawMessage(v)
}

// appendJSONText writes a string as json.Marshal does, which also escapes HTML
// characters.
func appendJSONText(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c == '<' || c == '>' || c == '&' {
			quoted, _ := json.Marshal(s) // a string never fails
			return append(dst, quoted...)
		}
	}
	return appendString(dst, s)
}

// UsageIn finds the producer's event in the payload of any event about usage: recorded
// usage and verdicts have it at the top, their retries have it inside. It is zero for
// other payloads.
func UsageIn(payload json.RawMessage) (found struct{ EventID, Feature string }) {
	type usage struct {
		EventID string `json:"eventId"`
		Feature string `json:"feature"`
	}
	var in struct {
		usage
		Usage     usage `json:"usage"`
		Validated usage `json:"validated"`
	}
	if json.Unmarshal(payload, &in) != nil {
		return found
	}
	for _, u := range []usage{in.usage, in.Usage, in.Validated} {
		if u.EventID != "" {
			found.EventID, found.Feature = u.EventID, u.Feature
			break
		}
	}
	return found
}

// UsageInRow is UsageIn for the body of a log row, of a recorded event in short without its payload.
func UsageInRow(subject events.Subject, key string, at time.Time, body []byte) (found struct{ EventID, Feature string }) {
	if subject == events.UsageRecorded && len(body) > 0 && body[0] == '[' && len(key) > 2 {
		r := payloadReader{rest: body}
		r.skip(`[`)
		r.number(64)
		r.skip(`,"`)
		if found.Feature = string(r.text()); !r.bad {
			found.EventID = key[2:]
			return found
		}
	}
	return UsageIn(WholePayload(subject, key, at, body))
}
