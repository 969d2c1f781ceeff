package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Bounds of the values of a metadata key (docs/how-to/chart-usage.md).
const (
	mostGroupValues = 1000 // with groups of their own, of a tenant and a feature
	longestValue    = 100  // in bytes
	otherValue      = "other"
)

// seriesGroups finds the group of recorded usage in usage_series. It follows from the metadata, from the keys that
// the feature had when the usage was recorded, and from the values that have groups of their own in a generation.
type seriesGroups struct {
	keys   map[string][]groupKeys         // by feature, the latest first
	values map[seriesKey]map[string][]int // generations in which a value has a group of its own
	list   []seriesGroup
	known  map[string]int32 // index in list by text
	of     []int32          // group of the usage at a position; 0: not grouped
}

type groupKeys struct {
	since time.Time
	keys  []string
}

// seriesKey is a metadata key of a tenant's usage of a feature.
type seriesKey struct {
	tenant       uuid.UUID
	feature, key string
}

// seriesGroup holds the values of usage by key. A value that has no group of its own in any generation is rare.
type seriesGroup struct {
	keys   []string
	values []*string // nil: the metadata do not have the key
	rare   []bool
}

func newSeriesGroups() seriesGroups {
	return seriesGroups{keys: map[string][]groupKeys{}, values: map[seriesKey]map[string][]int{}, list: make([]seriesGroup, 1),
		known: map[string]int32{}}
}

const (
	groupKeysSQL   = `SELECT feature, since, keys FROM feature_groupings ORDER BY feature, since DESC`
	groupValuesSQL = `SELECT generation, tenant_id, feature, key, value FROM usage_series_values`
)

// readSeriesGroups reads the keys of all features, and the values of the tenants of a partition.
func readSeriesGroups(ctx context.Context, tx pgx.Tx, p int16) (seriesGroups, error) {
	g := newSeriesGroups()
	var feature, value string
	var one groupKeys
	err := each(ctx, tx, groupKeysSQL, nil, []any{&feature, &one.since, &one.keys}, func() error {
		g.keys[feature] = append(g.keys[feature], groupKeys{one.since, slices.Clone(one.keys)})
		return nil
	})
	if err != nil || len(g.keys) == 0 {
		return g, err
	}
	var generation int
	var key seriesKey
	err = each(ctx, tx, groupValuesSQL, nil, []any{&generation, &key.tenant, &key.feature, &key.key, &value}, func() error {
		if partitionOf(key.tenant) != p {
			return nil
		}
		if g.values[key] == nil {
			g.values[key] = map[string][]int{}
		}
		g.values[key][value] = append(g.values[key][value], generation)
		return nil
	})
	if err != nil {
		return g, fmt.Errorf("read usage_series_values: %w", err)
	}
	return g, nil
}

// add notes the group of a row of recorded usage, at most the head of its partition.
func (g *seriesGroups) add(r *row, s *content, head int64) {
	var keys []string
	for _, one := range g.keys[s.Feature] {
		if !moment(r.recorded).Before(one.since) {
			keys = one.keys
			break
		}
	}
	if len(keys) == 0 || r.position < 1 || r.position > head {
		return
	}
	var metadata map[string]json.RawMessage
	_ = json.Unmarshal(s.Metadata, &metadata) // there may be none
	var group seriesGroup
	var text strings.Builder
	for _, key := range keys {
		value, rare := groupValue(metadata[key]), false
		if value != nil && *value != otherValue && g.values[seriesKey{r.tenant, s.Feature, key}][*value] == nil {
			other := otherValue
			value, rare = &other, true
		}
		group.keys, group.values, group.rare = append(group.keys, key), append(group.values, value), append(group.rare, rare)
		encoded, _ := json.Marshal(value)
		fmt.Fprintf(&text, "%q %s %v ", key, encoded, rare)
	}
	number, ok := g.known[text.String()]
	if !ok {
		number = int32(len(g.list))
		g.list, g.known[text.String()] = append(g.list, group), number
	}
	if more := r.position + 1 - int64(len(g.of)); more > 0 {
		g.of = append(g.of, make([]int32, more)...)
	}
	g.of[r.position] = number
}

// at returns the number of the group of the usage at a position.
func (g *seriesGroups) at(position int64) int32 {
	if position < 0 || position >= int64(len(g.of)) {
		return 0
	}
	return g.of[position]
}

// groupValue returns the text of a member of the metadata, nil if there is none.
func groupValue(raw json.RawMessage) *string {
	var value string
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil
	case raw[0] == '{' || raw[0] == '[' || raw[0] == '"' && json.Unmarshal(raw, &value) != nil:
		value = otherValue
	case raw[0] != '"':
		value = string(raw)
	}
	if len(value) > longestValue || strings.ContainsFunc(value, unicode.IsControl) {
		value = otherValue
	}
	return &value
}

// text returns the group of a figure's usage in a generation, as usage_series stores it.
func (g *seriesGroups) text(f figure, number int32, generation int) string {
	group := &g.list[number]
	values := make(map[string]*string, len(group.keys))
	for i, key := range group.keys {
		value := group.values[i]
		if value != nil && !slices.Contains(g.values[seriesKey{f.tenant, f.feature, key}][*value], generation) {
			other := otherValue
			value = &other
		}
		values[key] = value
	}
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(values) // texts: it cannot fail
	return strings.TrimSuffix(text.String(), "\n")
}

// room reports whether a key has fewer values in a generation than may have groups of their own.
func (g *seriesGroups) room(key seriesKey, generation int) bool {
	n := 0
	for _, in := range g.values[key] {
		if slices.Contains(in, generation) {
			n++
		}
	}
	return n < mostGroupValues
}
