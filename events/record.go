package events

import (
	"encoding/binary"
	"errors"
)

// Record is one event on a broker, or an offset at which no event could be read.
type Record struct {
	Topic     Topic
	Partition int16
	Offset    int64 // -1 if the broker returns no offset
	Key       []byte
	Value     []byte // the envelope in JSON; empty for a withheld record
	Headers   []Header
}

// Header is a record header.
type Header struct {
	Key   string
	Value []byte
}

// Record headers of this service. From them a consumer determines the position of a
// record without decoding its value. Numbers are decimal text.
const (
	HeaderSubject  = "mp-subject"  // type and version
	HeaderPosition = "mp-position" // 17-4711
	HeaderPrevious = "mp-previous" // number of the preceding event on the topic
	HeaderEpoch    = "mp-epoch"
	HeaderEventID  = "mp-event-id"
	HeaderLog      = "mp-log" // the log's id: two logs may share a broker by mistake
	HeaderTenant   = "mp-tenant"
	HeaderWithheld = "mp-withheld" // "1": replaces an event that could not be published
	HeaderReplay   = "mp-replay"   // "1": republished for outside readers; the service's consumers skip it
)

// Header returns the value of a header, nil if it is missing.
func (r *Record) Header(key string) []byte {
	for i := range r.Headers {
		if r.Headers[i].Key == key {
			return r.Headers[i].Value
		}
	}
	return nil
}

var errFrame = errors.New("events: not a frame of records")

const frameMagic = 0xA7

// AppendFrame appends the framed records to dst. A frame is the payload of one
// Watermill message on the hot path, which carries one batch.
func AppendFrame(dst []byte, records []Record) []byte {
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
func ParseFrame(frame []byte) ([]Record, error) {
	if len(frame) == 0 || frame[0] != frameMagic {
		return nil, errFrame
	}
	p := frameReader{rest: frame[1:]}
	n := p.uint()
	if n > uint64(len(frame)) {
		return nil, errFrame
	}
	records := make([]Record, 0, n)
	for range n {
		r := Record{Topic: Topic(p.uint()), Partition: int16(p.uint()), Offset: p.int(), Key: p.bytes(), Value: p.bytes()}
		headers := p.uint()
		if headers > uint64(len(p.rest)) {
			return nil, errFrame
		}
		r.Headers = make([]Header, 0, headers)
		for range headers {
			r.Headers = append(r.Headers, Header{string(p.bytes()), p.bytes()})
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
