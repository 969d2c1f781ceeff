package server

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// RowReader decodes the values of a row one after the other, in the server's binary
// format, as encodeRow writes them. Written by hand: the relay and each projection read
// every event, and reflection cost twice as much as the rest of reading.
type RowReader struct {
	Values [][]byte
	Err    error
}

// errRowForm means that a row of the log is not in the requested format, e.g., from a
// connection in simple protocol mode.
var errRowForm = errors.New("reading the log: a value is not in the binary format")

// Event reads the columns of a row in the order of eventlog.readColumns, and returns the number of the origin, too.
func (r *RowReader) Event(partition int16) (events.Envelope, int32) {
	e := events.Envelope{Position: events.Position{Partition: partition, Number: r.int64()}}
	e.Previous = r.int64()
	e.RecordedAt, e.OccurredAt = r.time(), r.time()
	e.EventID, e.TenantID = r.id(), r.id()
	e.CorrelationID, e.CausationID = r.optionalID(), r.optionalID()
	e.Epoch = r.int32()
	origin := r.int32()
	e.Subject = events.Subject(r.Int16())
	e.DedupeKey = string(r.next())
	e.Payload = codec.WholePayload(e.Subject, e.DedupeKey, e.OccurredAt, r.next())
	e.Replay = string(r.next())
	e.Withheld, e.WithheldLate = r.bool(), r.bool()
	return e, origin
}

func (r *RowReader) next() []byte {
	if len(r.Values) == 0 {
		r.Err = errRowForm
		return nil
	}
	v := r.Values[0]
	r.Values = r.Values[1:]
	return v
}

// fixed returns a value of a known size, or zeros if its size is different.
func (r *RowReader) fixed(size int) []byte {
	v := r.next()
	if len(v) != size {
		r.Err = errRowForm
		return make([]byte, size)
	}
	return v
}

func (r *RowReader) int64() int64  { return int64(binary.BigEndian.Uint64(r.fixed(8))) }
func (r *RowReader) int32() int32  { return int32(binary.BigEndian.Uint32(r.fixed(4))) }
func (r *RowReader) Int16() int16  { return int16(binary.BigEndian.Uint16(r.fixed(2))) }
func (r *RowReader) bool() bool    { return r.fixed(1)[0] != 0 }
func (r *RowReader) id() uuid.UUID { return uuid.UUID(r.fixed(16)) }

func (r *RowReader) time() time.Time {
	return time.UnixMicro(r.int64() + postgresEpoch)
}

// optionalID is Nil for NULL.
func (r *RowReader) optionalID() uuid.UUID {
	if len(r.Values) > 0 && r.Values[0] == nil {
		r.next()
		return uuid.Nil
	}
	return r.id()
}
