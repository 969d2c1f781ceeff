package conformance

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// trial is one case for one language: a tenant of its own, a proxy, and a directory for queues.
type trial struct {
	testing.TB
	suite    *Suite
	language Language
	tenant   tenant
	proxy    *proxy
	dir      string
	clients  []*client // that were opened
}

func newTrial(t testing.TB, s *Suite, l Language, local bool) *trial {
	t.Helper()
	x := &trial{TB: t, suite: s, language: l, dir: filepath.Join(t.TempDir(), "queue")}
	if !local {
		x.tenant, x.proxy = s.Service.newTenant(t), newProxy(t, s.Service.URL, nil)
	}
	return x
}

// client is a program with a client of the service.
type client struct {
	*program
	x *trial
}

// settings of a client are those of {"do":"new"}; options are merged.
type settings struct {
	url, key, dir string
	options       object
	program       *program // nil: a new one
}

// open starts a program with a client of the trial's proxy, tenant and directory.
func (x *trial) open(options ...object) *client {
	x.Helper()
	return x.openAt(settings{}, options...)
}

// openAt is open with other settings. Unless the options say otherwise, retries are fast and checks patient.
func (x *trial) openAt(s settings, options ...object) *client {
	x.Helper()
	if s.url == "" {
		s.url = x.proxy.url
	}
	if s.key == "" {
		s.key = x.tenant.key
	}
	if s.dir == "" {
		s.dir = x.dir
	}
	s.options = object{"retryMs": 200, "maxAgeMs": 50, "checkMs": patience.Milliseconds()}
	for _, more := range options {
		maps.Copy(s.options, more)
	}
	if s.program == nil {
		s.program = newProgram(x, x.language)
	}
	c := &client{s.program, x}
	x.clients = append(x.clients, c)
	x.Cleanup(func() {
		if text := c.text(); strings.Contains(text, s.key) {
			x.Error("the program wrote the key to standard error")
		}
	})
	c.must("new", object{"url": s.url, "key": s.key, "dir": s.dir, "options": s.options}, nil)
	return c
}

// usage is an event of a feature without limits, a second old at most.
func usage(id string) object { return usageOf(id, "sdk_calls", int64(1+rand.IntN(7))) }

func usageOf(id, feature string, amount int64) object {
	return object{"eventId": id, "feature": feature, "amount": amount, "timestamp": time.Now().UTC().Format(time.RFC3339Nano)}
}

// numbered returns n events with ids from prefix-0 on.
func numbered(prefix string, n int) (list []object, ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s-%d", prefix, i))
		list = append(list, usage(ids[i]))
	}
	return list, ids
}

// record records events one after the other, and returns their ids.
func (c *client) record(events ...object) (ids []string) {
	c.t.Helper()
	for _, e := range events {
		var recorded struct{ EventID, Timestamp string }
		c.must("record", object{"event": e}, &recorded)
		if recorded.EventID == "" || recorded.Timestamp == "" {
			c.t.Fatalf("record answers no eventId or no timestamp: %+v", recorded)
		}
		ids = append(ids, recorded.EventID)
	}
	return ids
}

// recordN records n events at once.
func (c *client) recordN(prefix string, n int) (ids []string) {
	c.t.Helper()
	list, _ := numbered(prefix, n)
	return c.recordAll(list)
}

func (c *client) recordAll(list []object) (ids []string) {
	c.t.Helper()
	var recorded struct{ EventIDs []string }
	c.must("recordMany", object{"events": list, "deadlineMs": patience.Milliseconds()}, &recorded)
	if len(recorded.EventIDs) != len(list) {
		c.t.Fatalf("%d events are recorded, want %d", len(recorded.EventIDs), len(list))
	}
	return recorded.EventIDs
}

// remaining is the answer of flush and close.
type remaining struct{ Remaining, OldestMs int64 }

// flush sends for a time, and returns how many events remain.
func (c *client) flush(limit time.Duration) remaining {
	c.t.Helper()
	var left remaining
	c.must("flush", object{"deadlineMs": limit.Milliseconds()}, &left)
	return left
}

// sent flushes until no event remains.
func (c *client) sent() {
	c.t.Helper()
	if left := c.flush(patience - 10*time.Second); left.Remaining != 0 {
		c.t.Fatalf("%d events remain after a flush", left.Remaining)
	}
}

// closed closes the client. No event remains, and the program ends by itself.
func (c *client) closed() {
	c.t.Helper()
	var left remaining
	c.must("close", object{"deadlineMs": (patience - 10*time.Second).Milliseconds()}, &left)
	if left.Remaining != 0 {
		c.t.Fatalf("%d events remain after close", left.Remaining)
	}
	c.ends()
}

// counts is the answer of stats.
type counts struct {
	Waiting, WaitingBytes, OldestMs                    int64
	Accepted, Duplicates, Conflicts, Rejected, Damaged int64
	LastError                                          any
}

func (c *client) stats() (s counts) {
	c.t.Helper()
	c.must("stats", nil, &s)
	return s
}

// verdict of an event, as the handler gets it.
type verdict struct{ EventID, Status, Code, Reason, Remedy, Position string }

// verdicts returns those since the last call, by eventId.
func (c *client) verdicts() map[string]verdict {
	c.t.Helper()
	var answer struct{ Verdicts []verdict }
	c.must("verdicts", nil, &answer)
	by := map[string]verdict{}
	for _, v := range answer.Verdicts {
		by[v.EventID] = v
	}
	return by
}

// reported waits until the error handler got a code, and returns its detail.
func (c *client) reported(code string) (detail string) {
	c.t.Helper()
	until(c.t, "the error "+code+" is reported", func() bool {
		var answer struct {
			Errors []struct{ Code, Detail string }
		}
		c.must("errors", nil, &answer)
		for _, e := range answer.Errors {
			if e.Code == code {
				detail = e.Detail
				return true
			}
		}
		return false
	})
	return detail
}

// refusal is an event that was not counted.
type refusal struct {
	Event                        struct{ EventID, Feature string }
	Status, Code, Reason, Remedy string
}

// rejected returns the events that were not counted and are not acknowledged, by eventId.
func (c *client) rejected() map[string]refusal {
	c.t.Helper()
	var answer struct{ Events []refusal }
	c.must("rejected", nil, &answer)
	by := map[string]refusal{}
	for _, r := range answer.Events {
		by[r.Event.EventID] = r
	}
	return by
}

// until waits for a condition.
func until(t testing.TB, condition string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", patience, condition)
		}
	}
}

// queues returns the folders of queues in the directory.
func (x *trial) queues() []string {
	x.Helper()
	list, err := filepath.Glob(filepath.Join(x.dir, "q-*"))
	if err != nil {
		x.Fatal(err)
	}
	return list
}

// queue returns the only queue of the directory.
func (x *trial) queue() string {
	x.Helper()
	list := x.queues()
	if len(list) != 1 {
		x.Fatalf("%d queues, want 1: %q", len(list), list)
	}
	return list[0]
}

// filesOf returns the files of a folder of the directory: rejected or damaged.
func (x *trial) filesOf(folder string) (names []string) {
	x.Helper()
	list, err := os.ReadDir(filepath.Join(x.dir, folder))
	if err != nil && !os.IsNotExist(err) {
		x.Fatal(err)
	}
	for _, f := range list {
		names = append(names, f.Name())
	}
	return names
}
