package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/meterplex/meterplex/events"
)

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
	v.CorrectedUsage = &events.CorrectedUsage{Kind: events.TypeCorrection}
	if v.Count != 0 {
		v.Kind = events.TypeRetraction
	}
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
func VerdictOf(e *events.Envelope) (events.Validated, error) {
	payload := e.Payload
	if e.Subject == events.UsageValidated {
		parse := parseValidated
		if len(payload) > 0 && payload[0] == '[' {
			parse = parseBody
		}
		if v, ok := parse(e); ok {
			return v, nil
		}
		payload = WholePayload(e.Subject, e.DedupeKey, e.OccurredAt, payload)
	}
	var v events.Validated
	var target any = &v
	var again events.Reaggregate
	if e.Subject == events.Reaggregated {
		target = &again
	}
	if err := json.Unmarshal(payload, target); err != nil {
		return v, fmt.Errorf("decoding a verdict: %w", err)
	}
	if e.Subject == events.Reaggregated {
		v = again.Validated
	}
	return v, nil
}

// NamesFigure reports whether a verdict that VerdictOf reads names a feature and a period. It copies
// nothing of a verdict in a form that this service writes: it is called for each verdict that is folded.
func NamesFigure(e *events.Envelope, feature, periodKey string) (bool, error) {
	if e.Subject == events.UsageValidated && (bodyNames(e.Payload, feature, periodKey) || payloadNames(e.Payload, feature, periodKey)) {
		return true, nil
	}
	v, err := VerdictOf(e)
	return v.Feature == feature && v.PeriodKey == periodKey, err
}

// bodyNames reports whether the body of a row begins with an amount and the feature, and ends with
// the period. It does not recognize names that JSON escapes.
func bodyNames(body []byte, feature, periodKey string) bool {
	if len(body) == 0 || body[0] != '[' || strings.ContainsAny(feature, `"\`) || strings.ContainsAny(periodKey, `"\`) {
		return false
	}
	_, rest, _ := bytes.Cut(body, []byte(`,"`))
	end := len(rest) - len(periodKey) - len(`,""]`)
	return len(rest) > len(feature) && string(rest[:len(feature)]) == feature && rest[len(feature)] == '"' &&
		end > len(feature) && string(rest[end:end+2]) == `,"` && string(rest[end+2:len(rest)-2]) == periodKey &&
		string(rest[len(rest)-2:]) == `"]`
}

// payloadNames is bodyNames for a payload in the form of the validator.
func payloadNames(payload []byte, feature, periodKey string) bool {
	r := payloadReader{rest: payload}
	r.skip(`{"rawPosition":`)
	r.number(64)
	r.skip(`,"eventId":"`)
	r.text()
	r.skip(`,"feature":"`)
	named := string(r.text()) == feature
	r.skip(`,"amount":`)
	r.number(64)
	r.skip(`,"count":`)
	r.number(64)
	for _, name := range [...]string{`,"timestamp":"`, `,"validatedSubscriptionId":"`, `,"featureType":"`} {
		r.skip(name)
		r.text()
	}
	r.skip(`,"periodKey":"`)
	named = named && string(r.text()) == periodKey
	var end events.Validated
	r.verdictEnd(&end)
	return named && !r.bad && len(r.rest) == 0
}
