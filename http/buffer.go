package http

import (
	"math/bits"
	"sync"
)

// bufferPools are pools of large buffers for bodies and answers: one pool for each power
// of two from minPooled to maxPooled.
var bufferPools [7]sync.Pool

// Sizes of pooled buffers: smaller buffers cost little, larger ones are rare.
const (
	minPooled = 16 << 10
	maxPooled = minPooled << (len(bufferPools) - 1)
)

// bufferSize is the buffer size to allocate for n bytes: the next power of two if buffers
// of that size are pooled, else n.
func bufferSize(n int) int {
	if n < minPooled || n > maxPooled {
		return n
	}
	return 1 << bits.Len(uint(n-1))
}

// poolIndex returns the index of the pool for a size, or -1.
func poolIndex(size int) int {
	if size < minPooled || size > maxPooled || size&(size-1) != 0 {
		return -1
	}
	return bits.Len(uint(size/minPooled)) - 1
}

// getBuffer returns an empty buffer of exactly that capacity.
func getBuffer(size int) []byte {
	if pool := poolIndex(size); pool >= 0 {
		if kept, ok := bufferPools[pool].Get().(*[]byte); ok {
			return (*kept)[:0]
		}
	}
	return make([]byte, 0, size)
}

// putBuffer returns an unreferenced buffer to its pool.
func putBuffer(b []byte) {
	if pool := poolIndex(cap(b)); pool >= 0 {
		bufferPools[pool].Put(&b)
	}
}
