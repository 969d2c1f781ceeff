package events

import (
	"crypto/sha256"
	"encoding/binary"
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
	known := &placed[binary.LittleEndian.Uint16(tenant[14:])%uint16(len(placed))]
	if p := known.Load(); p != nil && p.tenant == tenant {
		return p.partition
	}
	var text [36]byte
	sum := sha256.Sum256(appendUUID(text[:0], tenant))
	partition := int16(sum[0] % Partitions)
	known.Store(&place{tenant, partition})
	return partition
}

// place is a cache entry: the partition of a tenant, which never changes.
type place struct {
	tenant    uuid.UUID
	partition int16
}

// placed caches recent results of PartitionOf, which a request calls several times.
var placed [1024]atomic.Pointer[place]

// Position is an event's place in the log, written "17-4711". Numbers are dense
// from 1 in each partition; 0 means "before the first".
type Position struct {
	Partition int16
	Number    int64
}

func (p Position) String() string { return string(p.append(make([]byte, 0, 24))) }

func (p Position) append(dst []byte) []byte {
	dst = append(strconv.AppendInt(dst, int64(p.Partition), 10), '-')
	return strconv.AppendInt(dst, p.Number, 10)
}

// Stretch is a range of a partition's numbers: After is exclusive, UpTo inclusive.
type Stretch struct {
	Partition   int16
	After, UpTo int64
}

// ParsePosition reads only the form that String writes.
func ParsePosition(s string) (Position, error) {
	p, ok := parsePosition(s)
	if !ok {
		return Position{}, errors.New("a position is written partition-number, as in 17-4711")
	}
	return p, nil
}

func parsePosition[T string | []byte](s T) (Position, bool) {
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
