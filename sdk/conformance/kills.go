package conformance

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// Kills kills the application n times at random moments while eight callers record and requests fail at random. At the end each event for
// which record returned is counted exactly once, or kept in rejected/.
func (s *Suite) Kills(t *testing.T, l Language, n int, seed uint64) {
	t.Logf("%s: seed %d", l.Name, seed)
	defer func() {
		s.note(Case{Name: "kills", Promise: "an application that is killed at random moments loses nothing that was recorded"}, l.Name,
			!t.Failed())
	}()
	x := newTrial(t, s, l, false)
	random := rand.New(rand.NewPCG(seed, 0))
	x.proxy.failsAlways(failsAtRandom(seed))
	all := &recorded{confirmed: map[string]bool{}, tried: map[string]bool{}}
	for i := range n {
		c := x.open(object{"maxEvents": 1 + random.IntN(40), "maxAgeMs": 1 + random.IntN(20), "retryMs": 20})
		ended := all.recordUntilEnd(c, i)
		if i%10 > 0 { // some are killed at once, before or within their start
			all.awaitMore(t)
		}
		time.Sleep(time.Duration(random.IntN(50_000)) * time.Microsecond)
		c.kill()
		ended.Wait()
	}
	x.proxy.failsAlways(nil)
	c := x.open()
	c.sent()
	x.countedOnce(all, c)
	c.closed()
	if left := x.queues(); len(left) > 0 {
		x.Errorf("queues stay: %q", left)
	}
}

// recorded are the events of a test with kills.
type recorded struct {
	mu               sync.Mutex
	confirmed, tried map[string]bool // record has returned; record was called
}

// recordUntilEnd lets eight callers record until the program ends. Each tenth event is one that the service rejects.
func (r *recorded) recordUntilEnd(c *client, round int) *sync.WaitGroup {
	wait := new(sync.WaitGroup)
	for caller := range 8 {
		wait.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("k%d-%d-%d", round, caller, i)
				e := usage(id)
				if i%10 == 9 {
					e["feature"] = "sdk_absent"
				}
				r.note(r.tried, id)
				if err := c.call("record", object{"event": e, "deadlineMs": patience.Milliseconds()}, nil); err != nil {
					return
				}
				r.note(r.confirmed, id)
			}
		})
	}
	return wait
}

func (r *recorded) note(in map[string]bool, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in[id] = true
}

// awaitMore waits until another event is confirmed.
func (r *recorded) awaitMore(t testing.TB) {
	t.Helper()
	confirmed := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.confirmed)
	}
	before := confirmed()
	until(t, "an event is recorded", func() bool { return confirmed() > before })
}

// countedOnce requires that each confirmed event is counted once or kept as rejected, and that no other event is.
func (x *trial) countedOnce(all *recorded, c *client) {
	x.Helper()
	list, kept := x.log(), c.rejected()
	x.Logf("%s: %d events were recorded and %d confirmed; %d are counted, %d are kept as rejected", x.language.Name, len(all.tried),
		len(all.confirmed), len(list), len(kept))
	have := map[string]bool{}
	for _, e := range list {
		if have[e.EventID] || !all.tried[e.EventID] {
			x.Errorf("%s is counted twice, or was never recorded", e.EventID)
		}
		have[e.EventID] = true
	}
	lost := 0
	for id := range all.confirmed {
		if _, found := kept[id]; !found && !have[id] {
			if lost++; lost <= 10 {
				x.Errorf("%s: record had returned, and it is neither counted nor kept as rejected", id)
			}
		}
	}
	if lost > 0 {
		x.Errorf("%d events are lost", lost)
	}
	x.figures(list)
}

// failsAtRandom loses answers, cuts and refuses some requests.
func failsAtRandom(seed uint64) fault {
	random := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex
	return func(e *exchange) {
		mu.Lock()
		n := random.IntN(20)
		mu.Unlock()
		if faults := []fault{losesAnswer, losesAnswer, cutsBehind, cutsAnswer, refuses(503, "unavailable")}; n < len(faults) {
			faults[n](e)
			return
		}
		passes(e)
	}
}

// Crossings kills a program of each language with events unsent, and lets each other language send them; in the short form only the next
// one.
func (s *Suite) Crossings(t *testing.T, short bool) {
	var all []func()
	for i, writer := range s.Languages {
		for j, reader := range s.Languages {
			if i != j && (!short || j == (i+1)%len(s.Languages)) {
				all = append(all, func() {
					ok := t.Run(writer.Name+"-to-"+reader.Name, func(t *testing.T) { cross(newTrial(t, s, writer, false), reader) })
					s.note(Case{Name: "queue-of-" + writer.Name, Promise: "a queue that a killed program of " + writer.Name +
						" wrote is emptied"}, reader.Name, ok)
				})
			}
		}
	}
	s.atOnce(all)
}

// cross records in one language and sends in another: events in each canonical form, some that the service rejects, in two queues.
func cross(x *trial, reader Language) {
	first := x.open()
	ids := first.record(usage("sent"), usageOf("rejected-before", "sdk_absent", 1))
	first.sent()
	x.proxy.failsAlways(refuses(503, "unavailable"))
	second := x.open()
	for i, v := range x.vectors().Canonical {
		e := members(x, v.Event)
		if e["type"] == nil || e["type"] == "usage" {
			e["eventId"], e["feature"], e["timestamp"] = fmt.Sprint("v-", i), "sdk_calls", time.Now().Format(time.RFC3339Nano)
			ids = append(ids, second.record(e)...)
		}
	}
	ids = append(ids, first.recordN("many", 30)...)
	ids = append(ids, first.record(usageOf("rejected-behind", "sdk_absent", 1))...)
	first.kill()
	second.kill()
	x.language = reader
	c := x.open()
	if all := c.rejected(); len(all) != 1 || all["rejected-before"].Code != "feature_not_found" {
		x.Errorf("%s reads %v from rejected/", reader.Name, all)
	}
	x.proxy.failsAlways(nil)
	c.sent()
	if all := c.rejected(); len(all) != 2 || all["rejected-behind"].Code != "feature_not_found" {
		x.Errorf("%s keeps %v in rejected/", reader.Name, all)
	}
	var good []string
	for _, id := range ids {
		if id != "rejected-before" && id != "rejected-behind" {
			good = append(good, id)
		}
	}
	x.counts(good...)
	c.closed()
	if left := append(x.queues(), x.filesOf("damaged")...); len(left) > 0 {
		x.Errorf("%q stay", left)
	}
}
