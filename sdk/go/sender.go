package meterplex

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/meterplex/meterplex/sdk/go/internal/queue"
)

// Verdict is what the service decided about an event.
type Verdict struct {
	EventID string `json:"eventId"`
	// Status is accepted, duplicate, conflict or rejected; later services may have more.
	Status   string `json:"status"`
	Code     string `json:"code"`     // why it is not counted, e.g. feature_not_found
	Reason   string `json:"reason"`   // in English
	Pointer  string `json:"pointer"`  // the member at fault
	Position string `json:"position"` // of the event in the log; reads with MinPosition wait for it
	Remedy   string `json:"-"`        // what to do; "" if the code is not known to this version
	// JSON is the whole verdict, also members that this version does not know.
	JSON json.RawMessage `json:"-"`
}

// Counted reports whether the event is counted, now or by an earlier attempt.
func (v *Verdict) Counted() bool { return v.Status == "accepted" || v.Status == "duplicate" }

// batch is a number of events of one queue that are sent together.
type batch struct {
	queue  events
	events [][]byte
	heads  []head
}

// head is what the sender needs of an event.
type head struct {
	EventID   string    `json:"eventId"`
	Timestamp time.Time `json:"timestamp"`
}

func headOf(event []byte) (h head) {
	_ = json.Unmarshal(event, &h)
	return h
}

func (b batch) part(from, to int) batch { return batch{b.queue, b.events[from:to], b.heads[from:to]} }

// send sends the events of all queues, in order, until the client stops.
func (c *Client) send() {
	defer c.done.Done()
	for c.ctx.Err() == nil {
		b, wait := c.nextBatch()
		if len(b.events) > 0 {
			c.deliver(b)
			continue
		}
		c.pause(wait, c.wakeSender)
	}
}

// pause waits until the client stops, a signal arrives, or a time is over; 0: for ever.
func (c *Client) pause(wait time.Duration, wake signal) {
	var over <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-c.ctx.Done():
	case <-wake:
	case <-over:
	}
}

// nextBatch returns the next batch that is due; without one, how long to wait for it, 0: until there is a signal.
func (c *Client) nextBatch() (batch, time.Duration) {
	c.mu.Lock()
	taken, own := slices.Clone(c.taken), c.own
	c.mu.Unlock()
	retry := time.Duration(0) // of the queues that cannot be read
	for _, q := range taken {
		b, wait := c.read(q)
		if len(b.events) > 0 {
			return b, 0
		}
		if wait > 0 {
			retry = soonest(retry, wait)
			continue
		}
		c.mu.Lock()
		c.taken = slices.DeleteFunc(c.taken, func(one events) bool { return one == q })
		c.mu.Unlock()
		q.Close() // empty, or lost
		c.advance()
	}
	c.mu.Lock()
	n, size := own.Size()
	age := time.Since(c.oldest)
	due := n > 0 && (c.flushes > 0 || n >= c.options.BatchEvents || size >= int64(c.options.BatchBytes) || age >= c.options.BatchAge)
	if due {
		c.oldest = time.Time{} // of the events that are recorded from now on
	}
	c.mu.Unlock()
	switch {
	case n == 0:
		return batch{}, retry
	case !due:
		return batch{}, soonest(retry, c.options.BatchAge-age)
	}
	b, wait := c.read(own)
	if rest, _ := own.Size(); rest > len(b.events) {
		c.mu.Lock()
		c.oldest = time.Now().Add(-c.options.BatchAge) // what is left is due
		c.mu.Unlock()
	}
	return b, soonest(retry, wait)
}

// soonest returns the shorter wait; 0 is none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// read reads a batch of a queue; after a failure it returns how long to wait, and does not read before.
func (c *Client) read(q events) (batch, time.Duration) {
	if wait := time.Until(c.unreadable[q]); wait > 0 {
		return batch{}, wait
	}
	list, err := q.Read(c.options.BatchEvents, c.options.BatchBytes)
	if errors.Is(err, queue.ErrLost) {
		c.advance()
		return batch{}, 0
	}
	if err != nil {
		c.unreadable[q] = time.Now().Add(c.options.KeyWait)
		c.report(newError("queue_failed", err, "The queue cannot be read"))
		return batch{}, c.options.KeyWait
	}
	b := batch{q, list, make([]head, len(list))}
	for i, e := range list {
		b.heads[i] = headOf(e)
	}
	return b, 0
}

// deliver sends a batch until each event has a final verdict, or the client stops.
func (c *Client) deliver(b batch) {
	body := compress(b.events)
	var failing time.Time // since when
	told := false
	for n := 0; c.ctx.Err() == nil && !b.queue.Lost(); n++ {
		c.warnOld(b.heads)
		late := !failing.IsZero() && time.Since(failing) >= c.options.LongestWait
		a, err := c.ingest(body, late)
		if err == nil {
			if verdicts := verdictsOf(a, b.heads); verdicts != nil {
				c.settle(b, verdicts)
				return
			}
		}
		if failing.IsZero() {
			failing = time.Now()
		}
		switch refusal := refusalOf(a, err); {
		case c.ctx.Err() != nil:
		case isKeyRefused(refusal):
			c.report(refusal)
			c.pause(c.options.KeyWait, c.api.rekeyed)
			n = -1
		case isAboutBatch(refusal) && len(b.events) > 1:
			half := len(b.events) / 2
			c.deliver(b.part(0, half))
			c.deliver(b.part(half, len(b.events)))
			return
		case isAboutEvent(refusal):
			c.discard(b, refusal)
			return
		default:
			if !told && time.Since(failing) >= c.options.LongestWait {
				told = true
				c.report(newError("unavailable", refusal, "Usage has not been sent for %s; it waits in the queue",
					time.Since(failing).Round(time.Millisecond)))
			}
			c.backoff(n, refusal.retryAfter)
		}
	}
}

// isKeyRefused: the events wait for another key.
func isKeyRefused(e *Error) bool {
	return e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden
}

// isAboutBatch: the same bytes would get the same answer again.
func isAboutBatch(e *Error) bool { return e.Status != 0 && !isTemporary(e) }

// isAboutEvent: the service itself cannot read the event. 404 and 405 refuse the address.
func isAboutEvent(e *Error) bool {
	return e.JSON != nil && e.Status/100 == 4 && !isTemporary(e) && e.Status != http.StatusNotFound &&
		e.Status != http.StatusMethodNotAllowed
}

// backoff waits a random time, at least as long as the service asks for. Flush ends the wait.
func (c *Client) backoff(n int, least time.Duration) {
	const first, most = 500 * time.Millisecond, 20 // 2^20 × 0.5 s is above any limit
	limit := min(c.options.LongestWait, first<<min(n, most))
	wait := max(least, rand.N(limit)+1)
	until := time.Now().Add(least)
	c.pause(wait, c.hurry)
	if rest := time.Until(until); rest > 0 {
		c.pause(rest, nil)
	}
}

func compress(events [][]byte) []byte {
	var body bytes.Buffer
	z := gzip.NewWriter(&body)
	_, _ = z.Write([]byte(`{"events":[`))
	for i, e := range events {
		if i > 0 {
			_, _ = z.Write([]byte{','})
		}
		_, _ = z.Write(e)
	}
	_, _ = z.Write([]byte("]}"))
	_ = z.Close()
	return body.Bytes()
}

func (c *Client) ingest(body []byte, late bool) (*answer, error) {
	header := http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}}
	if late {
		header.Set("Meterplex-Replay", "offline")
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.options.AttemptTimeout)
	defer cancel()
	return c.api.exchange(ctx, http.MethodPost, "/api/v1/usage/events", header, body)
}

// verdictsOf returns the verdicts of an answer of the service, nil if it is another answer: there must be one for each event, in order.
func verdictsOf(a *answer, sent []head) []Verdict {
	var body struct{ Events []json.RawMessage }
	if a.status != http.StatusAccepted || a.media() != "application/json" || json.Unmarshal(a.body, &body) != nil ||
		len(body.Events) != len(sent) {
		return nil
	}
	verdicts := make([]Verdict, len(sent))
	for i, raw := range body.Events {
		v, index := &verdicts[i], struct{ Index *int }{}
		if json.Unmarshal(raw, v) != nil || json.Unmarshal(raw, &index) != nil || index.Index != nil && *index.Index != i ||
			v.Status == "" || v.EventID != sent[i].EventID {
			return nil
		}
		v.Remedy, v.JSON = remedies[v.Code], raw
	}
	return verdicts
}

func (h head) age() time.Duration {
	if h.Timestamp.IsZero() {
		return 0
	}
	return max(0, time.Since(h.Timestamp))
}

// settle keeps the events that are not counted, calls the handler, and removes the events from the queue, in this order.
func (c *Client) settle(b batch, verdicts []Verdict) {
	for i := range verdicts {
		if v := &verdicts[i]; !v.Counted() && !c.retryWrite(func() error { return c.keepRejected(b.events[i], v) }) {
			return
		}
	}
	for i, v := range verdicts {
		if c.options.OnVerdict != nil {
			var e Event
			_ = json.Unmarshal(b.events[i], &e)
			c.options.OnVerdict(e, v)
		} else if !v.Counted() {
			c.options.Logger.Warn("meterplex: usage is not counted: "+v.Reason, "eventId", v.EventID, "status", v.Status, "code", v.Code,
				"remedy", v.Remedy)
		}
	}
	b.queue.Settle(b.events)
	c.mu.Lock()
	for _, v := range verdicts {
		switch v.Status {
		case "accepted":
			c.stats.Accepted++
		case "duplicate":
			c.stats.Duplicates++
		case "conflict":
			c.stats.Conflicts++
		default:
			c.stats.Rejected++
		}
	}
	c.mu.Unlock()
	c.advance()
}

// discard moves an event that the service cannot read to damaged/.
func (c *Client) discard(b batch, refusal *Error) {
	event, id := b.events[0], b.heads[0].EventID
	if c.dir != nil && !c.retryWrite(func() error { return c.dir.KeepDamaged(id, event, damagedFile(event, refusal)) }) {
		return
	}
	b.queue.Settle(b.events)
	c.damaged(newError("damaged", refusal, "The service cannot read the event %s; it is kept in damaged/", id))
	c.advance()
}

// retryWrite repeats a write until it succeeds; false: the client stops.
func (c *Client) retryWrite(write func() error) bool {
	for n := 0; ; n++ {
		err := write()
		if err == nil {
			return true
		}
		c.report(newError("queue_failed", err, "An event that is not counted cannot be kept; sending waits"))
		if c.backoff(n, 0); c.ctx.Err() != nil {
			return false
		}
	}
}

// advance wakes all that wait for events to leave a queue.
func (c *Client) advance() {
	c.mu.Lock()
	close(c.changed)
	c.changed = make(chan struct{})
	c.mu.Unlock()
	c.wakeWriter.send() // there is space
}

// warnOld reports events that will soon be too old for the service, at most once an hour.
func (c *Client) warnOld(events []head) {
	if time.Since(c.toldOld) < time.Hour {
		return
	}
	age := time.Duration(0)
	for _, e := range events {
		age = max(age, e.age())
	}
	if age >= c.options.WarnAge {
		c.toldOld = time.Now()
		c.report(newError("too_old", nil, "The oldest event that waits is %s old; the service refuses events that are more than 7 days old",
			age.Round(time.Second)))
	}
}
