// Package queue is the queue on disk of the SDKs (sdk/queue.md): events are appended durably, read in order, and removed once each has a
// final verdict. It knows no HTTP and does not look into events.
package queue

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

const (
	magic = "MPXQ0001" // the first bytes of a segment
	// segmentSize is the offset at or behind which no record begins.
	segmentSize = 4 << 20
	headSize    = 8 // of a record: length and checksum
	minEvent    = 2
	maxEvent    = 1 << 16
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func appendRecord(dst, event []byte) []byte {
	start := len(dst)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(event)))
	sum := crc32.Update(crc32.Checksum(dst[start:], castagnoli), castagnoli, event)
	return append(binary.LittleEndian.AppendUint32(dst, sum), event...)
}

// recordAt returns the event of the record at the begin of b, nil if no complete record with the right checksum begins there.
func recordAt(b []byte) []byte {
	if len(b) < headSize {
		return nil
	}
	n := int64(binary.LittleEndian.Uint32(b))
	if n < minEvent || n > maxEvent || int64(len(b)) < headSize+n {
		return nil
	}
	event := b[headSize : headSize+n]
	if crc32.Update(crc32.Checksum(b[:4], castagnoli), castagnoli, event) != binary.LittleEndian.Uint32(b[4:]) {
		return nil
	}
	return event
}

// nextRecord returns the first offset behind 0 at which a record begins, len(b) if there is none. No record begins inside
// of an event: JSON holds no zero byte, and each length does.
func nextRecord(b []byte) int {
	for i := 1; i+headSize+minEvent <= len(b); i++ {
		if b[i+3] == 0 && recordAt(b[i:]) != nil {
			return i
		}
	}
	return len(b)
}

// isTorn reports whether b, which begins with no record, is the rest of a write that was not confirmed: an incomplete record or
// zeros up to the end of the queue.
func isTorn(b []byte, header bool) bool {
	if len(bytes.TrimLeft(b, "\x00")) == 0 {
		return true
	}
	if header {
		return len(b) < len(magic)
	}
	if len(b) >= headSize {
		n := int64(binary.LittleEndian.Uint32(b))
		if n < minEvent || n > maxEvent || int64(len(b)) >= headSize+n {
			return false
		}
	}
	return nextRecord(b) == len(b)
}

// parsed is what stands at an offset of a segment.
type parsed struct {
	event   []byte // nil: none
	size    int    // of the record, the header or the damage
	damaged bool
}

// parse reads what stands at offset; b holds the rest of the segment from there on, and is not empty.
func parse(b []byte, offset int64) parsed {
	if offset == 0 && bytes.HasPrefix(b, []byte(magic)) {
		return parsed{size: len(magic)}
	}
	if event := recordAt(b); event != nil && offset > 0 {
		return parsed{event: event, size: headSize + len(event)}
	}
	return parsed{size: nextRecord(b), damaged: true}
}
