package relay

import (
	"slices"
	"sync"
	"time"

	"github.com/meterplex/meterplex/events"
)

// holding is what this instance knows of a partition that it leases.
type holding struct {
	partition int16
	fence     int64
	cursor    int64     // published and committed up to here
	head      int64     // the last that is known to be appended
	epoch     int32     // of the log when the lease was taken
	living    bool      // the server is in the life that the epoch began with
	busy      bool      // in a batch under way
	surplus   bool      // to be handed back when it is not busy
	renewed   time.Time // taken before the last successful renewal was asked for
	retryAt   time.Time // nothing is sent before
	tries     int       // at the event after the cursor, which was refused
}

// holdings are the partitions leased by this instance. The lease loop adds and
// takes away, the subscriber moves cursors.
type holdings struct {
	mu    sync.Mutex
	by    [events.Partitions]*holding // nil: not held
	fresh time.Duration               // a renewal older than this stops publishing
	next  int                         // where the next choice begins, so that none starves
}

// span is a stretch of one partition in a batch: after, up to and with to.
type span struct {
	partition int16
	fence     int64
	after, to int64
	alone     bool // one event only, since it was refused before
}

// add notes leases just taken.
func (h *holdings) add(list []*holding) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range list {
		h.by[p.partition] = p
	}
}

// renewed notes the renewal asked for at a time, with the cursors held then and those that the
// database has, and returns how many leases are lost: those that the renewal does not name, or
// where the database's cursor is behind the one held. Leases taken later than that are not touched.
func (h *holdings) renewed(at time.Time, asked, kept []span) (lost int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range asked {
		p := h.by[s.partition]
		if p == nil || p.fence != s.fence {
			continue
		}
		if slices.ContainsFunc(kept, func(k span) bool { return k.partition == s.partition && k.fence == s.fence && k.after >= s.after }) {
			p.renewed = at
		} else {
			h.by[s.partition] = nil
			lost++
		}
	}
	return lost
}

// forget drops a partition whose lease was taken by another.
func (h *holdings) forget(partition int16, fence int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.by[partition]; p != nil && p.fence == fence {
		h.by[partition] = nil
	}
}

// list gives the held partitions with their fences and cursors.
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

// shed marks what is above the share and gives what of it can be handed back now,
// which it forgets.
func (h *holdings) shed(share int) []span {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := 0
	var back []span
	for i, p := range h.by {
		if p == nil {
			continue
		}
		held++
		p.surplus = held > share
		if p.surplus && !p.busy {
			back = append(back, span{partition: p.partition, fence: p.fence})
			h.by[i] = nil
		}
	}
	return back
}

// seen notes how far a partition's log goes: less far than before, if the database lost a tail.
// Nothing is published while the server is in another life than the epoch. Raising the epoch
// ends the lease: its cursor may be one that the database does not have.
func (h *holdings) seen(partition int16, head int64, epoch int32, living bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.by[partition]
	switch {
	case p == nil:
	case p.epoch != epoch:
		h.by[partition] = nil
	default:
		p.head, p.living = head, living
	}
}

// minSpan keeps a batch from being cut into slivers when many partitions wait.
const minSpan = 250

// choose takes idle partitions that have something to publish for one batch of at
// most limit events, and marks them busy; empty where there is none.
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
	return p.living && !p.busy && !p.surplus && p.head > p.cursor && !now.Before(p.retryAt) && now.Sub(p.renewed) < fresh
}

// valid tells whether a span may still be published by this instance.
func (h *holdings) valid(s span, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.by[s.partition]
	return p != nil && p.fence == s.fence && now.Sub(p.renewed) < h.fresh
}

// with runs f on the holding that a span was chosen from, unless it was lost.
func (h *holdings) with(s span, f func(p *holding)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.by[s.partition]; p != nil && p.fence == s.fence {
		f(p)
	}
}

// free ends a batch's hold on a partition; it rests for a while before it is
// chosen again.
func (h *holdings) free(s span, rest time.Duration) {
	h.with(s, func(p *holding) {
		p.busy = false
		p.retryAt = time.Now().Add(rest)
	})
}
