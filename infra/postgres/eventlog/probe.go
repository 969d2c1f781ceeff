package eventlog

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
)

// logKey is the unique key of an event in the log.
type logKey struct {
	tenant uuid.UUID
	key    string
}

func keyOf(p *events.Pending) logKey { return logKey{p.TenantID, p.DedupeKey} }

// found is the event that holds a key.
type found struct {
	position events.Position
	eventID  uuid.UUID
	hash     []byte
}

// LATERAL with LIMIT forces one look-up for each key, whatever size of the table the
// planner assumes.
const probeSQL = `SELECT k.tenant_id, k.dedupe_key, l.partition, l.position, l.event_id, l.payload_hash
 FROM unnest($1::smallint[], $2::uuid[], $3::text[]) AS k (partition, tenant_id, dedupe_key)
 CROSS JOIN LATERAL (SELECT l.partition, l.position, l.event_id, l.payload_hash FROM event_log_rows l
  WHERE l.partition = k.partition AND l.tenant_id = k.tenant_id AND l.dedupe_key = k.dedupe_key LIMIT 1) l`

// probe looks up the keys of pending events in one query. Under the heads' locks the
// result stays true until the transaction ends.
func probe(ctx context.Context, q postgres.Queryer, pending []*events.Pending) (map[logKey]found, error) {
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
	known := map[logKey]found{}
	for rows.Next() {
		var k logKey
		var f found
		if err := rows.Scan(&k.tenant, &k.key, &f.position.Partition, &f.position.Number, &f.eventID, &f.hash); err != nil {
			return nil, fmt.Errorf("reading a key: %w", err)
		}
		known[k] = f
	}
	return known, rows.Err()
}
