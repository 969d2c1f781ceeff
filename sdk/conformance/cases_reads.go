package conformance

import (
	"fmt"
	"strings"
)

// rows reads all pages of a list.
func (c *client) rows(do string, query object) []map[string]any {
	c.t.Helper()
	var answer struct{ Rows []map[string]any }
	c.must(do, object{"query": query}, &answer)
	return answer.Rows
}

func readCases() []Case {
	return []Case{
		{Name: "pages", Promise: "the iterator of a list gives all rows of all pages, each once", run: func(x *trial) {
			c := x.open()
			ids := c.recordN("r", 25)
			c.sent()
			var have []string
			for _, row := range c.rows("usageEvents", object{"limit": 10}) {
				have = append(have, fmt.Sprint(row["eventId"]))
			}
			x.sameIDs("the iterator gives", have, ids)
			pages := 0
			for _, r := range x.proxy.seen() {
				if r.method == "GET" && strings.Contains(r.path, "limit=10") {
					pages++
				}
			}
			if pages < 3 {
				x.Errorf("%d requests for 25 rows, want 3", pages)
			}
		}},
		{Name: "page-filters", Promise: "the parameters of a list are on each page", run: func(x *trial) {
			c := x.open()
			c.record(usageOf("a", "sdk_bytes", 1), usage("x"), usageOf("b", "sdk_bytes", 1), usage("y"), usageOf("c", "sdk_bytes", 1))
			c.sent()
			var have []string
			for _, row := range c.rows("usageEvents", object{"limit": 1, "feature": "sdk_bytes"}) {
				have = append(have, fmt.Sprint(row["eventId"]))
			}
			if got := strings.Join(have, " "); got != "c b a" {
				x.Errorf("%s, want c b a", got)
			}
		}},
		{Name: "min-position", Promise: "a read with minPosition waits until the usage up to there is in it", run: func(x *trial) {
			c := x.open()
			c.recordN("m", 20)
			c.record(usageOf("last", "sdk_bytes", 77))
			c.sent()
			rows := c.rows("aggregates", object{"minPosition": c.verdicts()["last"].Position, "wait": 30, "limit": 1})
			if len(rows) != 2 {
				x.Fatalf("%v", rows)
			}
			for _, row := range rows {
				if row["feature"] == "sdk_bytes" && row["amount"] != "77" ||
					row["feature"] == "sdk_calls" && fmt.Sprint(row["eventCount"]) != "20" {
					x.Errorf("%v", row)
				}
			}
		}},
		{Name: "projection-behind", Promise: "a read or check that is behind its minPosition is an error at once, and waits in the " +
			"service only as long as the caller asks", run: func(x *trial) {
			c := x.open(object{"policy": "allow"})
			x.proxy.failsAlways(refuses(503, "projection_behind"))
			c.refused("projection_behind", "check", object{"feature": "sdk_tokens", "amount": "1", "minPosition": "1-1"})
			c.refused("projection_behind", "receipt", object{"eventId": "e", "minPosition": "1-1", "wait": 2})
			c.refused("projection_behind", "aggregates", object{"query": object{"minPosition": "1-1"}})
			var waits []string
			for _, r := range x.proxy.seen() {
				waits = append(waits, r.header.Get("Prefer"))
			}
			if got := strings.Join(waits, ","); got != ",wait=2," {
				x.Errorf("the requests prefer %q, want wait=2 for the second of three", got)
			}
		}},
		{Name: "large-amounts", Promise: "amounts and sums above 2^53 are exact", Essential: true, run: func(x *trial) {
			c := x.open()
			for _, id := range []string{"a", "b", "c"} {
				c.record(usageOf(id, "sdk_bytes", 9007199254740991))
			}
			c.sent()
			rows := c.rows("aggregates", object{"feature": "sdk_bytes", "minPosition": c.verdicts()["c"].Position, "wait": 30})
			if len(rows) != 1 || rows[0]["amount"] != "27021597764222973" {
				x.Errorf("%v, want 27021597764222973", rows)
			}
			if list := c.rows("usageEvents", object{}); len(list) != 3 || list[0]["amount"] != "9007199254740991" {
				x.Errorf("%v", list)
			}
		}},
		{Name: "receipt", Promise: "the receipt of an event has its status and payload; that of an unknown one is an error",
			run: func(x *trial) {
				c := x.open()
				c.record(usageOf("known", "sdk_calls", 3))
				c.sent()
				var got struct {
					EventID, Status string
					Payload         struct{ Feature string }
				}
				if c.must("receipt", object{"eventId": "known"}, &got); got.EventID != "known" || got.Status == "" ||
					got.Payload.Feature != "sdk_calls" {
					x.Errorf("%+v", got)
				}
				if f := c.refused("not_found", "receipt", object{"eventId": "unknown"}); f.Status != 404 {
					x.Errorf("%+v", f)
				}
				c.record(usage("a/b?c#d%2F"))
				c.sent()
				if c.must("receipt", object{"eventId": "a/b?c#d%2F"}, &got); got.EventID != "a/b?c#d%2F" {
					x.Errorf("%+v", got)
				}
			}},
		{Name: "entitlements", Promise: "entitlements lists each feature of the plan, over pages", run: func(x *trial) {
			rows := x.open().rows("entitlements", object{"limit": 2})
			by := map[string]map[string]any{}
			for _, row := range rows {
				by[fmt.Sprint(row["feature"])] = row
			}
			if len(rows) != 6 || len(by) != 6 || by["sdk_tokens"]["remaining"] != "1000" || by["sdk_premium"]["allowed"] != true {
				x.Errorf("%v", rows)
			}
		}},
		{Name: "reservations", Promise: "reservations lists those of a feature, over pages, with exact amounts", run: func(x *trial) {
			c := x.open()
			for _, id := range []string{"r1", "r2", "r3"} {
				c.must("reserve", object{"feature": "sdk_tokens", "reservationId": id, "amount": "10"}, nil)
			}
			var have []string
			for _, row := range c.rows("reservations", object{"feature": "sdk_tokens", "limit": 2}) {
				have = append(have, fmt.Sprint(row["reservationId"], row["amount"], row["state"]))
			}
			if got := strings.Join(have, " "); got != "r110HELD r210HELD r310HELD" {
				x.Errorf("%s", got)
			}
		}},
		{Name: "read-key", Promise: "a read with a refused key is an error with the service's code", run: func(x *trial) {
			c := x.openAt(settings{key: x.suite.Service.keyOf(x, x.tenant.id, "usage:write")})
			if f := c.refused("forbidden", "usageEvents", object{"query": object{}}); f.Status != 403 || f.Detail == "" {
				x.Errorf("%+v", f)
			}
		}},
	}
}
