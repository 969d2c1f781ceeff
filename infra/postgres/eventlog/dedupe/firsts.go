package dedupe

import (
	"encoding/binary"
	"hash/maphash"

	"github.com/meterplex/meterplex/events"
)

// Firsts finds the first event of a group with a key. It is a hash table with open
// addressing that holds a part of each key's hash beside the event's index, so that
// different keys are hardly ever compared, and keys are not copied. A map took a
// twelfth of the service's work for an event in a batch.
type Firsts struct {
	seed  maphash.Seed
	slots []uint64 // the upper half of the hash, and the event's index + 1; 0 is free
}

// Reset empties it, with room for n keys.
func (f *Firsts) Reset(n int) {
	size := 64
	for size < 2*n {
		size *= 2
	}
	if cap(f.slots) < size {
		f.seed, f.slots = maphash.MakeSeed(), make([]uint64, size)
		return
	}
	f.slots = f.slots[:size]
	clear(f.slots)
}

// Of returns the index of the first event with the key of p, which will be event i of the list; i
// if the key is new. If note is true, p is then recorded as the first.
func (f *Firsts) Of(list []*events.Pending, p *events.Pending, i int, note bool) int {
	// Tenants often have the same keys: their ids, which end in random bits, tell them apart.
	hash := maphash.String(f.seed, p.DedupeKey) ^ binary.LittleEndian.Uint64(p.TenantID[8:])
	for at := hash; ; at++ {
		slot := &f.slots[at%uint64(len(f.slots))]
		if *slot == 0 {
			if note {
				*slot = hash>>32<<32 | uint64(i+1)
			}
			return i
		}
		if (*slot^hash)>>32 == 0 {
			first := int(uint32(*slot)) - 1
			if s := list[first]; s.DedupeKey == p.DedupeKey && s.TenantID == p.TenantID {
				return first
			}
		}
	}
}
