// Package dedupe finds the events that have a key already: in the log, and in a group that is not written yet.
package dedupe

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
)

// Key is the unique key of an event in the log.
type Key struct {
	Tenant uuid.UUID
	Key    string
}

// KeyOf returns the key of an event.
func KeyOf(p *events.Pending) Key { return Key{p.TenantID, p.DedupeKey} }

// Found is the event that holds a key.
type Found struct {
	Position events.Position
	EventID  uuid.UUID
	Hash     []byte
}

// LATERAL with LIMIT forces one look-up for each key, whatever size of the table the
// planner assumes.
const probeSQL = `SELECT k.tenant_id, k.dedupe_key, l.partition, l.position, l.event_id, l.payload_hash
 FROM unnest($1::smallint[], $2::uuid[], $3::text[]) AS k (partition, tenant_id, dedupe_key)
 CROSS JOIN LATERAL (SELECT l.partition, l.position, l.event_id, l.payload_hash FROM event_log_rows l
  WHERE l.partition = k.partition AND l.tenant_id = k.tenant_id AND l.dedupe_key = k.dedupe_key LIMIT 1) l`

// Probe looks up the keys of pending events in one query. Under the heads' locks the
// result stays true until the transaction ends.
func Probe(ctx context.Context, q postgres.Queryer, pending []*events.Pending) (map[Key]Found, error) {
	partitions := make([]int16, len(pending))
	tenants := make([]uuid.UUID, len(pending))
	keys := make([]string, len(pending))
	for i := range pending {
		partitions[i] = events.PartitionOf(pending[i].TenantID)
		tenants[i], keys[i] = pending[i].TenantID, pending[i].DedupeKey
	}
	rows, err := q.Query(ctx, probeSQL, partitions, tenants, keys)
	if err != nil {
		return nil, fmt.Errorf("looking up keys: %w", err)
	}
	defer rows.Close()
	known := map[Key]Found{}
	for rows.Next() {
		var k Key
		var f Found
		if err := rows.Scan(&k.Tenant, &k.Key, &f.Position.Partition, &f.Position.Number, &f.EventID, &f.Hash); err != nil {
			return nil, fmt.Errorf("reading a key: %w", err)
		}
		known[k] = f
	}
	return known, rows.Err()
}
