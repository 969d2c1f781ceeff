package events

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"strconv"
	"sync/atomic"

	"github.com/google/uuid"
)

// Partitions is the number of log partitions, for ever: a tenant's partition
// follows from its id, and log partition p is Kafka partition p of every topic.
const Partitions = 32

// Platform is the tenant id of events that belong to no tenant (features, plans,
// operator keys). Its wire form is "platform" and its partition is 0.
var Platform = uuid.Nil

// PartitionOf returns the log partition of a tenant: the first byte of the SHA-256
// of its id in text form, modulo 32; 0 for the platform.
func PartitionOf(tenant uuid.UUID) int16 {
	if tenant == Platform {
		return 0
	}
	known := &partitionCache[binary.LittleEndian.Uint16(tenant[14:])%uint16(len(partitionCache))]
	if p := known.Load(); p != nil && p.tenant == tenant {
		return p.partition
	}
	var text [36]byte
	sum := sha256.Sum256(AppendUUID(text[:0], tenant))
	partition := int16(sum[0] % Partitions)
	known.Store(&cachedPartition{tenant, partition})
	return partition
}

// cachedPartition is the partition of a tenant, which never changes.
type cachedPartition struct {
	tenant    uuid.UUID
	partition int16
}

// partitionCache caches recent results of PartitionOf, which a request calls several times.
var partitionCache [1024]atomic.Pointer[cachedPartition]

// Position is an event's place in the log, written "17-4711". Numbers are dense
// from 1 in each partition; 0 means "before the first".
type Position struct {
	Partition int16
	Number    int64
}

func (p Position) String() string { return string(p.Append(make([]byte, 0, 24))) }

// Append appends the form that String writes.
func (p Position) Append(dst []byte) []byte {
	dst = append(strconv.AppendInt(dst, int64(p.Partition), 10), '-')
	return strconv.AppendInt(dst, p.Number, 10)
}

// AppendUUID appends the text form of a UUID: 36 characters.
func AppendUUID(dst []byte, id uuid.UUID) []byte {
	var text [36]byte
	hex.Encode(text[:], id[:4])
	hex.Encode(text[9:], id[4:6])
	hex.Encode(text[14:], id[6:8])
	hex.Encode(text[19:], id[8:10])
	hex.Encode(text[24:], id[10:])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return append(dst, text[:]...)
}

// Stretch is a range of a partition's numbers: After is exclusive, UpTo inclusive.
type Stretch struct {
	Partition   int16
	After, UpTo int64
}

// InlineStretch is a stretch of a topic that a consumer folds in the transaction that appends its end. The transaction
// holds the partition's head, so that Epoch is the epoch of that end, Catalogue the last position of
// TopicCatalogue up to it, and Billing that of TopicBilling.
type InlineStretch struct {
	Stretch
	Epoch              int32
	Catalogue, Billing int64
}

// ParsePosition reads only the form that String writes.
func ParsePosition(s string) (Position, error) {
	p, ok := PositionFrom(s)
	if !ok {
		return Position{}, errors.New("a position is partition-number, e.g. 17-4711")
	}
	return p, nil
}

// PositionFrom reads the form that String writes, from a string or from bytes.
func PositionFrom[T string | []byte](s T) (Position, bool) {
	dash := 0
	for dash < len(s) && s[dash] != '-' {
		dash++
	}
	if dash == len(s) {
		return Position{}, false
	}
	partition, ok := parseDecimal(s[:dash])
	number, ok2 := parseDecimal(s[dash+1:])
	if !ok || !ok2 || partition >= Partitions {
		return Position{}, false
	}
	return Position{int16(partition), number}, true
}

// parseDecimal reads a non-negative number as FormatInt writes it.
func parseDecimal[T string | []byte](s T) (n int64, ok bool) {
	if len(s) == 0 || len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	for i := range len(s) {
		digit := int64(s[i]) - '0'
		if digit < 0 || digit > 9 || n > (math.MaxInt64-digit)/10 {
			return 0, false
		}
		n = n*10 + digit
	}
	return n, true
}

// MarshalText writes the form of the position in JSON.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads the form that MarshalText writes.
func (p *Position) UnmarshalText(b []byte) (err error) {
	*p, err = ParsePosition(string(b))
	return err
}

// RecordPosition is the position in the log of a record's event, with the other members that its headers have.
type RecordPosition struct {
	Position Position
	Previous int64
	Epoch    int32
	Log      uuid.UUID // Nil: written by a release without this header
	EventID  uuid.UUID
	Withheld bool
	Replay   bool
}

// RecordPosition returns the members that the headers of the event's record have.
func (e *Envelope) RecordPosition() RecordPosition {
	return RecordPosition{Position: e.Position, Previous: e.Previous, Epoch: e.Epoch, Log: e.LogID,
		EventID: e.EventID, Withheld: e.Withheld}
}
