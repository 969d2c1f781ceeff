package http

import (
	"testing"
)

// Buffers have a size that is pooled, at most twice the requested size: the request is
// charged for it.
func TestBuffersAreKeptBySize(t *testing.T) {
	for _, n := range []int{1, minPooled - 1, minPooled, minPooled + 1, 112_112, firstRoom, 142_012, maxPooled, maxPooled + 1} {
		size := bufferSize(n)
		if size < n || size > 2*n {
			t.Errorf("%d bytes get a buffer of %d", n, size)
		}
		if kept := poolIndex(size) >= 0; kept != (n >= minPooled && n <= maxPooled) {
			t.Errorf("a buffer for %d bytes, of %d, is kept: %v", n, size, kept)
		}
		if got := getBuffer(size); len(got) != 0 || cap(got) != size {
			t.Errorf("a buffer of %d has %d of %d", size, len(got), cap(got))
		}
	}
	for pool := range bufferPools {
		if at := poolIndex(minPooled << pool); at != pool {
			t.Errorf("%d bytes are kept in pool %d of %d", minPooled<<pool, at, pool)
		}
		// If a pool held a larger buffer, a request would hold more than its charge.
		for _, odd := range []int{minPooled<<pool - 1, minPooled<<pool + 1, minPooled<<pool + minPooled/2} {
			if at := poolIndex(odd); at >= 0 {
				t.Errorf("a buffer of %d bytes is kept, in pool %d", odd, at)
			}
		}
	}
}
