package events

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// parseValidated reads a verdict exactly as the validator's json.Marshal writes it;
// false where it is not sure of it. It is what a rebuild does with each event.
func parseValidated(e *Envelope) (v Validated, ok bool) {
	r := wireReader{rest: e.Payload}
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
	r.skip(`}`)
	return v, !r.bad && len(r.rest) == 0
}

// parseBody reads a verdict from the body of its row, without putting the payload
// together.
func parseBody(e *Envelope) (v Validated, ok bool) {
	r := wireReader{rest: e.Payload}
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
	r.skip(`,"`)
	v.PeriodKey = string(r.text())
	r.skip(`]`)
	if r.bad || len(r.rest) != 0 || len(e.DedupeKey) < 3 {
		return v, false
	}
	raw, err := strconv.ParseInt(e.DedupeKey[2:], 10, 64)
	v.RawPosition, v.Count, v.Timestamp = raw, 1, time.UnixMicro(e.OccurredAt.UnixMicro()).UTC()
	return v, err == nil
}

// VerdictOf reads the verdict that UsageValidated or Reaggregated carries. Where the
// payload is the body of the log's row, key and time of usage have to be there.
func VerdictOf(e *Envelope) (Validated, error) {
	payload := e.Payload
	if e.Subject == UsageValidated {
		parse := parseValidated
		if len(payload) > 0 && payload[0] == '[' {
			parse = parseBody
		}
		if v, ok := parse(e); ok {
			return v, nil
		}
		payload = WholePayload(e.Subject, e.DedupeKey, e.OccurredAt, payload)
	}
	var v Validated
	var target any = &v
	var again Reaggregate
	if e.Subject == Reaggregated {
		target = &again
	}
	if err := json.Unmarshal(payload, target); err != nil {
		return v, fmt.Errorf("decoding a verdict: %w", err)
	}
	if e.Subject == Reaggregated {
		v = again.Validated
	}
	return v, nil
}
