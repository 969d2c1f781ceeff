// Package codec reads and writes events as bytes: the envelope on the wire, the records of a topic,
// frames of records, and payloads. The stored form of a payload
// omits the members that are columns of the log. Every release writes the same bytes for the same
// event.
package codec

import (
	"encoding/binary"
	"errors"

	"github.com/meterplex/meterplex/events"
)

var errFrame = errors.New("events: not a frame of records")

const frameMagic = 0xA7

// AppendFrame appends the framed records to dst. A frame is the payload of one
// Watermill message on the hot path, which carries one batch.
func AppendFrame(dst []byte, records []events.Record) []byte {
	dst = append(dst, frameMagic)
	dst = binary.AppendUvarint(dst, uint64(len(records)))
	for i := range records {
		r := &records[i]
		dst = binary.AppendUvarint(dst, uint64(r.Topic))
		dst = binary.AppendUvarint(dst, uint64(r.Partition))
		dst = binary.AppendVarint(dst, r.Offset)
		dst = appendBytes(dst, r.Key)
		dst = appendBytes(dst, r.Value)
		dst = binary.AppendUvarint(dst, uint64(len(r.Headers)))
		for _, h := range r.Headers {
			dst = appendBytes(dst, []byte(h.Key))
			dst = appendBytes(dst, h.Value)
		}
	}
	return dst
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// ParseFrame decodes a frame. The records share the frame's memory.
func ParseFrame(frame []byte) ([]events.Record, error) {
	if len(frame) == 0 || frame[0] != frameMagic {
		return nil, errFrame
	}
	p := frameReader{rest: frame[1:]}
	n := p.uint()
	if n > uint64(len(frame)) {
		return nil, errFrame
	}
	records := make([]events.Record, 0, n)
	for range n {
		r := events.Record{Topic: events.Topic(p.uint()), Partition: int16(p.uint()), Offset: p.int(), Key: p.bytes(), Value: p.bytes()}
		headers := p.uint()
		if headers > uint64(len(p.rest)) {
			return nil, errFrame
		}
		r.Headers = make([]events.Header, 0, headers)
		for range headers {
			r.Headers = append(r.Headers, events.Header{Key: string(p.bytes()), Value: p.bytes()})
		}
		records = append(records, r)
	}
	if p.bad || len(p.rest) != 0 {
		return nil, errFrame
	}
	return records, nil
}

type frameReader struct {
	rest []byte
	bad  bool
}

func (p *frameReader) advance(n int) {
	if n <= 0 {
		p.bad, p.rest = true, nil
		return
	}
	p.rest = p.rest[n:]
}

func (p *frameReader) uint() uint64 {
	v, n := binary.Uvarint(p.rest)
	p.advance(n)
	return v
}

func (p *frameReader) int() int64 {
	v, n := binary.Varint(p.rest)
	p.advance(n)
	return v
}

func (p *frameReader) bytes() []byte {
	n := p.uint()
	if n > uint64(len(p.rest)) {
		p.bad, p.rest = true, nil
		return nil
	}
	b := p.rest[:n:n]
	p.rest = p.rest[n:]
	return b
}
