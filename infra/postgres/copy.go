package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// row is an event with its place, ready to be written.
type row struct {
	*events.Pending
	position events.Position
	previous int64
	epoch    int32
	origin   int32
	topic    events.Topic
	recorded time.Time
}

const copyRows = `COPY event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id,
 correlation_id, causation_id, epoch, origin, partition, topic, subject, dedupe_key, payload_hash, payload, replay)
 FROM STDIN (FORMAT binary)`

const copyColumns = 17

var copySignature = []byte("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00")

// postgresEpoch is where the server's timestamps begin, in Unix microseconds.
const postgresEpoch = 946684800_000_000

// encodeRows gives the rows in the binary format of COPY (PostgreSQL's manual,
// "COPY", "Binary Format"): written by hand, since reflection cost more than
// the rest of the client's work on a row.
func encodeRows(dst []byte, rows []row) []byte {
	dst = append(dst, copySignature...)
	for i := range rows {
		r := &rows[i]
		dst = binary.BigEndian.AppendUint16(dst, copyColumns)
		dst = copyInt64(dst, r.position.Number)
		dst = copyInt64(dst, r.previous)
		dst = copyTime(dst, r.recorded)
		dst = copyTime(dst, r.OccurredAt)
		dst = copyBytes(dst, r.EventID[:])
		dst = copyBytes(dst, r.TenantID[:])
		dst = copyOptionalID(dst, r.CorrelationID)
		dst = copyOptionalID(dst, r.CausationID)
		dst = copyInt32(dst, r.epoch)
		dst = copyInt32(dst, r.origin)
		dst = copyInt16(dst, r.position.Partition)
		dst = copyInt16(dst, int16(r.topic))
		dst = copyInt16(dst, int16(r.Subject))
		dst = copyString(dst, r.DedupeKey)
		dst = copyOptional(dst, r.PayloadHash)
		dst = copyBytes(dst, r.Payload)
		if r.Replay == "" {
			dst = copyNull(dst)
		} else {
			dst = copyString(dst, r.Replay)
		}
	}
	return binary.BigEndian.AppendUint16(dst, 0xffff)
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

// writeRows copies the rows into the log.
func writeRows(ctx context.Context, conn *pgx.Conn, rows []row) error {
	if len(rows) == 0 {
		return nil
	}
	buf := encodeRows(make([]byte, 0, len(rows)*512), rows)
	tag, err := conn.PgConn().CopyFrom(ctx, bytes.NewReader(buf), copyRows)
	if err != nil {
		return fmt.Errorf("copying %d events into the log: %w", len(rows), err)
	}
	if tag.RowsAffected() != int64(len(rows)) {
		return fmt.Errorf("copying into the log: %d rows of %d", tag.RowsAffected(), len(rows))
	}
	return nil
}
