package meterplex

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/meterplex/meterplex/sdk/go/internal/queue"
)

// entry is one event on its way into the queue.
type entry struct {
	event   []byte
	done    chan error
	writing bool // it cannot be withdrawn
	blocked bool // the queue is full
	late    bool // its context has ended while it was being written
}

// Record stores an event in the queue and returns it with its EventID and Timestamp once it is durable; concurrent calls share an fsync.
// The event is sent later: OnVerdict says whether the service has counted it.
//
// An invalid event is an *Error with the service's code, e.g. amount_invalid, and is not stored. If the queue is full, Record waits until
// ctx ends, and fails with queue_full. To repeat a failed call, pass the event that it returned: it counts once.
func (c *Client) Record(ctx context.Context, event Event) (Event, error) {
	events, err := c.RecordMany(ctx, []Event{event})
	return events[0], err
}

// RecordMany stores events as Record does, and waits for the disk once. If one is invalid, no event is stored. After another error some may
// be stored: pass the events that it returned to repeat the call.
func (c *Client) RecordMany(ctx context.Context, events []Event) ([]Event, error) {
	events = slices.Clone(events)
	entries := make([]*entry, len(events))
	for i, e := range events {
		events[i] = e.withDefaults()
	}
	for i, e := range events {
		bytes, err := e.Canonical()
		if err != nil {
			return events, err
		}
		entries[i] = &entry{event: bytes, done: make(chan error, 1)}
	}
	if err := c.enqueue(ctx, entries); err != nil {
		return events, err
	}
	var failed error
	for _, e := range entries {
		if err := c.await(ctx, e); err != nil && failed == nil {
			failed = err
		}
	}
	return events, failed
}

func (c *Client) enqueue(ctx context.Context, entries []*entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return invalid("closed", "The client is closed; the event is not stored")
	}
	c.pending = append(c.pending, entries...)
	c.wakeWriter.send()
	return nil
}

// await returns when an entry is durable. Once it is being written, ctx is not regarded: the outcome would be unknown.
func (c *Client) await(ctx context.Context, e *entry) error {
	select {
	case err := <-e.done:
		return err
	case <-ctx.Done():
	}
	c.mu.Lock()
	withdrawn := false
	if i := slices.Index(c.pending, e); i >= 0 && !e.writing {
		c.pending = slices.Delete(c.pending, i, i+1)
		withdrawn = true
	}
	blocked := e.blocked
	e.late = true
	c.mu.Unlock()
	switch {
	case !withdrawn:
		return <-e.done
	case blocked:
		return newError("queue_full", ctx.Err(), "The queue is full; the event is not stored")
	}
	return ctx.Err()
}

// retryFullDisk is how often a write to a full disk is tried again.
const retryFullDisk = time.Second

// write appends pending entries to the queue, those that arrive during a write together.
func (c *Client) write() {
	defer c.done.Done()
	for {
		batch, end := c.nextEntries()
		if end {
			return
		}
		full := false
		if len(batch) > 0 {
			full = c.append(batch)
		}
		if len(batch) > 0 && !full {
			continue
		}
		var again <-chan time.Time
		if full {
			again = time.After(retryFullDisk)
		}
		select {
		case <-c.wakeWriter:
		case <-c.ctx.Done():
		case <-again:
		}
	}
}

// nextEntries returns the pending entries for which the queue has space. It ends once the client is stopped, or closes without pending
// entries.
func (c *Client) nextEntries() (batch []*entry, end bool) {
	const most = 4 << 20 // bytes in one write
	c.mu.Lock()
	space := c.options.QueueBytes - c.rejectedBytes
	c.mu.Unlock()
	for _, q := range c.queues() {
		_, used := q.Size()
		space -= used
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		for _, e := range c.pending {
			e.done <- invalid("closed", "The client is closed; the event is not stored")
		}
		c.pending = nil
		return nil, true
	}
	size := int64(0)
	for i, e := range c.pending {
		if size += int64(len(e.event) + 8); size > space {
			for _, rest := range c.pending[i:] {
				rest.blocked = true
			}
			break
		}
		if size > most && i > 0 {
			break
		}
		e.writing = true
		batch = c.pending[:i+1]
	}
	return slices.Clone(batch), c.closing && len(c.pending) == 0
}

// append writes the first of the pending entries, and reports whether the disk is full.
func (c *Client) append(batch []*entry) (full bool) {
	events := make([][]byte, len(batch))
	for i, e := range batch {
		events[i] = e.event
	}
	c.mu.Lock()
	q := c.own
	c.mu.Unlock()
	n, err := q.Append(events)
	switch {
	case errors.Is(err, queue.ErrFull):
		c.block()
		return true
	case err != nil:
		if failed := c.replace(q); failed != nil || !errors.Is(err, queue.ErrLost) {
			c.finish(batch, len(batch), newError("queue_failed", errors.Join(err, failed),
				"The queue cannot be written; the event may be stored"))
			return false
		}
	}
	c.finish(batch, n, nil)
	return false
}

// block lets the pending entries wait for space, except for those whose context has ended.
func (c *Client) block() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = slices.DeleteFunc(c.pending, func(e *entry) bool {
		late := e.writing && e.late
		if late {
			e.done <- newError("queue_full", nil, "The disk is full; the event is not stored")
		}
		return late
	})
	for _, e := range c.pending {
		e.writing, e.blocked = false, true
	}
}

// finish returns from Record for the first n of a batch; the others stay pending.
func (c *Client) finish(batch []*entry, n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = c.pending[n:]
	for i, e := range batch {
		if e.writing = false; i < n {
			e.done <- err
		}
	}
	if n > 0 && err == nil {
		if c.oldest.IsZero() {
			c.oldest = time.Now()
		}
		c.wakeSender.send()
	}
}

// replace begins a new queue after the own one was taken over or a write to it failed. What is confirmed in the old one is still sent.
func (c *Client) replace(old events) error {
	q, err := c.dir.New()
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own = q
	c.taken = append(c.taken, old) // the sender drops it if it is lost
	return nil
}
