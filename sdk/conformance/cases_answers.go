package conformance

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"time"
)

// survives is a case in which requests fail, and then all events are counted once and nothing is reported as not counted.
func survives(name, promise string, faults ...fault) Case {
	return Case{Name: name, Promise: promise, Essential: name == "lost-answer" || name == "200-html", run: func(x *trial) {
		survivesFaults(x, faults...)
	}}
}

// survivesFaults records some events while the next requests fail.
func survivesFaults(x *trial, faults ...fault) {
	x.Helper()
	x.proxy.fails(faults...)
	c := x.open(object{"maxAgeMs": 3_600_000})
	list, _ := numbered("e", 4)
	ids := c.record(list...)
	c.sent()
	x.counts(ids...)
	if left := x.proxy.faultsLeft(); left > 0 {
		x.Errorf("%d faults were not met", left)
	}
	if s := c.stats(); s.Accepted+s.Duplicates != 4 || s.Rejected+s.Conflicts+s.Damaged > 0 || len(x.filesOf("damaged")) > 0 {
		x.Errorf("%+v, damaged %q", s, x.filesOf("damaged"))
	}
}

func proxyCases() []Case {
	return []Case{
		survives("cut-before", "a connection that ends before the request loses nothing", cutsBefore, cutsBefore),
		{Name: "cut-within", Promise: "a connection that ends within the request loses nothing", run: func(x *trial) {
			x.proxy.fails(cutsWithin, cutsWithin)
			c := x.open(object{"durability": "os"})
			ids := c.recordAll(padded("large", 250, 3500))
			c.sent()
			x.counts(ids...)
		}},
		survives("cut-behind", "a connection that ends behind the request loses nothing", cutsBehind, cutsBehind),
		survives("cut-answer", "a connection that ends within the answer counts nothing twice", cutsAnswer, cutsAnswer),
		survives("lost-answer", "a request that was executed and not answered counts nothing twice", losesAnswer, losesAnswer),
		survives("delay", "a slow answer is awaited", delays(700*time.Millisecond)),
		{Name: "silent", Promise: "a connection whose other end is gone is left after the time limit", run: func(x *trial) {
			x.proxy.fails(isSilent)
			c := x.open(object{"timeoutMs": 400})
			ids := c.record(usage("dark"))
			c.sent()
			x.counts(ids...)
		}},
		{Name: "no-listener", Promise: "a service that does not listen loses nothing, and flush keeps its deadline", run: func(x *trial) {
			c := x.openAt(settings{url: closedPort(x)})
			ids := c.record(usage("a"), usage("b"))
			if left := c.flush(200 * time.Millisecond); left.Remaining != 2 {
				x.Errorf("flush says that %d remain", left.Remaining)
			}
			c.kill()
			c = x.open()
			c.sent()
			x.counts(ids...)
		}},
	}
}

const page = "<!doctype html><title>Sign in</title><p>Welcome to the network of the hotel"

// foreignCases are answers that are not the service's.
func foreignCases() []Case {
	return []Case{
		survives("200-html", "a proxy's page with 200 is no success", says(200, "text/html", page), says(200, "text/html", page)),
		survives("200-empty", "200 with an empty body is no success", says(200, "", ""), says(204, "", "")),
		survives("200-json", "200 with {} is no success", says(200, "application/json", "{}"), says(200, "application/json", "[]")),
		survives("202-json", "202 without verdicts is no success", says(202, "application/json", "{}"),
			says(202, "application/json", `{"events":[]}`), says(202, "application/json", "null")),
		survives("202-torn", "202 with JSON that is cut is no success",
			says(202, "application/json", `{"events":[{"eventId":"e-0","status":"acc`)),
		survives("202-text", "202 with verdicts in another media type is no success", claims(202, "text/plain", same),
			claims(202, "", same)),
		survives("200-verdicts", "verdicts with another status than 202 are no success", claims(200, "application/json", same),
			claims(207, "application/json", same)),
		survives("202-too-few", "202 with too few or too many verdicts is no success",
			claims(202, "application/json", func(ids []string) []string { return ids[1:] }),
			claims(202, "application/json", func([]string) []string {
				return nil
			}), claims(202, "application/json", func(ids []string) []string { return append(ids, "more") })),
		survives("202-other-ids", "202 with verdicts on other events is no success",
			claims(202, "application/json", func(ids []string) []string { return append(ids[1:], "another") }),
			claims(202, "application/json", func(ids []string) []string { return slices.Repeat(ids[:1], len(ids)) })),
		{Name: "202-other-order", Promise: "202 with verdicts in another order is no success: each event gets its own verdict",
			run: func(x *trial) {
				x.proxy.fails(changes(func(body object) { slices.Reverse(body["events"].([]any)) }))
				c := x.open(object{"maxAgeMs": 3_600_000})
				c.record(usage("good"), usageOf("bad", "sdk_absent", 1))
				c.sent()
				x.counts("good")
				if all := c.rejected(); len(all) != 1 || all["bad"].Code != "feature_not_found" {
					x.Errorf("%v", all)
				}
			}},
		survives("400-html", "a proxy's page with 400 refuses no event", says(400, "text/html", page), says(400, "text/html", page),
			says(400, "text/html", page), says(400, "text/html", page)),
		survives("404-html", "404 of a proxy refuses no event", says(404, "text/html", page), says(404, "text/html", page),
			says(404, "text/html", page)),
		survives("problem-without-code", "a problem without a code is not the service's",
			says(400, "application/problem+json", `{"title":"no"}`), says(422, "application/problem+json", `{"title":"no"}`),
			says(400, "application/problem+json", `not JSON`)),
		{Name: "endless", Promise: "an answer without end is left, and retried", Slow: true, run: func(x *trial) {
			survivesFaults(x, endless)
		}},
		redirects(301), redirects(302), redirects(307), redirects(308),
	}
}

// redirects is a case of an answer that leads to another address: it gets no request, and no key.
func redirects(status int) Case {
	return Case{Name: fmt.Sprint("redirect-", status), Promise: fmt.Sprint(status, " is no success and is not followed"),
		run: func(x *trial) {
			followed := 0
			other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed++ }))
			defer other.Close()
			survivesFaults(x, says(status, "", "", "Location", other.URL+"/api/v1/usage/events"))
			if followed > 0 {
				x.Errorf("%d requests were sent to the other address", followed)
			}
		}}
}

// refusalCases are refusals of a whole batch.
func refusalCases() []Case {
	return []Case{
		{Name: "400-one-event", Promise: "a batch that is refused for one event is halved: that event goes to damaged/, the others " +
			"are counted", Essential: true, run: func(x *trial) {
			refusedAlone(x, refusesEvents(400, "malformed_json", "n-5"), "n-5")
		}},
		{Name: "400-two-events", Promise: "two refused events of a batch go to damaged/, the others are counted in order",
			run: func(x *trial) {
				refusedAlone(x, refusesEvents(422, "some_later_code", "n-0", "n-11"), "n-0", "n-11")
			}},
		{Name: "413", Promise: "a batch that is too large is halved until it is not", run: func(x *trial) {
			x.proxy.failsAlways(func(e *exchange) {
				if e.read(); len(e.seen.events) > 3 {
					e.reply(written(problem(413, "body_too_large")))
					return
				}
				passes(e)
			})
			c := x.open(object{"maxAgeMs": 3_600_000})
			list, _ := numbered("n", 12)
			ids := c.record(list...)
			c.sent()
			x.inOrder(x.counts(ids...), ids)
		}},
		{Name: "413-proxy", Promise: "a proxy's 413 without a code is halved, too, and refuses no event", run: func(x *trial) {
			x.proxy.failsAlways(func(e *exchange) {
				if e.read(); len(e.seen.events) > 3 {
					e.reply(written(413, "text/html", page))
					return
				}
				passes(e)
			})
			c := x.open(object{"maxAgeMs": 3_600_000})
			ids := c.recordN("n", 12)
			c.sent()
			x.counts(ids...)
			if files := x.filesOf("damaged"); len(files) > 0 {
				x.Errorf("damaged/ holds %q", files)
			}
		}},
		survives("404-code", "404 and 405 of the service refuse the address, not an event", refuses(404, "not_found"),
			refuses(404, "not_found"), refuses(404, "not_found"), refuses(405, "method_not_allowed")),
	}
}

// refusedAlone records twelve events of which the service refuses some by themselves.
func refusedAlone(x *trial, f fault, refused ...string) {
	x.Helper()
	x.proxy.failsAlways(f)
	c := x.open(object{"maxAgeMs": 3_600_000})
	list, _ := numbered("n", 12)
	var good []string
	for _, id := range c.record(list...) {
		if !strings.Contains(" "+strings.Join(refused, " ")+" ", " "+id+" ") {
			good = append(good, id)
		}
	}
	c.sent()
	x.inOrder(x.counts(good...), good)
	c.reported("damaged")
	if files := x.filesOf("damaged"); len(files) != len(refused) || !strings.HasPrefix(files[0], "event-") {
		x.Errorf("damaged/ holds %q", files)
	}
	if s := c.stats(); s.Damaged != int64(len(refused)) {
		x.Errorf("%+v", s)
	}
}

// waitCases are refusals after which the same bytes are sent again.
func waitCases() []Case {
	return []Case{
		survives("408", "408 is retried", refuses(408, "request_timeout"), says(408, "text/html", page)),
		survives("429", "429 is retried", refuses(429, "rate_limited"), says(429, "text/html", page)),
		survives("500", "500 is retried", refuses(500, "internal"), says(500, "", "")),
		survives("502", "502 of a proxy is retried", says(502, "text/html", page), says(502, "text/html", page)),
		survives("503", "503 is retried", refuses(503, "unavailable"), refuses(503, "overloaded")),
		survives("504", "504 of a proxy is retried", says(504, "text/html", page)),
		waitsFor("429-seconds", "429 with Retry-After in seconds is retried after that time", 429, func(time.Time) string { return "1" }),
		waitsFor("429-date", "429 with Retry-After as a date is retried after it", 429, func(now time.Time) string {
			return now.Add(2 * time.Second).UTC().Format(http.TimeFormat)
		}),
		waitsFor("503-seconds", "503 with Retry-After is retried after that time", 503, func(time.Time) string { return "1" }),
		{Name: "bad-retry-after", Promise: "a Retry-After that is no time does not stop the sender", run: func(x *trial) {
			survivesFaults(x, says(503, "", "", "Retry-After", "soon"), says(503, "", "", "Retry-After", "-5"),
				says(429, "", "", "Retry-After", ""))
		}},
		{Name: "same-bytes", Promise: "a retry sends the same bytes, although more events wait", run: func(x *trial) {
			x.proxy.fails(refuses(503, "unavailable"), refuses(503, "unavailable"))
			c := x.open()
			c.record(usage("first"))
			until(x, "it was tried", func() bool { return len(x.proxy.batches()) > 0 })
			c.record(usage("second"))
			c.sent()
			x.counts("first", "second")
			all := x.proxy.batches()
			for _, r := range all[1:3] {
				if string(r.body) != string(all[0].body) {
					x.Errorf("an attempt sent %s; the first %s", r.body, all[0].body)
				}
			}
		}},
		{Name: "replay", Promise: "after the time of retries batches carry Meterplex-Replay: offline, the error unavailable is " +
			"reported, and new batches do not carry it", run: replayHeader},
		{Name: "too-old", Promise: "the SDK warns before events become too old", run: func(x *trial) {
			x.proxy.failsAlways(refuses(503, "unavailable"))
			c := x.open(object{"warnAgeMs": 100})
			ids := c.record(usage("waits"))
			c.reported("too_old")
			x.proxy.failsAlways(nil)
			c.sent()
			x.counts(ids...)
		}},
	}
}

// waitsFor is a case of an answer with Retry-After.
func waitsFor(name, promise string, status int, after func(now time.Time) string) Case {
	return Case{Name: name, Promise: promise, run: func(x *trial) {
		var least time.Duration
		survivesFaults(x, func(e *exchange) {
			e.read()
			text := after(e.seen.at)
			least = time.Second
			if at, err := http.ParseTime(text); err == nil {
				least = at.Sub(e.seen.at)
			} else if n, err := strconv.Atoi(text); err == nil {
				least = time.Duration(n) * time.Second
			}
			e.reply(written(status, "", "", "Retry-After", text))
		})
		all := x.proxy.batches()
		if waited := all[1].at.Sub(all[0].at); waited < least-20*time.Millisecond {
			x.Errorf("it is sent again after %s, want %s", waited, least)
		}
	}}
}

func replayHeader(x *trial) {
	x.proxy.failsAlways(refuses(503, "unavailable"))
	c := x.open(object{"retryMs": 500})
	ids := c.record(usage("offline"))
	c.reported("unavailable")
	until(x, "the header is sent", func() bool {
		all := x.proxy.batches()
		return all[len(all)-1].header.Get("Meterplex-Replay") == "offline"
	})
	x.proxy.failsAlways(nil)
	c.sent()
	all := x.proxy.batches()
	for _, r := range all {
		if early := r.at.Sub(all[0].at) < 400*time.Millisecond; early && r.header.Get("Meterplex-Replay") != "" ||
			string(r.body) != string(all[0].body) {
			x.Error("an attempt in the time of retries carries the header, or has other bytes than the first")
		}
	}
	ids = append(ids, c.record(usage("online"))...)
	c.sent()
	if last := x.proxy.batches(); last[len(last)-1].header.Get("Meterplex-Replay") != "" {
		x.Error("a batch that was not delayed carries the header")
	}
	x.counts(ids...)
}
