package verify

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Subjects and topics by their numbers, which are frozen.
const (
	recorded = 1 + iota
	validated
	rejected
	conflicted
	_
	retried
	refused

	publishFailed     = 10
	aggregationFailed = 11
	reaggregated      = 12
	letterRetried     = 14
	letterClosed      = 15
	parkedRecord      = 18

	topicRaw       = 1
	topicValidated = 2
	topicLetters   = 3
	maxTopic       = 16
)

// row is an event as it lies in the log.
type row struct {
	position, previous   int64
	recorded, occurred   int64 // microseconds since the database's epoch
	id, tenant, cause    uuid.UUID
	correlation          uuid.UUID
	epoch, origin        int32
	topic, subject       int16
	key, hash, body, off []byte // off: the header Meterplex-Replay
}

const rowColumns = `position, previous_position, recorded_at, occurred_at, event_id, tenant_id, causation_id, correlation_id,
 epoch, origin, topic, subject, dedupe_key, hash, body, replay`

// read takes the binary form of rowColumns. The row shares their memory.
func (r *row) read(raw [][]byte) error {
	for i, size := range []int{8, 8, 8, 8, 16, 16, 0, 0, 4, 4, 2, 2} {
		if size > 0 && len(raw[i]) != size {
			return fmt.Errorf("column %d of the log has %d bytes", i+1, len(raw[i]))
		}
	}
	r.position, r.previous = int64(binary.BigEndian.Uint64(raw[0])), int64(binary.BigEndian.Uint64(raw[1]))
	r.recorded, r.occurred = int64(binary.BigEndian.Uint64(raw[2])), int64(binary.BigEndian.Uint64(raw[3]))
	r.id, r.tenant = uuid.UUID(raw[4]), uuid.UUID(raw[5])
	r.cause, r.correlation = optional(raw[6]), optional(raw[7])
	r.epoch, r.origin = int32(binary.BigEndian.Uint32(raw[8])), int32(binary.BigEndian.Uint32(raw[9]))
	r.topic, r.subject = int16(binary.BigEndian.Uint16(raw[10])), int16(binary.BigEndian.Uint16(raw[11]))
	r.key, r.hash, r.body, r.off = raw[12], raw[13], raw[14], raw[15]
	return nil
}

func optional(b []byte) uuid.UUID {
	if len(b) != 16 {
		return uuid.Nil
	}
	return uuid.UUID(b)
}

// databaseEpoch is 2000-01-01 in microseconds of Unix.
const databaseEpoch = 946684800_000_000

func moment(micros int64) time.Time { return time.UnixMicro(micros + databaseEpoch).UTC() }

// partitionOf is where a tenant lives: SHA-256 of its id as text, modulo 32.
func partitionOf(tenant uuid.UUID) int16 {
	if tenant == uuid.Nil {
		return 0
	}
	return int16(sha256.Sum256([]byte(tenant.String()))[0] % partitions)
}

// said is what payloads say, of all kinds; a body in short is put into it.
type said struct {
	EventID                 string
	Feature                 string
	Amount                  json.Number
	Count                   int64
	Timestamp               time.Time
	RawPosition             int64
	ValidatedSubscriptionID uuid.UUID
	PeriodKey               string
	DeadLetterID            uuid.UUID
	Attempt                 int
	SourcePosition          int64
	Stage, Status, Topic    string
	FirstHash, ConflictHash string
	Payload                 json.RawMessage
	Validated               *said
}

var errBody = errors.New("its body is in no form that is known")

// says reads the row's body.
func (r *row) says() (said, error) {
	var s said
	if len(r.body) == 0 || r.body[0] != '[' {
		err := json.Unmarshal(r.body, &s)
		return s, err
	}
	var members []json.RawMessage
	if err := json.Unmarshal(r.body, &members); err != nil || len(r.key) < 3 {
		return s, errBody
	}
	var err error
	switch {
	case r.subject == recorded && len(members) >= 2 && len(members) <= 4:
		err = unmarshal(members[:2], &s.Amount, &s.Feature)
		s.EventID = string(r.key[2:])
	case r.subject == validated && len(members) == 6:
		var kind string
		err = unmarshal(members, &s.Amount, &s.Feature, &s.EventID, &s.ValidatedSubscriptionID, &kind, &s.PeriodKey)
		if err == nil {
			_, err = fmt.Sscanf(string(r.key[2:]), "%d", &s.RawPosition)
		}
		s.Count = 1
	default:
		return s, errBody
	}
	s.Timestamp = moment(r.occurred)
	return s, err
}

func unmarshal(members []json.RawMessage, into ...any) error {
	for i, m := range members {
		if err := json.Unmarshal(m, into[i]); err != nil {
			return err
		}
	}
	return nil
}

// payload puts recorded usage together again, as its producer's canonical JSON.
func (r *row) payload() ([]byte, error) {
	if len(r.body) == 0 || r.body[0] != '[' {
		return r.body, nil
	}
	var m []json.RawMessage
	if err := json.Unmarshal(r.body, &m); err != nil || r.subject != recorded || len(m) < 2 || len(m) > 4 || len(r.key) < 3 {
		return nil, errBody
	}
	text := fmt.Sprintf(`{"amount":%s,"eventId":"%s","feature":%s`, m[0], r.key[2:], m[1])
	if len(m) > 2 && string(m[2]) != "null" {
		text += `,"metadata":` + string(m[2])
	}
	if len(m) > 3 {
		text += `,"source":` + string(m[3])
	}
	return []byte(text + `,"timestamp":"` + moment(r.occurred).Format(time.RFC3339Nano) + `","type":"usage"}`), nil
}

// bits is a set of positions.
type bits []uint64

func (b *bits) set(n int64) {
	for int(n>>6) >= len(*b) {
		*b = append(*b, make([]uint64, max(64, len(*b)/4))...)
	}
	(*b)[n>>6] |= 1 << (n & 63)
}

func (b bits) has(n int64) bool { return n >= 0 && int(n>>6) < len(b) && b[n>>6]&(1<<(n&63)) != 0 }
