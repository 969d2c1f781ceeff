package events

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Partitions is the number of log partitions, for ever: a tenant's partition
// follows from its id, and log partition p is Kafka partition p of every topic.
const Partitions = 32

// Platform is the tenant id of what belongs to no tenant (features, plans,
// operator keys). It is written "platform" on the wire and lives in partition 0.
var Platform = uuid.Nil

// PartitionOf gives the log partition that a tenant lives in: the first byte of
// the SHA-256 of its id in text form, modulo 32; 0 for the platform.
func PartitionOf(tenant uuid.UUID) int16 {
	if tenant == Platform {
		return 0
	}
	sum := sha256.Sum256([]byte(tenant.String()))
	return int16(sum[0] % Partitions)
}

// Position is an event's place in the log, written "17-4711". Numbers are dense
// from 1 in each partition; 0 means "before the first".
type Position struct {
	Partition int16
	Number    int64
}

func (p Position) String() string {
	return strconv.Itoa(int(p.Partition)) + "-" + strconv.FormatInt(p.Number, 10)
}

// Stretch is the numbers of a partition after one, up to and with another.
type Stretch struct {
	Partition   int16
	After, UpTo int64
}

// ParsePosition reads the form that String writes, and nothing else.
func ParsePosition(s string) (Position, error) {
	left, right, ok := strings.Cut(s, "-")
	partition, err := strconv.ParseUint(left, 10, 8)
	if !ok || err != nil || partition >= Partitions {
		return Position{}, fmt.Errorf("a position is written partition-number, as in 17-4711")
	}
	number, err := strconv.ParseInt(right, 10, 64)
	p := Position{int16(partition), number}
	if err != nil || number < 0 || p.String() != s {
		return Position{}, fmt.Errorf("a position is written partition-number, as in 17-4711")
	}
	return p, nil
}

// MarshalText writes the position as it stands in JSON.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (p *Position) UnmarshalText(b []byte) (err error) {
	*p, err = ParsePosition(string(b))
	return err
}
