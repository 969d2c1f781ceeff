package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// takeOverCases are about queues whose process has ended, or seems to.
func takeOverCases() []Case {
	return []Case{
		{Name: "take-over-dead", Promise: "a new client takes over the queues of several dead processes, and removes them",
			run: func(x *trial) {
				x.proxy.failsAlways(refuses(503, "unavailable"))
				var ids []string
				for _, name := range []string{"a", "b", "c"} {
					c := x.open(object{"tenant": "acme"})
					ids = append(ids, c.recordN(name, 5)...)
				}
				for _, c := range x.clients {
					c.kill()
				}
				x.proxy.failsAlways(nil)
				c := x.open(object{"tenant": "acme"})
				c.sent()
				x.counts(ids...)
				c.closed()
				if left := x.queues(); len(left) > 0 {
					x.Errorf("queues stay: %q", left)
				}
			}},
		{Name: "take-over-other-host", Promise: "a queue of another host is taken over once its owner is a minute old, not before",
			run: func(x *trial) {
				ids := x.otherHost()
				c := x.open()
				c.sent()
				x.counts()
				c.kill()
				x.age()
				x.open().sent()
				x.counts(ids...)
			}},
		{Name: "take-over-rejected", Promise: "a queue that is taken over keeps the verdicts of its events in rejected/",
			run: func(x *trial) {
				x.proxy.failsAlways(refuses(503, "unavailable"))
				c := x.open()
				c.record(usage("good"), usageOf("bad", "sdk_absent", 1))
				c.kill()
				x.proxy.failsAlways(nil)
				c = x.open()
				c.sent()
				x.counts("good")
				if r := c.rejected()["bad"]; r.Code != "feature_not_found" {
					x.Errorf("%+v", r)
				}
			}},
		{Name: "take-over-running", Promise: "a running client takes over a queue whose process ends meanwhile, within its 30 s",
			Slow: true, run: func(x *trial) {
				x.proxy.failsAlways(refuses(503, "unavailable"))
				first := x.open()
				second := x.open()
				ids := first.recordN("t", 5)
				first.kill()
				x.proxy.failsAlways(nil)
				until(x, "its events are sent", func() bool { return second.stats().Accepted == 5 })
				second.sent()
				x.counts(ids...)
			}},
		{Name: "other-tenant", Promise: "a queue of another tenant is left alone", run: func(x *trial) {
			x.proxy.failsAlways(refuses(503, "unavailable"))
			c := x.open(object{"tenant": "acme"})
			ids := c.recordN("o", 3)
			c.kill()
			x.proxy.failsAlways(nil)
			other := x.open(object{"tenant": "globex"})
			other.sent()
			x.counts()
			other.closed()
			x.open(object{"tenant": "acme"}).sent()
			x.counts(ids...)
		}},
		{Name: "removed-while-open", Promise: "a queue that another client takes over twice is no harm", run: func(x *trial) {
			x.proxy.failsAlways(refuses(503, "unavailable"))
			c := x.open()
			ids := c.recordN("z", 20)
			c.kill()
			x.proxy.failsAlways(nil)
			clients := []*client{x.open(), x.open(), x.open()}
			for _, c := range clients {
				c.sent()
			}
			x.counts(ids...)
		}},
	}
}

// otherHost writes a queue that belongs to a process of another host.
func (x *trial) otherHost() (ids []string) {
	x.Helper()
	x.proxy.failsAlways(refuses(503, "unavailable"))
	c := x.open()
	ids = c.recordN("h", 4)
	c.kill()
	x.proxy.failsAlways(nil)
	path := filepath.Join(x.queue(), "owner")
	text, err := os.ReadFile(path)
	if err != nil {
		x.Fatal(err)
	}
	var owner struct{ Host string }
	readJSON(x, path, &owner)
	changed := strings.Replace(string(text), `"`+owner.Host+`"`, `"another-host"`, 1)
	if changed == string(text) {
		x.Fatalf("owner is %s", text)
	}
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
		x.Fatal(err)
	}
	return ids
}

// processCases are about processes that run at the same time.
func processCases() []Case {
	return []Case{
		{Name: "two-processes", Promise: "two processes of one directory have queues of their own, and each event is counted once",
			run: func(x *trial) {
				x.proxy.failsAlways(refuses(503, "unavailable"))
				a, b := x.open(), x.open()
				ids := append(a.recordN("a", 20), b.recordN("b", 20)...)
				if n := len(x.queues()); n != 2 {
					x.Errorf("%d queues, want 2", n)
				}
				x.proxy.failsAlways(nil)
				a.sent()
				if s := b.stats(); s.Accepted > 20 {
					x.Errorf("%+v", s)
				}
				b.sent()
				x.counts(ids...)
				for _, r := range x.proxy.batches() {
					if r.status == 202 && len(r.events) > 20 {
						x.Errorf("a batch has events of both processes: %d", len(r.events))
					}
				}
			}},
		{Name: "frozen", Promise: "a process that was frozen while its queue was taken over confirms no event that would be lost",
			Essential: true, run: func(x *trial) {
				frozen(x, 1)
			}},
		{Name: "frozen-while-recording", Promise: "the same, frozen within many records", run: func(x *trial) { frozen(x, 200) }},
		{Name: "frozen-while-sending", Promise: "a process that was frozen while it waited for an answer counts nothing twice",
			run: func(x *trial) {
				x.proxy.fails(delays(300 * time.Millisecond))
				c := x.open()
				ids := c.record(usage("a"), usage("b"))
				until(x, "it is sent", func() bool { return len(x.proxy.batches()) > 0 })
				c.signal(syscall.SIGSTOP)
				x.age()
				other := x.open()
				other.sent()
				c.signal(syscall.SIGCONT)
				ids = append(ids, c.record(usage("c"))...)
				c.sent()
				x.counts(ids...)
			}},
		{Name: "fork", Promise: "a child of fork records into a queue of its own, and leaves its parent's alone", run: func(x *trial) {
			c := x.open(object{"maxAgeMs": 3_600_000})
			ids := c.record(usage("parent"))
			var child struct {
				Supported bool
				EventID   string
			}
			if c.must("fork", object{"feature": "sdk_calls"}, &child); !child.Supported {
				x.Log("the language has no fork")
				c.sent()
				x.counts(ids...)
				return
			}
			ids = append(ids, c.record(usage("parent-2"))...)
			c.sent()
			c.closed()
			c = x.open() // takes over what the child left
			c.sent()
			x.counts(append(ids, child.EventID)...)
		}},
	}
}

// frozen stops a process, lets another take over its queue, and lets the process go on with records that were written to its input
// meanwhile.
func frozen(x *trial, records int) {
	x.Helper()
	x.proxy.failsAlways(refuses(503, "unavailable"))
	c, next := x.open(), newProgram(x, x.language)
	// it has started
	next.must("eventId", object{"tenant": "t", "feature": "f", "resource": "r", "occurredAt": "2026-11-29T10:00:00Z"}, nil)
	ids := c.recordN("early", 5)
	list, more := numbered("within", records)
	var replies []<-chan reply
	for i, e := range list {
		if i == records/2 {
			c.signal(syscall.SIGSTOP)
		}
		replies = append(replies, c.begin("record", object{"event": e, "deadlineMs": patience.Milliseconds()}))
	}
	x.age()
	x.proxy.failsAlways(nil)
	other := x.openAt(settings{program: next})
	other.sent()
	other.closed()
	c.signal(syscall.SIGCONT)
	for _, r := range replies {
		if got := <-r; got.err != nil {
			x.Fatalf("record of the process that was frozen: %v", got.err)
		}
	}
	ids = append(append(ids, more...), c.record(usage("late"))...)
	c.sent()
	x.counts(ids...)
}
