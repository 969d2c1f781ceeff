package conformance

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

func batchCases() []Case {
	return []Case{
		{Name: "by-count", Promise: "a batch has at most maxEvents events, and a full one does not wait for its age", run: func(x *trial) {
			c := x.open(object{"maxEvents": 10, "maxAgeMs": 3_600_000})
			ids := c.recordN("n", 30)
			until(x, "three full batches are sent", func() bool { return c.stats().Waiting == 0 })
			for _, r := range x.proxy.batches() {
				if len(r.events) > 10 {
					x.Errorf("a batch has %d events", len(r.events))
				}
			}
			x.counts(ids...)
		}},
		{Name: "by-bytes", Promise: "a batch has at most maxBytes bytes of events", run: func(x *trial) {
			c := x.open(object{"maxBytes": 5000})
			ids := c.recordAll(padded("b", 20, 1000))
			c.sent()
			for _, r := range x.proxy.batches() {
				sum := 0
				for _, e := range r.events {
					sum += len(e)
				}
				if sum > 5000 {
					x.Errorf("a batch has %d bytes of events", sum)
				}
			}
			if n := len(x.proxy.batches()); n > 10 {
				x.Errorf("20 events of a kilobyte are sent in %d batches", n)
			}
			x.counts(ids...)
		}},
		{Name: "by-age", Promise: "a batch is sent when its oldest event has maxAgeMs, without a flush", run: func(x *trial) {
			c := x.open(object{"maxAgeMs": 300})
			ids := c.record(usage("old"))
			began := time.Now()
			until(x, "the event is sent", func() bool { return c.stats().Waiting == 0 })
			if took := x.proxy.batches()[0].at.Sub(began); took < 100*time.Millisecond {
				x.Errorf("a batch of one event is sent after %s", took)
			}
			x.counts(ids...)
		}},
		{Name: "waits-for-flush", Promise: "a young batch is sent by a flush", run: func(x *trial) {
			c := x.open(object{"maxAgeMs": 3_600_000})
			ids := c.record(usage("a"), usage("b"))
			if n, s := len(x.proxy.batches()), c.stats(); n > 0 || s.Waiting != 2 || s.WaitingBytes == 0 {
				x.Errorf("%d requests before the flush, %+v", n, s)
			}
			c.sent()
			x.counts(ids...)
		}},
		{Name: "gzip", Promise: "batches are compressed, and the JSON is one batch of the events' canonical bytes",
			run: batchesAreCanonical},
		{Name: "order", Promise: "events are recorded by the service in the order of record, over failures", run: func(x *trial) {
			x.proxy.fails(passes, losesAnswer, cutsBehind, refuses(429, "rate_limited"), passes, cutsAnswer)
			c := x.open(object{"maxEvents": 7})
			list, _ := numbered("o", 50)
			ids := c.record(list...)
			c.sent()
			x.inOrder(x.counts(ids...), ids)
		}},
		{Name: "one-at-a-time", Promise: "the next batch is sent after the answer to the last", run: func(x *trial) {
			x.proxy.failsAlways(delays(20 * time.Millisecond))
			c := x.open(object{"maxEvents": 5})
			ids := c.recordN("p", 30)
			c.sent()
			x.counts(ids...)
			if n := x.proxy.mostAtOnce(); n != 1 {
				x.Errorf("%d requests were under way at once", n)
			}
		}},
		{Name: "concurrent", Promise: "concurrent records are all kept", run: func(x *trial) {
			c := x.open()
			x.counts(append(c.recordN("m", 700), sentBy(c)...)...)
		}},
		{Name: "segments", Promise: "a queue of several segments is sent, and its files are removed", Slow: true, run: func(x *trial) {
			x.proxy.failsAlways(refuses(503, "unavailable"))
			c := x.open(object{"durability": "os"})
			ids := c.recordAll(padded("s", 3000, 3500))
			if files := segmentsOf(x.queue()); len(files) < 3 {
				x.Errorf("10 MB of events are in %d segments", len(files))
			}
			x.proxy.failsAlways(nil)
			c.sent()
			x.counts(ids...)
			if files := segmentsOf(x.queue()); len(files) > 1 {
				x.Errorf("the segments %q stay after their events were sent", files)
			}
		}},
	}
}

func sentBy(c *client) []string {
	c.sent()
	return nil
}

// padded returns n events of about a size, which does not compress.
func padded(prefix string, n, size int) []object {
	list, _ := numbered(prefix, n)
	for _, e := range list {
		var b strings.Builder
		for b.Len() < size-150 {
			fmt.Fprintf(&b, "%016x", rand.Uint64())
		}
		e["metadata"] = object{"padding": b.String()}
	}
	return list
}

func batchesAreCanonical(x *trial) {
	c := x.open(object{"maxAgeMs": 3_600_000})
	var want []string
	for i, v := range x.vectors().Canonical {
		e := members(x, v.Event)
		e["eventId"] = fmt.Sprint("v-", i)
		var got struct{ Canonical string }
		c.must("canonical", object{"event": e}, &got)
		want = append(want, got.Canonical)
		c.record(e)
	}
	c.sent()
	all := x.proxy.batches()
	if len(all) != 1 {
		x.Fatalf("%d requests, want 1", len(all))
	}
	h := all[0].header
	if h.Get("Content-Encoding") != "gzip" || h.Get("Content-Type") != "application/json" ||
		h.Get("Authorization") != "Bearer "+x.tenant.key || h.Get("Meterplex-Replay") != "" ||
		!strings.HasPrefix(h.Get("User-Agent"), "meterplex-") {
		x.Errorf("the headers are %v", h)
	}
	var got []string
	for _, e := range all[0].events {
		got = append(got, string(e))
	}
	if !slices.Equal(got, want) || string(all[0].body) != `{"events":[`+strings.Join(want, ",")+`]}` || !json.Valid(all[0].body) {
		x.Errorf("the body is %s", all[0].body)
	}
}
