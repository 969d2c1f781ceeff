package eventlog

import (
	"sync"

	"github.com/meterplex/meterplex/events"
)

// durable holds, for each partition, the position up to which this instance has seen a
// COMMIT succeed in the present epoch. With a synchronous standby, all events up to it
// are on the standby, since a COMMIT waits for all earlier ones. An answer that depends
// on a later event needs a COMMIT of its own: after a crash, or after its own wait was
// cancelled, the event may be visible although no standby has it.
type durable struct {
	mu   sync.Mutex
	upTo [events.Partitions]struct {
		epoch    int32
		position int64
	}
}

// committed notes that a transaction which held the heads has committed.
func (d *durable) committed(hs heads) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p, h := range hs {
		d.upTo[p].epoch, d.upTo[p].position = h.epoch, h.position
	}
}

// covers reports whether the event at a position, found under the head's lock, is durable.
func (d *durable) covers(h *head, at events.Position) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.upTo[h.partition]
	return known.epoch == h.epoch && at.Number <= known.position
}
