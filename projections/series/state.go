package series

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math/big"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// State holds the rows that a batch changes while it is folded, and the data that decides on the groups.
type State struct {
	groupings groupings
	recorded  map[events.Position]recordedUsage
	values    map[valueKey]*groupValues
	hours     map[hourKey]*hourSum
}

// hourKey is the key of a row. Group is a JSON object of values by key; {} if the usage is not grouped.
type hourKey struct {
	tenant  uuid.UUID
	feature string
	hour    time.Time
	group   string
}

func (k hourKey) compare(o hourKey) int {
	return cmp.Or(bytes.Compare(k.tenant[:], o.tenant[:]), cmp.Compare(k.feature, o.feature), k.hour.Compare(o.hour),
		cmp.Compare(k.group, o.group))
}

type hourSum struct {
	partition int16
	amount    big.Int // int64 can overflow within a batch
	events    int64
}

// recordedUsage is the part of a recorded event that the verdict does not have.
type recordedUsage struct {
	at       time.Time // recorded
	metadata map[string]json.RawMessage
}

// valueKey is a metadata key of a tenant's usage of a feature.
type valueKey struct {
	tenant       uuid.UUID
	feature, key string
}

// groupValues are the values of a key that have groups of their own: those of them that the batch has, and the number of all.
type groupValues struct {
	known map[string]bool
	count int
	added []string // by this batch
}

// Count adds a verdict to its hour; a sign of -1 subtracts it.
func (s *State) Count(tenant uuid.UUID, partition int16, v *events.Validated, sign int64) {
	key := hourKey{tenant, v.Feature, v.Timestamp.UTC().Truncate(time.Hour), s.group(tenant, partition, v)}
	sum := s.hours[key]
	if sum == nil {
		sum = &hourSum{partition: partition}
		s.hours[key] = sum
	}
	if amount := big.NewInt(v.Amount); sign < 0 {
		sum.amount.Sub(&sum.amount, amount)
	} else {
		sum.amount.Add(&sum.amount, amount)
	}
	sum.events += sign * v.Count
}

// notGrouped is the group of usage whose feature declared no keys when it was recorded.
const notGrouped = "{}"

// group returns the group of a verdict's usage by the keys that its feature had when the usage was recorded. So
// a verdict, the dead letter about it and its retry have the same group.
func (s *State) group(tenant uuid.UUID, partition int16, v *events.Validated) string {
	if s.groupings[v.Feature] == nil {
		return notGrouped
	}
	usage := s.recorded[events.Position{Partition: partition, Number: describedAt(v)}]
	keys := s.groupings.keys(v.Feature, usage.at)
	if len(keys) == 0 {
		return notGrouped
	}
	group := make(map[string]*string, len(keys))
	for _, key := range keys {
		group[key] = s.value(valueKey{tenant, v.Feature, key}, usage.metadata[key])
	}
	return encodeGroup(group)
}

// encodeGroup writes a group as JSON in the order of the keys.
func encodeGroup(group map[string]*string) string {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(group) // texts: it cannot fail
	return strings.TrimSuffix(text.String(), "\n")
}

// value returns the value of a key that usage is grouped by: its own if it is one of the first 1,000, else
// "other". It is nil if the metadata does not have the key.
func (s *State) value(key valueKey, raw json.RawMessage) *string {
	value, ok := domain.GroupValue(raw)
	if !ok {
		return nil
	}
	if kept := s.values[key]; value != domain.GroupOther && !kept.admit(value) {
		value = domain.GroupOther
	}
	return &value
}

// admit reports whether a value has a group of its own. A new one gets it, up to the bound.
func (k *groupValues) admit(value string) bool {
	switch {
	case k.known[value]:
		return true
	case k.count >= domain.MaxGroupValues:
		return false
	}
	k.known[value] = true
	k.count++
	k.added = append(k.added, value)
	return true
}
