package domain

import (
	"testing"
	"time"
)

// P8: an attempt after a refusal has another idempotency key, because the provider repeats the refusal for the earlier one. An attempt in doubt has the key of the
// attempt that the provider may have counted. The identifier never changes.
func TestP8_OnlyAnAnswerRenewsTheKeyOfAPush(t *testing.T) {
	const first = ":calls:2026-10:1"
	for name, c := range map[string]struct {
		outcomes []PushOutcome
		key      string
		state    string
	}{
		"new":                             {nil, first, PushStatePending},
		"no answer":                       {[]PushOutcome{PushUnknown, PushUnknown}, first, PushStateUnknown},
		"later":                           {[]PushOutcome{PushLater, PushLater}, first, PushStatePending},
		"refused":                         {[]PushOutcome{PushRefused}, first + ":r1", PushStateFailed},
		"refused twice":                   {[]PushOutcome{PushRefused, PushRefused}, first + ":r2", PushStateFailed},
		"the key refused":                 {[]PushOutcome{PushKeyRefused}, first + ":r1", PushStatePending},
		"no answer, then the key refused": {[]PushOutcome{PushUnknown, PushKeyRefused}, first, PushStateUnknown},
		"no answer, then refused":         {[]PushOutcome{PushUnknown, PushRefused}, first + ":r1", PushStateFailed},
		"refused, then no answer":         {[]PushOutcome{PushRefused, PushUnknown}, first + ":r1", PushStateUnknown},
	} {
		p, now := newPush(), pushNoon
		for _, outcome := range c.outcomes {
			if p.State == PushStateFailed {
				if refusal := p.Retry("r", "a", now); refusal != nil {
					t.Fatalf("%s: %v", name, refusal)
				}
			}
			now = now.Add(time.Hour)
			p.begun(t, now).Answered(PushResult{Outcome: outcome, Code: "c", Reason: "why"}, p.Attempts, now)
		}
		if p.RequestKey() != pushTenant.String()+c.key || p.Identifier != PushIdentifier(p.Key) || p.State != c.state {
			t.Errorf("%s: the request has the key %s, the push is %+v", name, p.RequestKey(), p)
		}
	}
}

// P8: a refused secret key is no verdict on a push: it is sent again by itself, soon after the key is corrected.
func TestP8_APushWhoseSecretKeyIsRefusedGoesOn(t *testing.T) {
	p, now := newPush(), pushNoon
	for range 20 {
		p.begun(t, now).Answered(PushResult{Outcome: PushKeyRefused, Code: "provider_key_refused", Reason: "why"}, p.Attempts, now)
		if p.State != PushStatePending || p.UnknownSince != nil || p.Failures != 0 || p.LastError != "why" || p.NextAt == nil || p.NextAt.After(now.Add(5*time.Minute)) {
			t.Fatalf("%+v", p)
		}
		now = *p.NextAt
	}
	if p.begun(t, now).Answered(PushResult{Outcome: PushDelivered}, p.Attempts, now); p.State != PushStateDelivered || p.LastError != "" {
		t.Errorf("%+v", p)
	}
}
