package codec

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/meterplex/meterplex/events"
)

// VerdictBody writes a verdict in the form of its row, which has the verdict's key and occurs at its time.
// The body of a verdict on admitted or late usage is complete.
func VerdictBody(v *events.Validated) []byte {
	corrects := v.CorrectedUsage != nil
	if v.Admitted || v.Late != nil || v.Timestamp.Nanosecond()%1000 != 0 || !corrects && v.Count != 1 ||
		corrects && (v.Count != 0 && v.Count != -1 || v.Kind != kindOf(v.Count)) {
		return VerdictJSON(v)
	}
	dst := make([]byte, 0, 120+len(v.EventID)+len(v.Feature))
	dst = strconv.AppendInt(append(dst, '['), v.Amount, 10)
	dst = appendJSONText(append(dst, ','), v.Feature)
	dst = appendJSONText(append(dst, ','), v.EventID)
	dst = events.AppendUUID(append(dst, `,"`...), v.ValidatedSubscriptionID)
	dst = appendJSONText(append(dst, `",`...), v.FeatureType)
	if corrects {
		dst = strconv.AppendInt(append(dst, ','), v.Count, 10)
		dst = strconv.AppendInt(append(dst, ','), v.TargetPosition, 10)
		dst = appendJSONText(append(dst, ','), v.TargetEventID)
		dst = strconv.AppendInt(append(dst, ','), v.Before, 10)
		dst = strconv.AppendInt(append(dst, ','), v.After, 10)
	}
	if v.Grant != 0 {
		dst = strconv.AppendInt(append(dst, ','), v.Grant, 10)
	}
	return append(appendJSONText(append(dst, ','), v.PeriodKey), ']')
}

// kindOf returns what a verdict with a count of 0 or -1 is.
func kindOf(count int64) string {
	if count == 0 {
		return events.TypeCorrection
	}
	return events.TypeRetraction
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

// parseValidated reads a verdict only in the exact form of the validator's
// json.Marshal; ok is false for any other form. A rebuild calls it for each event.
func parseValidated(e *events.Envelope) (v events.Validated, ok bool) {
	r := payloadReader{rest: e.Payload}
	r.skip(`{"rawPosition":`)
	v.RawPosition = r.number(64)
	r.skip(`,"eventId":"`)
	v.EventID = string(r.text())
	r.skip(`,"feature":"`)
	v.Feature = string(r.text())
	r.skip(`,"amount":`)
	v.Amount = r.number(64)
	r.skip(`,"count":`)
	v.Count = r.number(64)
	r.skip(`,"timestamp":"`)
	v.Timestamp = r.time()
	r.skip(`,"validatedSubscriptionId":"`)
	v.ValidatedSubscriptionID = r.id()
	r.skip(`,"featureType":"`)
	v.FeatureType = string(r.text())
	r.skip(`,"periodKey":"`)
	v.PeriodKey = string(r.text())
	r.verdictEnd(&v)
	return v, !r.bad && len(r.rest) == 0
}

// verdictEnd reads the optional members of a verdict, and its end.
func (r *payloadReader) verdictEnd(v *events.Validated) {
	if r.skipIf(`,"grant":`) {
		v.Grant = r.number(64)
		r.bad = r.bad || v.Grant == 0 // left out
	}
	v.Admitted = r.skipIf(`,"admitted":true`)
	if r.skipIf(`,"kind":"`) {
		v.CorrectedUsage = &events.CorrectedUsage{Kind: r.known(events.TypeCorrection, events.TypeRetraction)}
		r.skip(`,"targetPosition":`)
		v.TargetPosition = r.number(64)
		r.skip(`,"targetEventId":"`)
		v.TargetEventID = string(r.text())
		r.skip(`,"before":`)
		v.Before = r.number(64)
		r.skip(`,"after":`)
		v.After = r.number(64)
	}
	if r.skipIf(`,"late":{"snapshot":`) {
		v.Late = &events.Late{Snapshot: int(r.number(32))}
		r.skip(`,"kind":"`)
		v.Late.Kind = r.known(events.AdjustmentKinds()...)
		r.skip(`}`)
	}
	r.skip(`}`)
}

// skipIf skips a text, and reports false if another one is there.
func (r *payloadReader) skipIf(text string) bool {
	if r.bad || len(r.rest) < len(text) || string(r.rest[:len(text)]) != text {
		return false
	}
	r.rest = r.rest[len(text):]
	return true
}

// parseBody reads a verdict from the body of its row, without rebuilding the payload.
func parseBody(e *events.Envelope) (v events.Validated, ok bool) {
	r := payloadReader{rest: e.Payload}
	r.skip(`[`)
	v.Amount = r.number(64)
	r.skip(`,"`)
	v.Feature = string(r.text())
	r.skip(`,"`)
	v.EventID = string(r.text())
	r.skip(`,"`)
	v.ValidatedSubscriptionID = r.id()
	r.skip(`,"`)
	v.FeatureType = string(r.text())
	v.Count = 1
	if r.skip(`,`); len(r.rest) > 0 && r.rest[0] != '"' {
		r.more(&v)
	}
	r.skip(`"`)
	v.PeriodKey = string(r.text())
	r.skip(`]`)
	if r.bad || len(r.rest) != 0 || len(e.DedupeKey) < 3 {
		return v, false
	}
	raw, err := strconv.ParseInt(e.DedupeKey[2:], 10, 64)
	v.RawPosition, v.Timestamp = raw, time.UnixMicro(e.OccurredAt.UnixMicro()).UTC()
	return v, err == nil
}

// more reads the members that the body of a verdict on a correction, or with a grant, has more.
func (r *payloadReader) more(v *events.Validated) {
	n := r.number(64)
	if r.skip(`,`); len(r.rest) > 0 && r.rest[0] == '"' {
		v.Grant = n
		r.bad = r.bad || n == 0
		return
	}
	r.correcting(v, n)
	if len(r.rest) > 0 && r.rest[0] != '"' {
		v.Grant = r.number(64)
		r.bad = r.bad || v.Grant == 0
		r.skip(`,`)
	}
}

// correcting reads the members of a verdict on a correction or a retraction behind its count.
func (r *payloadReader) correcting(v *events.Validated, count int64) {
	v.Count = count
	r.bad = r.bad || v.Count != 0 && v.Count != -1
	v.CorrectedUsage = &events.CorrectedUsage{Kind: kindOf(count)}
	v.TargetPosition = r.number(64)
	r.skip(`,"`)
	v.TargetEventID = string(r.text())
	r.skip(`,`)
	v.Before = r.number(64)
	r.skip(`,`)
	v.After = r.number(64)
	r.skip(`,`)
}

// VerdictOf reads the verdict of UsageValidated or Reaggregated. If the payload is
// the body of a log row, the envelope must have DedupeKey and OccurredAt.
func VerdictOf(e *events.Envelope) (v events.Validated, err error) {
	switch e.Subject {
	case events.UsageValidated:
		parse := parseValidated
		if len(e.Payload) > 0 && e.Payload[0] == '[' {
			parse = parseBody
		}
		if v, ok := parse(e); ok {
			return v, nil
		}
		err = json.Unmarshal(WholePayload(e.Subject, e.DedupeKey, e.OccurredAt, e.Payload), &v)
	case events.Reaggregated:
		var again events.Reaggregate
		err = json.Unmarshal(e.Payload, &again)
		v = again.Validated
	default:
		err = fmt.Errorf("subject %d has none", e.Subject)
	}
	if err != nil {
		return v, fmt.Errorf("decoding a verdict: %w", err)
	}
	return v, nil
}
