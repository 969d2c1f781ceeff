package events

import (
	"encoding/json"
	"fmt"
)

// parseValidated reads a verdict exactly as the validator's json.Marshal writes it;
// false where it is not sure of it. It is what a rebuild does with each event.
func parseValidated(payload []byte) (v Validated, ok bool) {
	r := wireReader{rest: payload}
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

// VerdictOf reads the verdict that UsageValidated or Reaggregated carries.
func VerdictOf(e *Envelope) (Validated, error) {
	if e.Subject == UsageValidated {
		if v, ok := parseValidated(e.Payload); ok {
			return v, nil
		}
	}
	var v Validated
	var target any = &v
	var again Reaggregate
	if e.Subject == Reaggregated {
		target = &again
	}
	if err := json.Unmarshal(e.Payload, target); err != nil {
		return v, fmt.Errorf("decoding a verdict: %w", err)
	}
	if e.Subject == Reaggregated {
		v = again.Validated
	}
	return v, nil
}
