package http

import (
	"bytes"
	"testing"

	"github.com/google/uuid"
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

// A body is read correctly into a reused buffer.
func TestBodiesAreReadIntoUsedBuffers(t *testing.T) {
	for pool := range bufferPools {
		putBuffer(bytes.Repeat([]byte{0xff}, minPooled<<pool))
	}
	for _, n := range []int{0, 1, minPooled, firstRoom - 1, firstRoom, 142_012, 3 * firstRoom, maxPooled + 5} {
		sent := bytes.Repeat([]byte(uuid.NewString()), n/36+1)[:n]
		for _, told := range []int64{int64(n), -1} {
			charge := &charge{}
			got, err := readAll(bytes.NewReader(sent), told, charge)
			if err != nil || !bytes.Equal(got, sent) {
				t.Fatalf("%d bytes, told %d: %d, %v", n, told, len(got), err)
			}
			if told > 0 && n >= minPooled && n < maxPooled && poolIndex(cap(got)) < 0 {
				t.Errorf("%d bytes are read into a buffer of %d, which is not kept", n, cap(got))
			}
			putBuffer(got)
		}
	}
}
