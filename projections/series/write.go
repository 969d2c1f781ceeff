package series

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// upsertHours adds a batch's sums to the table.
//
//go:embed add.sql
var upsertHours string

const keepValues = `
INSERT INTO usage_series_values (generation, tenant_id, feature, key, value)
SELECT $1::int, n.tenant_id, n.feature, n.key, n.value
FROM unnest($2::uuid[], $3::text[], $4::text[], $5::text[]) AS n (tenant_id, feature, key, value)`

// write adds the sums to the generation's rows, each table in one statement.
func (s *State) write(ctx context.Context, tx pgx.Tx, generation int) error {
	if len(s.hours) == 0 {
		return nil
	}
	var c hourColumns
	for _, key := range slices.SortedFunc(maps.Keys(s.hours), hourKey.compare) {
		c.add(key, s.hours[key])
	}
	b := new(pgx.Batch)
	b.Queue(upsertHours, generation, c.partitions, c.tenants, c.features, c.hours, c.groups, c.amounts, c.events)
	if added := s.added(); len(added.values) > 0 {
		b.Queue(keepValues, generation, added.tenants, added.features, added.keys, added.values)
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("add to the series: %w", err)
	}
	return nil
}

// added lists the values that the batch adds, in the order of their keys.
func (s *State) added() (c valueColumns) {
	for _, key := range slices.SortedFunc(maps.Keys(s.values), valueKey.compare) {
		for _, value := range s.values[key].added {
			c.add(key, value)
		}
	}
	return c
}

func (k valueKey) compare(o valueKey) int {
	return cmp.Or(bytes.Compare(k.tenant[:], o.tenant[:]), cmp.Compare(k.feature, o.feature), cmp.Compare(k.key, o.key))
}

// hourColumns are the rows of the upsert, column by column.
type hourColumns struct {
	partitions                []int16
	tenants                   []uuid.UUID
	features, groups, amounts []string
	hours                     []time.Time
	events                    []int64
}

func (c *hourColumns) add(key hourKey, sum *hourSum) {
	c.partitions = append(c.partitions, sum.partition)
	c.tenants, c.features = append(c.tenants, key.tenant), append(c.features, key.feature)
	c.hours, c.groups = append(c.hours, key.hour), append(c.groups, key.group)
	c.amounts, c.events = append(c.amounts, sum.amount.String()), append(c.events, sum.events)
}

// Statements returns the SQL of the fold that runs for each batch, in sessions that keep their
// plans: a plan must not depend on the tables' contents when it is made.
func Statements() map[string]string {
	return map[string]string{"series": upsertHours, "groupings": readGroupings, "usage of groups": readUsage,
		"known values": readKnownValues, "values": countValues, "new values": keepValues}
}
