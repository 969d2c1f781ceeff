package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
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
		c.Metadata = r.value()
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
	if bytes.HasPrefix(r.rest, []byte(`,"metadata":`)) {
		r.skip(`,"metadata":`)
		u.Metadata = r.value()
	}
	if bytes.HasPrefix(r.rest, []byte(`,"source":"`)) {
		r.skip(`,"source":"`)
		u.Source = string(r.text())
	}
	r.skip(`,"timestamp":"`)
	u.Timestamp = r.time()
	r.skip(`,"type":"`)
	u.Type = r.known("usage")
	r.skip(`}`)
	return u, !r.bad && len(r.rest) == 0
}

// value reads a value without blanks.
func (r *payloadReader) value() json.RawMessage {
	n, ok := plainValue(r.rest, 0, 0)
	if r.bad || !ok {
		r.bad = true
		return nil
	}
	v := r.rest[:n:n]
	r.rest = r.rest[n:]
	return json.RawMessage(v)
}

// VerdictJSON writes a verdict as json.Marshal does.
func VerdictJSON(v *events.Validated) []byte {
	year := v.Timestamp.Year()
	if year < 0 || year > 9999 || v.Timestamp.Location() != time.UTC {
		body, _ := json.Marshal(v) // this struct fails only for a time that no usage has
		return body
	}
	dst := make([]byte, 0, 240+len(v.EventID)+len(v.Feature))
	dst = strconv.AppendInt(append(dst, `{"rawPosition":`...), v.RawPosition, 10)
	dst = appendJSONText(append(dst, `,"eventId":`...), v.EventID)
	dst = appendJSONText(append(dst, `,"feature":`...), v.Feature)
	dst = strconv.AppendInt(append(dst, `,"amount":`...), v.Amount, 10)
	dst = strconv.AppendInt(append(dst, `,"count":`...), v.Count, 10)
	dst = v.Timestamp.AppendFormat(append(dst, `,"timestamp":"`...), time.RFC3339Nano)
	dst = events.AppendUUID(append(dst, `","validatedSubscriptionId":"`...), v.ValidatedSubscriptionID)
	dst = appendJSONText(append(dst, `","featureType":`...), v.FeatureType)
	dst = appendJSONText(append(dst, `,"periodKey":`...), v.PeriodKey)
	if v.Grant != 0 {
		dst = strconv.AppendInt(append(dst, `,"grant":`...), v.Grant, 10)
	}
	if v.Admitted {
		dst = append(dst, `,"admitted":true`...)
	}
	if c := v.CorrectedUsage; c != nil {
		dst = appendJSONText(append(dst, `,"kind":`...), c.Kind)
		dst = strconv.AppendInt(append(dst, `,"targetPosition":`...), c.TargetPosition, 10)
		dst = appendJSONText(append(dst, `,"targetEventId":`...), c.TargetEventID)
		dst = strconv.AppendInt(append(dst, `,"before":`...), c.Before, 10)
		dst = strconv.AppendInt(append(dst, `,"after":`...), c.After, 10)
	}
	if l := v.Late; l != nil {
		dst = strconv.AppendInt(append(dst, `,"late":{"snapshot":`...), int64(l.Snapshot), 10)
		dst = append(appendJSONText(append(dst, `,"kind":`...), l.Kind), '}')
	}
	return append(dst, '}')
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
