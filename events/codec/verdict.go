package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/meterplex/meterplex/events"
)

// VerdictBody writes a verdict in the form of its row, which has the verdict's key and occurs at its time. The body of a verdict that
// the validator does not make, with nanoseconds or with a count of its own, is complete.
func VerdictBody(v *events.Validated) []byte {
	more := v.Admitted || v.CorrectedUsage != nil || v.Late != nil
	if v.Timestamp.Nanosecond()%1000 != 0 || v.Count != 1 && !more {
		whole, _ := json.Marshal(v) // this struct fails only for a time that no usage has
		return whole
	}
	dst := make([]byte, 0, 120+len(v.EventID)+len(v.Feature))
	dst = strconv.AppendInt(append(dst, '['), v.Amount, 10)
	dst = appendJSONText(append(dst, ','), v.Feature)
	dst = appendJSONText(append(dst, ','), v.EventID)
	dst = events.AppendUUID(append(dst, `,"`...), v.ValidatedSubscriptionID)
	dst = appendJSONText(append(dst, `",`...), v.FeatureType)
	if more || v.Grant != 0 {
		dst = strconv.AppendInt(append(dst, ','), v.Grant, 10)
	}
	if more {
		dst = strconv.AppendInt(append(dst, ','), v.Count, 10)
		dst = appendMore(append(dst, ','), v)
	}
	return append(appendJSONText(append(dst, ','), v.PeriodKey), ']')
}

// appendMore appends an object with the last members of a verdict, as json.Marshal writes them.
func appendMore(dst []byte, v *events.Validated) []byte {
	start := len(dst)
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
	dst[start] = '{'
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
	if r.skipIf(`,"grant":`) {
		v.Grant = r.number(64)
		r.bad = r.bad || v.Grant == 0 // left out
	}
	r.more(&v, ',')
	return v, !r.bad && len(r.rest) == 0
}

// more reads the last members of a verdict, the first of which follows a sign, and their end.
func (r *payloadReader) more(v *events.Validated, sign byte) {
	member := func(text string) bool {
		if r.bad || len(r.rest) == 0 || r.rest[0] != sign || !bytes.HasPrefix(r.rest[1:], []byte(text)) {
			return false
		}
		r.rest, sign = r.rest[1+len(text):], ','
		return true
	}
	v.Admitted = member(`"admitted":true`)
	if member(`"kind":"`) {
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
	if member(`"late":{"snapshot":`) {
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
	if r.skip(`,`); !r.skipIf(`"`) {
		v.Grant = r.number(64)
		if r.skip(`,`); !r.skipIf(`"`) {
			v.Count = r.number(64)
			r.skip(`,`)
			r.more(&v, '{')
			r.skip(`,"`)
		}
	}
	v.PeriodKey = string(r.text())
	r.skip(`]`)
	if r.bad || len(r.rest) != 0 || len(e.DedupeKey) < 3 {
		return v, false
	}
	raw, err := strconv.ParseInt(e.DedupeKey[2:], 10, 64)
	v.RawPosition, v.Timestamp = raw, time.UnixMicro(e.OccurredAt.UnixMicro()).UTC()
	return v, err == nil
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
