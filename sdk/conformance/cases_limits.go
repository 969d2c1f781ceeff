package conformance

import (
	"fmt"
	"time"
)

// checked is the answer of check.
type checked struct {
	Allowed                      bool
	Source, Reason, AsOfPosition string
	Remaining                    *string
}

func (c *client) check(feature string, amount int64) (got checked) {
	c.t.Helper()
	c.must("check", object{"feature": feature, "amount": fmt.Sprint(amount)}, &got)
	return got
}

func checkCases() []Case {
	return []Case{
		{Name: "check", Promise: "check answers what the service says, with the exact rest", run: func(x *trial) {
			c := x.open()
			for _, w := range []struct {
				feature string
				amount  int64
				allowed bool
				reason  string
			}{{"sdk_tokens", 1000, true, ""}, {"sdk_tokens", 1001, false, "quota_exceeded"}, {"sdk_calls", 1 << 50, true, ""},
				{"sdk_premium", 1, true, ""}, {"sdk_absent", 1, false, "not_entitled"}, {"sdk_unknown", 1, false, "feature_not_found"}} {
				got := c.check(w.feature, w.amount)
				if got.Allowed != w.allowed || got.Source != "service" || got.Reason != w.reason || got.AsOfPosition == "" {
					x.Errorf("check %+v: %+v", w, got)
				}
				if w.feature == "sdk_tokens" && (got.Remaining == nil || *got.Remaining != "1000") {
					x.Errorf("remaining: %+v", got.Remaining)
				}
			}
		}},
		{Name: "check-cache", Promise: "without an answer check uses the last one of the feature, for at most its rest, less what was " +
			"checked since", run: func(x *trial) {
			c := x.open(object{"policy": "deny"})
			if got := c.check("sdk_tokens", 100); !got.Allowed || got.Source != "service" {
				x.Fatalf("%+v", got)
			}
			x.proxy.failsAlways(cutsBefore)
			for i, w := range []struct {
				amount  int64
				allowed bool
				source  string
			}{{900, true, "cache"}, {101, false, "policy"}, {100, true, "cache"}, {1, false, "policy"}} {
				if got := c.check("sdk_tokens", w.amount); got.Allowed != w.allowed || got.Source != w.source {
					x.Errorf("check %d, %+v: %+v", i, w, got)
				}
			}
		}},
		{Name: "check-cached-no", Promise: "a cached refusal refuses without an answer, too, whatever the policy is", run: func(x *trial) {
			c := x.open(object{"policy": "deny"})
			c.check("sdk_absent", 1)
			x.proxy.failsAlways(cutsBefore)
			if got := c.check("sdk_absent", 1); got.Allowed {
				x.Errorf("%+v", got)
			}
		}},
		policy("allow", true), policy("deny", false),
		{Name: "check-time-limit", Promise: "check does not wait longer than its time limit", run: func(x *trial) {
			x.proxy.failsAlways(isSilent)
			c := x.open(object{"policy": "allow", "checkMs": 200})
			began := time.Now()
			if got := c.check("sdk_tokens", 1); !got.Allowed || got.Source != "policy" {
				x.Errorf("%+v", got)
			}
			if took := time.Since(began); took < 150*time.Millisecond || took > 10*time.Second {
				x.Errorf("it took %s", took)
			}
		}},
		{Name: "check-foreign", Promise: "a proxy's 200 is no answer to check", run: func(x *trial) {
			c := x.open(object{"policy": "deny"})
			for i, f := range []fault{says(200, "text/html", page), says(200, "application/json", "{}"),
				says(200, "application/json", `{"allowed":"true"}`),
				says(200, "application/json", `{"allowed":null}`), says(302, "", "", "Location", "/"), refuses(503, "unavailable")} {
				x.proxy.failsAlways(f)
				if got := c.check("sdk_tokens", 1); got.Allowed || got.Source != "policy" {
					x.Errorf("%d: %+v", i, got)
				}
			}
		}},
		{Name: "check-min-position", Promise: "check with minPosition waits until the usage up to there is in the answer",
			run: func(x *trial) {
				c := x.open()
				c.record(usageOf("used", "sdk_tokens", 400))
				c.sent()
				var got checked
				c.must("check", object{"feature": "sdk_tokens", "amount": "1", "minPosition": c.verdicts()["used"].Position, "wait": 30},
					&got)
				if got.Remaining == nil || *got.Remaining != "600" || got.Source != "service" {
					x.Errorf("%+v", got)
				}
			}},
	}
}

func policy(name string, allowed bool) Case {
	return Case{Name: "check-policy-" + name, Promise: "without an answer and a cached one check follows the policy: " + name,
		run: func(x *trial) {
			c := x.openAt(settings{url: closedPort(x)}, object{"policy": name})
			if got := c.check("sdk_tokens", 1); got.Allowed != allowed || got.Source != "policy" {
				x.Errorf("%+v", got)
			}
		}}
}

// figures of an account, as the service answers them.
type account struct {
	EventID, ReservationID, State, Used, Held, Remaining, Amount, Released, Position string
}

func (a account) sums() string { return a.Used + " " + a.Held + " " + a.Remaining }

func limitCases() []Case {
	return []Case{
		{Name: "consume", Promise: "consume records the usage and answers the account", run: func(x *trial) {
			c := x.open()
			var got account
			if c.must("consume", object{"feature": "sdk_tokens", "amount": "300", "eventId": "use-1"}, &got); got.sums() != "300 0 700" ||
				got.EventID != "use-1" {
				x.Errorf("%+v", got)
			}
			x.counts("use-1")
		}},
		{Name: "consume-lost-answer", Promise: "consume whose answer is lost counts once, with an id that the SDK makes, too",
			Essential: true, run: func(x *trial) {
				c := x.open()
				var first, second account
				x.proxy.fails(losesAnswer, cutsBehind, refuses(503, "unavailable"), cutsAnswer)
				c.must("consume", object{"feature": "sdk_tokens", "amount": "300", "eventId": "mine"}, &first)
				x.proxy.fails(losesAnswer, says(200, "text/html", page), says(200, "application/json", "{}"), losesAnswer)
				c.must("consume", object{"feature": "sdk_tokens", "amount": "200"}, &second)
				if first.sums() != "300 0 700" || second.sums() != "500 0 500" || second.EventID == "" || x.proxy.faultsLeft() > 0 {
					x.Errorf("%+v %+v, %d faults left", first, second, x.proxy.faultsLeft())
				}
				x.counts("mine", second.EventID)
			}},
		{Name: "consume-refused", Promise: "a refusal is an error with code, status and remedy, and records nothing", run: func(x *trial) {
			c := x.open()
			if f := c.refused("quota_exceeded", "consume", object{"feature": "sdk_tokens", "amount": "1001"}); f.Status != 409 ||
				f.Detail == "" {
				x.Errorf("%+v", f)
			}
			if f := c.refused("feature_not_found", "consume", object{"feature": "sdk_absent", "amount": "1"}); f.Status != 404 {
				x.Errorf("%+v", f)
			}
			x.counts()
		}},
		{Name: "unknown-outcome", Promise: "after its deadline consume says that the outcome is unknown; the same id gets the first answer",
			run: func(x *trial) {
				c := x.open()
				x.proxy.failsAlways(losesAnswer)
				f := c.refused("unknown_outcome", "consume", object{"feature": "sdk_tokens", "amount": "10", "eventId": "asked",
					"deadlineMs": 600})
				if !containsAny(f.Detail, "asked") {
					x.Errorf("the error does not name the id: %+v", f)
				}
				x.proxy.failsAlways(nil)
				var got account
				if c.must("consume", object{"feature": "sdk_tokens", "amount": "10", "eventId": "asked"}, &got); got.sums() != "10 0 990" {
					x.Errorf("%+v", got)
				}
				x.counts("asked")
			}},
		{Name: "consume-key", Promise: "a refused key is an error at once, not an unknown outcome", run: func(x *trial) {
			c := x.openAt(settings{key: x.suite.Service.keyOf(x, x.tenant.id, "usage:write")})
			if f := c.refused("forbidden", "consume", object{"feature": "sdk_tokens", "amount": "1"}); f.Status != 403 {
				x.Errorf("%+v", f)
			}
		}},
	}
}
