package node

import (
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
)

// newID returns a UUIDv7 (RFC 9562, 5.7), with the fraction of a millisecond in the 12
// bits of 6.2, method 3. Ids are not secrets, but must be cheap, since every event has
// one: the library's function takes two locks and three times as long.
func newID() uuid.UUID { return newIDAt(time.Now()) }

// newIDAt is newID for a known time: reading the clock takes most of the remaining time.
func newIDAt(now time.Time) (id uuid.UUID) {
	fraction := uint64(now.Nanosecond()) % 1e6 << 12 / 1e6
	binary.BigEndian.PutUint64(id[:8], uint64(now.UnixMilli())<<16|7<<12|fraction)
	binary.BigEndian.PutUint64(id[8:], 1<<63|rand.Uint64()>>2)
	return id
}
