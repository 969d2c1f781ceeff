package relay

import (
	"slices"
	"sync"
	"time"

	"github.com/meterplex/meterplex/events"
)

// holding is the state of a leased partition.
type holding struct {
	partition int16
	fence     int64
	cursor    int64     // published and committed up to this position
	head      int64     // last known position of the log
	epoch     int32     // of the log, read with the lease
	sameLife  bool      // the server is in the life that began the epoch
	busy      bool      // in a batch under way
	surplus   bool      // to be released once it is not busy
	renewed   time.Time // time before the last successful renewal was requested
	retryAt   time.Time // no publish before this time
	tries     int       // of the event after the cursor, if it was refused
}

// holdings are the partitions that this instance leases. The lease loop adds and removes them, the
// subscriber moves their cursors.
type holdings struct {
	mu    sync.Mutex
	by    [events.Partitions]*holding // nil: not leased
	fresh time.Duration               // maximum age of a renewal; older ones stop publishing
	next  int                         // start of the next choice, so that no partition starves
}

// span is the range (after, to] of one partition in a batch.
type span struct {
	partition int16
	fence     int64
	after, to int64
	alone     bool // a single event that was refused before
}

// add adds new leases.
func (h *holdings) add(list []*holding) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range list {
		h.by[p.partition] = p
	}
}

// renewed applies a renewal that was sent at a time: requested has the cursors held then, confirmed those
// that the database returned. A lease is dropped if the database did not return it, or returned an
// earlier cursor. renewed returns the number of dropped leases. Leases acquired after the request are not
// touched.
func (h *holdings) renewed(at time.Time, requested, confirmed []span) (lost int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range requested {
		p := h.by[s.partition]
		if p == nil || p.fence != s.fence {
			continue
		}
		if slices.ContainsFunc(confirmed, func(k span) bool {
			return k.partition == s.partition && k.fence == s.fence && k.after >= s.after
		}) {
			p.renewed = at
		} else {
			h.by[s.partition] = nil
			lost++
		}
	}
	return lost
}

// forget drops a partition whose lease was lost.
func (h *holdings) forget(partition int16, fence int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.by[partition]; p != nil && p.fence == fence {
		h.by[partition] = nil
	}
}

// list returns the leased partitions with their fences and cursors.
func (h *holdings) list() []span {
	h.mu.Lock()
	defer h.mu.Unlock()
	var held []span
	for _, p := range h.by {
		if p != nil {
			held = append(held, span{partition: p.partition, fence: p.fence, after: p.cursor})
		}
	}
	return held
}

// unexpired counts the leases that have not expired: a relay that cannot renew a lease keeps the holding, but another
// relay may acquire the partition.
func (h *holdings) unexpired(now time.Time, ttl time.Duration) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.by {
		if p != nil && now.Sub(p.renewed) < ttl {
			n++
		}
	}
	return n
}

// shed marks the partitions above the share as surplus. It drops and returns those that are not busy.
func (h *holdings) shed(share int) []span {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := 0
	var released []span
	for i, p := range h.by {
		if p == nil {
			continue
		}
		held++
		p.surplus = held > share
		if p.surplus && !p.busy {
			released = append(released, span{partition: p.partition, fence: p.fence})
			h.by[i] = nil
		}
	}
	return released
}

// fences returns the fences of the leased partitions, 0 for the others.
func (h *holdings) fences() (all [events.Partitions]int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, p := range h.by {
		if p != nil {
			all[i] = p.fence
		}
	}
	return all
}

// doubtLife stops the publishing of all partitions until their heads are set again.
func (h *holdings) doubtLife() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.by {
		if p != nil {
			p.sameLife = false
		}
	}
}

// setHead records the head of a partition's log, and returns the fence of its lease; 0 without a lease, and in
// another life of the server. The head moves back if the database lost its newest events. No batch is published while the
// server is in another life than the epoch. A raised epoch ends the lease, because the database may not have
// its cursor.
func (h *holdings) setHead(partition int16, head int64, epoch int32, sameLife bool) (fence int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.by[partition]
	switch {
	case p == nil:
	case p.epoch != epoch:
		h.by[partition] = nil
	default:
		p.head, p.sameLife = head, sameLife
		if sameLife {
			return p.fence
		}
	}
	return 0
}

// idle reports that each leased partition is published up to its known head.
func (h *holdings) idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !slices.ContainsFunc(h.by[:], func(p *holding) bool {
		return p != nil && (p.head > p.cursor || !p.sameLife)
	})
}

// minSpan avoids tiny spans if many partitions have a backlog.
const minSpan = 250

// choose marks idle partitions with unpublished events as busy and returns their spans for one batch of
// at most limit events. It returns nil if no partition is ready.
func (h *holdings) choose(now time.Time, limit int) []span {
	h.mu.Lock()
	defer h.mu.Unlock()
	var ready []*holding
	for i := range h.by {
		p := h.by[(h.next+i)%len(h.by)]
		if p != nil && p.sendable(now, h.fresh) {
			ready = append(ready, p)
		}
	}
	if len(ready) == 0 {
		return nil
	}
	each := int64(max(limit/len(ready), min(minSpan, limit)))
	spans := make([]span, 0, len(ready))
	for _, p := range ready {
		s := span{partition: p.partition, fence: p.fence, after: p.cursor, to: min(p.head, p.cursor+each), alone: p.tries > 0}
		if s.alone {
			s.to = p.cursor + 1
		}
		if limit -= int(s.to - s.after); limit < 0 {
			break
		}
		p.busy = true
		h.next = int(p.partition) + 1
		spans = append(spans, s)
	}
	return spans
}

func (p *holding) sendable(now time.Time, fresh time.Duration) bool {
	return p.sameLife && !p.busy && !p.surplus && p.head > p.cursor && !now.Before(p.retryAt) && now.Sub(p.renewed) < fresh
}

// valid reports whether this instance may still publish a span.
func (h *holdings) valid(s span, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.by[s.partition]
	return p != nil && p.fence == s.fence && now.Sub(p.renewed) < h.fresh
}

// update runs f on the holding of a span, unless its lease was lost.
func (h *holdings) update(s span, f func(p *holding)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.by[s.partition]; p != nil && p.fence == s.fence {
		f(p)
	}
}

// free marks a partition as idle. It is not chosen again before rest has passed.
func (h *holdings) free(s span, rest time.Duration) {
	h.update(s, func(p *holding) {
		p.busy = false
		p.retryAt = time.Now().Add(rest)
	})
}
