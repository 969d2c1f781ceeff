package refusals

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

const readGroups = `
SELECT r.partition, r.tenant_id, r.code, r.feature, r.count, r.first_at, r.last_at, r.samples
FROM usage_refusals r WHERE r.generation = $1 AND r.tenant_id = ANY ($2::uuid[]) ORDER BY r.tenant_id, r.code, r.feature`

//go:embed write.sql
var writeGroups string

// load reads the groups of the tenants of a batch: most have a few.
func load(ctx context.Context, tx pgx.Tx, generation int, batch []events.Envelope) (*State, error) {
	s := &State{groups: map[Key]*Group{}, counts: map[uuid.UUID]int{}}
	var tenants []uuid.UUID
	for i := range batch {
		if batch[i].Subject == events.RefusalsSeen && !slices.Contains(tenants, batch[i].TenantID) {
			tenants = append(tenants, batch[i].TenantID)
		}
	}
	if len(tenants) == 0 {
		return s, nil
	}
	rows, err := tx.Query(ctx, readGroups, generation, tenants)
	if err != nil {
		return nil, fmt.Errorf("read usage_refusals: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		g, key := new(Group), Key{}
		var samples []byte
		err := rows.Scan(&g.Partition, &key.Tenant, &key.Code, &key.Feature, &g.Count, &g.First, &g.Last, &samples)
		if err == nil {
			err = json.Unmarshal(samples, &g.Samples)
		}
		if err != nil {
			return nil, fmt.Errorf("read usage_refusals: %w", err)
		}
		s.groups[key] = g
		if key.Feature != events.OtherFeatures {
			s.counts[key.Tenant]++
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read usage_refusals: %w", err)
	}
	return s, nil
}

func (k Key) compare(o Key) int {
	return cmp.Or(bytes.Compare(k.Tenant[:], o.Tenant[:]), cmp.Compare(k.Code, o.Code), cmp.Compare(k.Feature, o.Feature))
}

// groupColumns are the rows of the upsert, column by column.
type groupColumns struct {
	partitions               []int16
	tenants                  []uuid.UUID
	codes, features, samples []string
	counts                   []int64
	firsts, lasts            []time.Time
}

// write writes the groups that the batch changed, in the order of their keys.
func (s *State) write(ctx context.Context, tx pgx.Tx, generation int) error {
	var keys []Key
	for key, g := range s.groups {
		if g.changed {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	slices.SortFunc(keys, Key.compare)
	var c groupColumns
	for _, key := range keys {
		g := s.groups[key]
		samples, err := json.Marshal(append([]events.SeenSample{}, g.Samples...))
		if err != nil {
			return fmt.Errorf("write samples: %w", err)
		}
		c.partitions, c.tenants = append(c.partitions, g.Partition), append(c.tenants, key.Tenant)
		c.codes, c.features, c.samples = append(c.codes, key.Code), append(c.features, key.Feature), append(c.samples, string(samples))
		c.counts, c.firsts, c.lasts = append(c.counts, g.Count), append(c.firsts, g.First), append(c.lasts, g.Last)
	}
	_, err := tx.Exec(ctx, writeGroups, generation, c.partitions, c.tenants, c.codes, c.features, c.counts, c.firsts, c.lasts, c.samples)
	if err != nil {
		return fmt.Errorf("write usage_refusals: %w", err)
	}
	return nil
}
