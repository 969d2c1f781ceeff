// Package buffer pools large buffers for bodies and answers, by size.
package buffer

import (
	"math/bits"
	"sync"
)

// pools are pools of large buffers for bodies and answers: one pool for each power
// of two from MinPooled to MaxPooled.
var pools [7]sync.Pool

// Sizes of pooled buffers: smaller buffers cost little, larger ones are rare.
const (
	MinPooled = 16 << 10
	MaxPooled = MinPooled << (len(pools) - 1)
)

// SizeFor is the buffer size to allocate for n bytes: the next power of two if buffers
// of that size are pooled, else n.
func SizeFor(n int) int {
	if n < MinPooled || n > MaxPooled {
		return n
	}
	return 1 << bits.Len(uint(n-1))
}

// poolIndex returns the index of the pool for a size, or -1.
func poolIndex(size int) int {
	if size < MinPooled || size > MaxPooled || size&(size-1) != 0 {
		return -1
	}
	return bits.Len(uint(size/MinPooled)) - 1
}

// Get returns an empty buffer of exactly that capacity.
func Get(size int) []byte {
	if pool := poolIndex(size); pool >= 0 {
		if kept, ok := pools[pool].Get().(*[]byte); ok {
			return (*kept)[:0]
		}
	}
	return make([]byte, 0, size)
}

// Put returns an unreferenced buffer to its pool.
func Put(b []byte) {
	if pool := poolIndex(cap(b)); pool >= 0 {
		pools[pool].Put(&b)
	}
}
