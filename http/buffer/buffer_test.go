package buffer

import (
	"testing"
)

// Buffers have a size that is pooled, at most twice the requested size: the request is
// charged for it.
func TestBuffersAreKeptBySize(t *testing.T) {
	for _, n := range []int{1, MinPooled - 1, MinPooled, MinPooled + 1, 112_112, 128 << 10, 142_012, MaxPooled, MaxPooled + 1} {
		size := SizeFor(n)
		if size < n || size > 2*n {
			t.Errorf("%d bytes get a buffer of %d", n, size)
		}
		if kept := poolIndex(size) >= 0; kept != (n >= MinPooled && n <= MaxPooled) {
			t.Errorf("a buffer for %d bytes, of %d, is kept: %v", n, size, kept)
		}
		if got := Get(size); len(got) != 0 || cap(got) != size {
			t.Errorf("a buffer of %d has %d of %d", size, len(got), cap(got))
		}
	}
	for pool := range pools {
		if at := poolIndex(MinPooled << pool); at != pool {
			t.Errorf("%d bytes are kept in pool %d of %d", MinPooled<<pool, at, pool)
		}
		// If a pool held a larger buffer, a request would hold more than its charge.
		for _, odd := range []int{MinPooled<<pool - 1, MinPooled<<pool + 1, MinPooled<<pool + MinPooled/2} {
			if at := poolIndex(odd); at >= 0 {
				t.Errorf("a buffer of %d bytes is kept, in pool %d", odd, at)
			}
		}
	}
}
