package series

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// groupings are the groupings of the features that have any, the latest first.
type groupings map[string][]grouping

type grouping struct {
	since time.Time
	keys  []string
}

// keys returns the keys of usage recorded at a time.
func (g groupings) keys(feature string, at time.Time) []string {
	for _, one := range g[feature] {
		if !at.Before(one.since) {
			return one.keys
		}
	}
	return nil
}

// load reads the data that the events of a batch are grouped by. Usage of features without keys does not need it.
func load(ctx context.Context, tx pgx.Tx, generation int, batch []events.Envelope) (*State, error) {
	s := &State{recorded: make(map[events.Position]recordedUsage), values: make(map[valueKey]*groupValues),
		hours: make(map[hourKey]*hourSum)}
	var err error
	if s.groupings, err = readAllGroupings(ctx, tx); err != nil || len(s.groupings) == 0 {
		return s, err
	}
	var usage []groupedUsage
	for i := range batch {
		if u, ok := s.grouped(&batch[i]); ok {
			usage = append(usage, u)
		}
	}
	if len(usage) == 0 {
		return s, nil
	}
	if err := s.readRecorded(ctx, tx, usage); err != nil {
		return nil, err
	}
	return s, s.readValues(ctx, tx, generation, usage)
}

const readGroupings = `SELECT feature, since, keys FROM feature_groupings ORDER BY feature, since DESC`

func readAllGroupings(ctx context.Context, tx pgx.Tx) (groupings, error) {
	rows, err := tx.Query(ctx, readGroupings)
	if err != nil {
		return nil, fmt.Errorf("read groupings: %w", err)
	}
	var feature string
	var one grouping
	all := groupings{}
	_, err = pgx.ForEachRow(rows, []any{&feature, &one.since, &one.keys}, func() error {
		all[feature] = append(all[feature], grouping{one.since, append([]string(nil), one.keys...)})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read groupings: %w", err)
	}
	return all, nil
}

// groupedUsage names recorded usage of a feature that has groupings.
type groupedUsage struct {
	tenant  uuid.UUID
	feature string
	at      events.Position
}

// grouped returns the usage of an event that its fold may group.
func (s *State) grouped(e *events.Envelope) (groupedUsage, bool) {
	verdict, _ := verdictIn(e)
	if verdict == nil {
		return groupedUsage{}, false
	}
	v, err := codec.VerdictOf(verdict)
	if err != nil || s.groupings[v.Feature] == nil {
		return groupedUsage{}, false // the fold reports the error
	}
	return groupedUsage{e.TenantID, v.Feature, events.Position{Partition: e.Position.Partition, Number: describedAt(&v)}}, true
}

// describedAt returns the number of the recorded usage whose metadata groups a verdict: that of a correction counts where its target does.
func describedAt(v *events.Validated) int64 {
	if v.CorrectedUsage != nil {
		return v.TargetPosition
	}
	return v.RawPosition
}

// readUsage reads recorded usage by its position. The limit keeps each row to its key.
const readUsage = `
SELECT g.partition, g.number, l.recorded_at, l.payload
FROM unnest($1::smallint[], $2::bigint[]) AS g (partition, number)
CROSS JOIN LATERAL (SELECT e.recorded_at, e.payload FROM event_log_rows e WHERE e.partition = g.partition AND e.position = g.number
LIMIT 1) l`

func (s *State) readRecorded(ctx context.Context, tx pgx.Tx, usage []groupedUsage) error {
	var partitions []int16
	var numbers []int64
	for _, u := range usage {
		partitions, numbers = append(partitions, u.at.Partition), append(numbers, u.at.Number)
	}
	rows, err := tx.Query(ctx, readUsage, partitions, numbers)
	if err != nil {
		return fmt.Errorf("read recorded usage: %w", err)
	}
	var at events.Position
	var recorded recordedUsage
	var payload []byte
	_, err = pgx.ForEachRow(rows, []any{&at.Partition, &at.Number, &recorded.at, &payload}, func() error {
		var u struct {
			Metadata map[string]json.RawMessage `json:"metadata"`
		}
		if json.Unmarshal(payload, &u) != nil {
			u.Metadata = nil // an event that a damaged verdict names: it has no metadata to group by
		}
		s.recorded[at] = recordedUsage{recorded.at, u.Metadata}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read recorded usage: %w", err)
	}
	return nil
}

const (
	readKnownValues = `
SELECT g.number, v.value FROM unnest($2::int[], $3::uuid[], $4::text[], $5::text[], $6::text[]) AS g (number, tenant_id, feature, key,
value)
CROSS JOIN LATERAL (SELECT u.value FROM usage_series_values u
  WHERE u.generation = $1::int AND u.tenant_id = g.tenant_id AND u.feature = g.feature AND u.key = g.key AND u.value = g.value LIMIT 1) v`

	// The limit is the bound of values.
	countValues = `
SELECT g.number, v.count FROM unnest($2::int[], $3::uuid[], $4::text[], $5::text[]) AS g (number, tenant_id, feature, key)
CROSS JOIN LATERAL (SELECT count(*) AS count FROM (SELECT FROM usage_series_values u
  WHERE u.generation = $1::int AND u.tenant_id = g.tenant_id AND u.feature = g.feature AND u.key = g.key LIMIT 1000) one) v`
)

// readValues reads which values of the batch have groups of their own, and how many values each key has.
func (s *State) readValues(ctx context.Context, tx pgx.Tx, generation int, usage []groupedUsage) error {
	var all, tried valueColumns
	seen := make(map[valueKey]map[string]bool)
	for _, u := range usage {
		recorded := s.recorded[u.at]
		for _, name := range s.groupings.keys(u.feature, recorded.at) {
			key := valueKey{u.tenant, u.feature, name}
			if s.values[key] == nil {
				s.values[key], seen[key] = &groupValues{known: make(map[string]bool)}, make(map[string]bool)
				all.add(key, "")
			}
			if value, ok := domain.GroupValue(recorded.metadata[name]); ok && !seen[key][value] {
				seen[key][value] = true
				tried.add(key, value)
			}
		}
	}
	b := new(pgx.Batch)
	b.Queue(readKnownValues, generation, tried.numbers, tried.tenants, tried.features, tried.keys, tried.values)
	b.Queue(countValues, generation, all.numbers, all.tenants, all.features, all.keys)
	results := tx.SendBatch(ctx, b)
	defer results.Close()
	var number, count int
	var value string
	rows, err := results.Query()
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&number, &value}, func() error { s.values[tried.key(number)].known[value] = true; return nil })
	}
	if err == nil {
		rows, err = results.Query()
	}
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&number, &count}, func() error { s.values[all.key(number)].count = count; return nil })
	}
	if err != nil {
		return fmt.Errorf("read the values of groups: %w", err)
	}
	return nil
}

// valueColumns are values, column by column.
type valueColumns struct {
	numbers                []int
	tenants                []uuid.UUID
	features, keys, values []string
}

func (c *valueColumns) add(key valueKey, value string) {
	c.numbers, c.tenants = append(c.numbers, len(c.numbers)), append(c.tenants, key.tenant)
	c.features, c.keys, c.values = append(c.features, key.feature), append(c.keys, key.key), append(c.values, value)
}

func (c *valueColumns) key(number int) valueKey {
	return valueKey{c.tenants[number], c.features[number], c.keys[number]}
}
