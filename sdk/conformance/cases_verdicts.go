package conformance

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// asTenant posts a body with the tenant's key.
func (x *trial) asTenant(path string, in, out any) {
	x.Helper()
	s := Service{x.suite.Service.URL, x.tenant.key}
	s.ask(x, http.MethodPost, path, in, out)
}

func verdictCases() []Case {
	return []Case{
		{Name: "accepted", Promise: "an accepted event is counted once, and its verdict has a position", run: func(x *trial) {
			c := x.open()
			ids := c.record(usage("one"), usage("two"))
			c.sent()
			list := x.counts(ids...)
			for i, v := range c.verdicts() {
				if v.Status != "accepted" || v.Position == "" {
					x.Errorf("%s: %+v", i, v)
				}
			}
			if s := c.stats(); s.Accepted != 2 || s.Waiting != 0 {
				x.Errorf("%+v", s)
			}
			x.inOrder(list, ids)
			c.closed()
			if left := x.queues(); len(left) > 0 {
				x.Errorf("an empty queue stays after close: %q", left)
			}
		}},
		{Name: "id-and-time", Promise: "an event without id and time gets both before the first attempt, and keeps them over retries",
			run: idAndTimeAreFixed},
		{Name: "duplicate", Promise: "a duplicate is done: counted once, not rejected", run: func(x *trial) {
			c, e := x.open(), usage("same")
			c.record(e)
			c.sent()
			c.record(e)
			c.sent()
			if s, all := c.stats(), c.rejected(); s.Accepted != 1 || s.Duplicates != 1 || len(all) > 0 {
				x.Errorf("%+v, rejected %v", s, all)
			}
			x.counts("same")
		}},
		{Name: "conflict", Promise: "a conflict is kept and reported, and the first event stays", run: func(x *trial) {
			c, e := x.open(), usageOf("same", "sdk_calls", 1)
			c.record(e)
			c.sent()
			e["amount"] = 2
			c.record(e)
			c.sent()
			if v := c.verdicts()["same"]; v.Status != "conflict" || v.Code != "payload_conflict" {
				x.Errorf("the last verdict is %+v", v)
			}
			r := c.rejected()["same"]
			if r.Status != "conflict" || r.Code != "payload_conflict" || r.Reason == "" || r.Remedy == "" {
				x.Errorf("it is kept as %+v", r)
			}
			if list := x.counts("same"); list[0].Amount != 1 {
				x.Errorf("the amount is %d", list[0].Amount)
			}
		}},
		{Name: "rejected-codes", Promise: "each rejection is kept with its code, reason and remedy, and passed to the handler",
			Essential: true, run: eachRejection},
		{Name: "no-subscription", Promise: "events of a tenant without subscription are kept as rejected", run: func(x *trial) {
			x.tenant = x.suite.Service.unsubscribed(x)
			c := x.open()
			c.record(usage("early"))
			c.sent()
			if r := c.rejected()["early"]; r.Code != "no_active_subscription" || r.Remedy == "" {
				x.Errorf("%+v", r)
			}
		}},
		{Name: "rejected-neighbour", Promise: "a rejected event holds back no other event of its batch", run: func(x *trial) {
			c := x.open(object{"maxAgeMs": 60_000})
			c.record(usage("before"), usageOf("bad", "sdk_absent", 1), usage("behind"))
			c.sent()
			x.counts("before", "behind")
			if all := c.rejected(); len(all) != 1 || all["bad"].Code != "feature_not_found" {
				x.Errorf("%v", all)
			}
		}},
		{Name: "rejected-over-restart", Promise: "rejected events survive a kill, until they are acknowledged", run: rejectedOverRestart},
		{Name: "correction", Promise: "corrections and retractions are sent and counted", run: func(x *trial) {
			c, now := x.open(), time.Now().UTC().Format(time.RFC3339Nano)
			c.record(usageOf("a", "sdk_calls", 5), usageOf("b", "sdk_calls", 7),
				object{"eventId": "fix", "feature": "sdk_calls", "amount": 2, "timestamp": now, "type": "correction", "correctionRef": "a"},
				object{"eventId": "undo", "feature": "sdk_calls", "timestamp": now, "type": "retraction", "correctionRef": "b"})
			c.sent()
			if s := c.stats(); s.Accepted != 4 {
				x.Fatalf("%+v; %v", s, c.rejected())
			}
			if sum := x.sumOf("sdk_calls"); sum != "2" {
				x.Errorf("the figure is %s", sum)
			}
		}},
		{Name: "unknown-status", Promise: "a status and a code that the SDK does not know are kept as not counted, not taken as success",
			run: func(x *trial) {
				x.proxy.fails(changes(func(body object) {
					v := body["events"].([]any)[0].(object)
					v["status"], v["code"], v["reason"] = "quarantined", "under_review", "a later release"
				}))
				c := x.open()
				c.record(usage("odd"))
				c.sent()
				if r := c.rejected()["odd"]; r.Status != "quarantined" || r.Code != "under_review" || r.Reason != "a later release" {
					x.Errorf("%+v", r)
				}
				if v := c.verdicts()["odd"]; v.Status != "quarantined" {
					x.Errorf("the handler got %+v", v)
				}
			}},
		{Name: "unknown-members", Promise: "members of an answer that the SDK does not know are ignored", run: func(x *trial) {
			x.proxy.fails(changes(func(body object) {
				body["later"] = object{"a": []any{1, "x"}}
				body["events"].([]any)[0].(object)["later"] = object{"b": nil}
			}))
			c := x.open()
			c.record(usage("plain"))
			c.sent()
			x.counts("plain")
			if n := len(x.proxy.batches()); n != 1 || len(c.rejected()) > 0 {
				x.Errorf("%d requests, rejected %v", n, c.rejected())
			}
		}},
	}
}

var uuidv7 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func idAndTimeAreFixed(x *trial) {
	x.proxy.fails(cutsBehind, losesAnswer, refuses(503, "unavailable"))
	c := x.open()
	var recorded struct{ EventID, Timestamp string }
	c.must("record", object{"event": object{"feature": "sdk_calls", "amount": 3}}, &recorded)
	c.sent()
	if at, err := time.Parse(time.RFC3339, recorded.Timestamp); err != nil || time.Since(at).Abs() > time.Minute ||
		!uuidv7.MatchString(recorded.EventID) {
		x.Errorf("%+v: want a UUIDv7 and the present time", recorded)
	}
	x.counts(recorded.EventID)
	all := x.proxy.batches()
	if len(all) != 4 || x.proxy.faultsLeft() > 0 {
		x.Fatalf("%d attempts, want 4", len(all))
	}
	for _, r := range all {
		if string(r.body) != string(all[0].body) || !strings.Contains(string(r.body), recorded.EventID) ||
			!strings.Contains(string(r.body), recorded.Timestamp) {
			x.Errorf("an attempt sent %s; the first %s; recorded %+v", r.body, all[0].body, recorded)
		}
	}
}

func eachRejection(x *trial) {
	c, now := x.open(), time.Now().UTC()
	at := func(id string, t time.Time) object {
		e := usage(id)
		e["timestamp"] = t.Format(time.RFC3339)
		return e
	}
	fix := func(id, kind, ref string) object {
		e := object{"eventId": id, "feature": "sdk_calls", "timestamp": now.Format(time.RFC3339), "type": kind, "correctionRef": ref}
		if kind == "correction" {
			e["amount"] = 1
		}
		return e
	}
	c.record(usage("taken-back"), fix("undo", "retraction", "taken-back"))
	c.sent()
	if sum := x.sumOf("sdk_calls"); sum != "0" { // the service knows of the retraction
		x.Errorf("the figure is %s", sum)
	}
	want := map[string]object{
		"feature_not_found": usageOf("1", "sdk_absent", 1), "not_entitled": usageOf("2", "sdk_premium", 1),
		"quota_exceeded":      usageOf("3", "sdk_capped", 11),
		"timestamp_in_future": at("4", now.Add(time.Hour)), "timestamp_too_old": at("5", now.Add(-8*24*time.Hour)),
		"correction_target_unknown": fix("6", "correction", "nothing"), "correction_target_retracted": fix("7", "correction", "taken-back"),
	}
	for _, e := range want {
		c.record(e)
	}
	c.sent()
	verdicts, kept := c.verdicts(), c.rejected()
	for code, e := range want {
		id := e["eventId"].(string)
		if r := kept[id]; r.Status != "rejected" || r.Code != code || r.Reason == "" || r.Remedy == "" || r.Event.Feature != e["feature"] {
			x.Errorf("%s is kept as %+v", code, r)
		}
		if v := verdicts[id]; v.Status != "rejected" || v.Code != code || v.Reason == "" {
			x.Errorf("%s reached the handler as %+v", code, v)
		}
	}
	if s := c.stats(); s.Rejected != int64(len(want)) || len(kept) != len(want) {
		x.Errorf("%+v, %d are kept, want %d", s, len(kept), len(want))
	}
}

func rejectedOverRestart(x *trial) {
	c := x.open()
	var ids []string
	for i := range 3 {
		ids = append(ids, fmt.Sprint("bad-", i))
		c.record(usageOf(ids[i], "sdk_absent", 1))
	}
	c.sent()
	c.kill()
	c = x.open()
	if all := c.rejected(); len(all) != 3 {
		x.Fatalf("%d are kept after a restart, want 3", len(all))
	}
	c.must("acknowledge", object{"eventId": ids[1]}, nil)
	c.kill()
	all := x.open().rejected()
	if _, found := all[ids[1]]; found || len(all) != 2 {
		x.Errorf("after an acknowledgement and a restart %v are kept", all)
	}
	if files := x.filesOf("rejected"); len(files) != 2 || slices.ContainsFunc(files, func(f string) bool {
		return !rejectedName.MatchString(f)
	}) {
		x.Errorf("rejected/ holds %q", files)
	}
}

var rejectedName = regexp.MustCompile(`^[0-9a-f]{32}-[0-9a-f]{16}\.json$`)

// sumOf returns the amount of a feature in the figures, as the service writes it.
func (x *trial) sumOf(feature string) string {
	x.Helper()
	list := x.log()
	if len(list) == 0 {
		return "0"
	}
	var page struct{ Data []struct{ Amount string } }
	x.suite.Service.ask(x, http.MethodGet, fmt.Sprintf("/usage/aggregates?amounts=string&tenantId=%s&feature=%s&minPosition=%s",
		x.tenant.id, feature, list[len(list)-1].Position), nil,
		&page, "Prefer", "wait=30")
	if len(page.Data) != 1 {
		x.Fatalf("%d figures of %s", len(page.Data), feature)
	}
	return page.Data[0].Amount
}
