package audit

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// Conflict is a known eventId sent with another payload. FirstPosition and
// FirstHash are of the first payload, which counts; At and Position are of the
// record of the conflict. Hashes are SHA-256 in hex.
type Conflict struct {
	EventID       string          `json:"eventId"`
	FirstPosition events.Position `json:"firstPosition"`
	FirstHash     string          `json:"firstHash"`
	ConflictHash  string          `json:"conflictHash"`
	Position      events.Position `json:"position"`
	At            time.Time       `json:"at"`
}

// The keys of a tenant's conflicts are adjacent in the index, k/ and the eventId
// and the hash; '0' is the character after '/'.
const readConflicts = `
SELECT l.position, l.recorded_at, l.dedupe_key, l.payload ->> 'eventId', (l.payload ->> 'rawPosition')::bigint,
       l.payload ->> 'firstHash', l.payload ->> 'conflictHash'
FROM event_log l
WHERE l.partition = $1 AND l.tenant_id = $2 AND l.dedupe_key > 'k/' || $3::text AND l.dedupe_key < 'k0'
ORDER BY l.dedupe_key
LIMIT $4`

// Conflicts lists a tenant's conflicts from the log, in the order of eventId and
// hash. A conflict is listed as soon as it was answered.
func (r *Reads) Conflicts(ctx context.Context, v query.Viewer, tenant uuid.UUID, limit int, after string,
	w query.Wait) (query.Page[Conflict], error) {
	if !query.Storable(after) {
		return query.Page[Conflict]{}, query.ErrCursorInvalid
	}
	if err := r.AwaitAll(ctx, v, tenant, w); err != nil {
		return query.Page[Conflict]{}, err
	}
	limit = query.PageSize(limit)
	page := query.Page[Conflict]{Data: []Conflict{}}
	var keys []string
	partition := events.PartitionOf(tenant)
	err := r.Snapshot(ctx, v, query.Statement{
		SQL:  readConflicts,
		Args: []any{partition, tenant, after, limit + 1},
		Scan: query.Each(func(rows pgx.Rows) error {
			c, key, err := scanConflict(rows, partition)
			page.Data, keys = append(page.Data, c), append(keys, key)
			return err
		}),
	})
	if err != nil {
		return query.Page[Conflict]{}, err
	}
	if len(page.Data) > limit {
		page.Data, page.Next = page.Data[:limit], strings.TrimPrefix(keys[limit-1], "k/")
	}
	return page, nil
}

func scanConflict(rows pgx.Rows, partition int16) (c Conflict, key string, err error) {
	c.Position.Partition, c.FirstPosition.Partition = partition, partition
	err = rows.Scan(&c.Position.Number, &c.At, &key, &c.EventID, &c.FirstPosition.Number, &c.FirstHash, &c.ConflictHash)
	return c, key, err
}
