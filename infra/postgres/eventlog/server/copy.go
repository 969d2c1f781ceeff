package server

import (
	"encoding/binary"
	"io"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// Row is an event with its position, ready to be written.
type Row struct {
	*events.Pending
	Position events.Position
	Previous int64
	Epoch    int32
	Origin   int32 // its number
	Topic    events.Topic
	Recorded time.Time
	Made     *events.Envelope // the event as it is read, once it is made
}

// OwnPayload returns the whole payload in memory of its own.
func (r *Row) OwnPayload() []byte {
	return codec.WholePayload(r.Subject, r.DedupeKey, r.OccurredAt, r.Payload)
}

// CopySQL is the statement that Rows are the data of.
const CopySQL = `COPY event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id,
 correlation_id, causation_id, epoch, origin, partition, topic, subject, dedupe_key, hash, body, replay)
 FROM STDIN (FORMAT binary)`

const copyColumns = 17

var copySignature = []byte("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00")

// postgresEpoch is the zero of the server's timestamps, in Unix microseconds.
const postgresEpoch = 946684800_000_000

// Rows are events in the binary format of COPY (PostgreSQL's manual, "COPY", "Binary
// Format"). They are encoded one piece at a time, so that a group needs no buffer of its whole
// size. Written by hand: reflection cost more than the rest of the client's work on a row.
type Rows struct {
	count int
	rows  []Row
	piece []byte // encoded, after room for a message's header
	read  int    // of the piece
	done  bool
}

// copyHeader is the size of a message's header: its type and length.
const copyHeader = 5

// pieceSize is the size of one message of a COPY.
const pieceSize = 60_000

// NewRows returns rows that are not encoded yet.
func NewRows(rows []Row) *Rows {
	size := copyHeader + len(copySignature)
	for i := 0; i < len(rows) && size < pieceSize; i++ {
		size += len(rows[i].Payload) + rowSize
	}
	return &Rows{count: len(rows), rows: rows, piece: append(make([]byte, copyHeader, size), copySignature...)}
}

// Len is the number of events, also of those that were read.
func (s *Rows) Len() int { return s.count }

// rowSize is an upper bound for the size of a row without its payload.
const rowSize = 300

// next encodes a piece over the previous one, and sets done with the last.
func (s *Rows) next() []byte {
	if s.read > 0 {
		s.piece = s.piece[:copyHeader]
	}
	for len(s.piece) < pieceSize && len(s.rows) > 0 {
		s.piece, s.rows = encodeRow(s.piece, &s.rows[0]), s.rows[1:]
	}
	if len(s.rows) == 0 {
		s.piece, s.done = binary.BigEndian.AppendUint16(s.piece, 0xffff), true
	}
	s.read = copyHeader
	return s.piece
}

// Read implements io.Reader.
func (s *Rows) Read(p []byte) (int, error) {
	if s.read == 0 || s.read == len(s.piece) {
		if s.done {
			return 0, io.EOF
		}
		s.next()
	}
	n := copy(p, s.piece[s.read:])
	s.read += n
	return n, nil
}

func encodeRow(dst []byte, r *Row) []byte {
	dst = binary.BigEndian.AppendUint16(dst, copyColumns)
	dst = copyInt64(dst, r.Position.Number)
	dst = copyInt64(dst, r.Previous)
	dst = copyTime(dst, r.Recorded)
	dst = copyTime(dst, r.OccurredAt)
	dst = copyBytes(dst, r.EventID[:])
	dst = copyBytes(dst, r.TenantID[:])
	dst = copyOptionalID(dst, r.CorrelationID)
	dst = copyOptionalID(dst, r.CausationID)
	dst = copyInt32(dst, r.Epoch)
	dst = copyInt32(dst, r.Origin)
	dst = copyInt16(dst, r.Position.Partition)
	dst = copyInt16(dst, int16(r.Topic))
	dst = copyInt16(dst, int16(r.Subject))
	dst = copyString(dst, r.DedupeKey)
	dst = copyOptional(dst, codec.KeptHash(r.Pending))
	dst = copyBytes(dst, r.Payload)
	if r.Replay == "" {
		return copyNull(dst)
	}
	return copyString(dst, r.Replay)
}

func copyNull(dst []byte) []byte { return binary.BigEndian.AppendUint32(dst, 0xffffffff) }

func copyBytes(dst, b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(b))), b...)
}

func copyString(dst []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(s))), s...)
}

func copyOptional(dst, b []byte) []byte {
	if b == nil {
		return copyNull(dst)
	}
	return copyBytes(dst, b)
}

func copyOptionalID(dst []byte, id uuid.UUID) []byte {
	if id == uuid.Nil {
		return copyNull(dst)
	}
	return copyBytes(dst, id[:])
}

func copyInt64(dst []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(dst, 8), uint64(v))
}

func copyInt32(dst []byte, v int32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(dst, 4), uint32(v))
}

func copyInt16(dst []byte, v int16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(dst, 2), uint16(v))
}

func copyTime(dst []byte, t time.Time) []byte { return copyInt64(dst, t.UnixMicro()-postgresEpoch) }
