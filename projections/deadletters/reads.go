package deadletters

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// Query asks for a page of the dead letters that match a filter.
type Query struct {
	events.DeadLetterFilter
	Limit int
	After string
	Wait  query.Wait // needs a tenant: positions are a partition's
}

// filterArgs returns the parameters of letterFilter.
func filterArgs(f *events.DeadLetterFilter) []any {
	return []any{f.Status, f.Stage, f.Reason, f.From, f.To, f.Fingerprint, f.Feature, f.Consumer, f.Topic, f.IDs, f.TenantID}
}

// DeadLetter is an event that failed. Topic, KafkaPartition and KafkaOffset are
// the source event's place on the broker; null if it has no place or it was not
// recorded. Payload and KafkaOffset are looked up for a single dead letter; lists
// omit the payload and have the offset only if it was recorded.
type DeadLetter struct {
	ID             uuid.UUID       `json:"id"`
	TenantID       uuid.UUID       `json:"tenantId"`
	Stage          string          `json:"stage"`
	Status         string          `json:"status"`
	Code           string          `json:"code"`
	Reason         string          `json:"reason"`
	Fingerprint    string          `json:"fingerprint"` // the same for letters of one cause
	Details        json.RawMessage `json:"details,omitempty"`
	EventID        string          `json:"eventId"`
	Feature        string          `json:"feature"`
	SourcePosition events.Position `json:"sourcePosition"`
	Topic          string          `json:"topic"`
	KafkaPartition *int16          `json:"kafkaPartition"`
	KafkaOffset    *int64          `json:"kafkaOffset"`
	Payload        json.RawMessage `json:"payload,omitempty"`
	RetryCount     int             `json:"retryCount"`
	FirstFailedAt  time.Time       `json:"firstFailedAt"`
	LastFailedAt   time.Time       `json:"lastFailedAt"`
}

// letterFilter matches a letter d with the parameters $1 to $11.
const letterFilter = `
      ($1 = '' OR d.status = $1) AND ($2 = '' OR d.stage = $2) AND ($3 = '' OR d.code = $3)
  AND ($4::timestamptz IS NULL OR d.first_failed_at >= $4) AND ($5::timestamptz IS NULL OR d.first_failed_at < $5)
  AND ($6 = '' OR d.fingerprint = $6) AND ($7 = '' OR d.feature = $7)
  AND ($8 = '' OR d.details ->> 'consumer' = $8) AND ($9 = '' OR d.topic = $9)
  AND ($10::uuid[] IS NULL OR d.id = ANY ($10)) AND ($11::uuid IS NULL OR d.tenant_id = $11)`

// listedLetter are the columns of a letter in a list, for scanDeadLetter.
const listedLetter = `
SELECT d.id, d.tenant_id, d.stage, d.status, d.code, d.reason, d.fingerprint, d.details, d.producer_event_id, d.feature,
       d.partition, d.source_position, d.topic, d.kafka_partition, d.kafka_offset, NULL::json,
       d.retry_count, d.first_failed_at, d.last_failed_at`

// Ids are in order of time. Every generation has the same ids, so that a page follows
// the previous one even if the live generation changed in between.
const readTenantDeadLetters = listedLetter + `
FROM dead_letter_events d
WHERE d.tenant_id = $11
  AND d.generation = (
    SELECT p.generation FROM projection_pointers p
    WHERE p.live AND p.projection = 'dead_letter_events' AND p.tenant_id IN ($11, '00000000-0000-0000-0000-000000000000')
    ORDER BY p.tenant_id DESC LIMIT 1)
  AND ` + letterFilter + `
  AND ($12::uuid IS NULL OR d.id < $12)
ORDER BY d.id DESC
LIMIT $13`

// Two branches, since each is sorted by an index of its own: the common generation, and
// those of tenants that have one of their own.
const readAllDeadLetters = `
WITH everyone AS MATERIALIZED (
  SELECT p.generation FROM projection_pointers p
  WHERE p.live AND p.projection = 'dead_letter_events' AND p.tenant_id = '00000000-0000-0000-0000-000000000000'),
own AS MATERIALIZED (
  SELECT p.tenant_id, p.generation FROM projection_pointers p
  WHERE p.live AND p.projection = 'dead_letter_events' AND p.tenant_id <> '00000000-0000-0000-0000-000000000000'),
found AS (
  (SELECT d.* FROM dead_letter_events d
   WHERE d.generation = (SELECT generation FROM everyone) AND d.tenant_id NOT IN (SELECT tenant_id FROM own)
     AND ` + letterFilter + `
     AND ($12::uuid IS NULL OR d.id < $12)
   ORDER BY d.id DESC LIMIT $13)
  UNION ALL
  (SELECT d.* FROM own JOIN dead_letter_events d ON d.generation = own.generation AND d.tenant_id = own.tenant_id
   WHERE ` + letterFilter + `
     AND ($12::uuid IS NULL OR d.id < $12)
   ORDER BY d.id DESC LIMIT $13))` + listedLetter + `
FROM found d
ORDER BY d.id DESC
LIMIT $13`

// A rejection has no payload of its own: it is the recorded event's. The source's offset
// on the broker may have been recorded after it failed.
const readDeadLetter = `
SELECT d.id, d.tenant_id, d.stage, d.status, d.code, d.reason, d.fingerprint, d.details, d.producer_event_id, d.feature,
       d.partition, d.source_position, d.topic, d.kafka_partition, coalesce(d.kafka_offset, b.broker_offset), coalesce(d.payload,
       l.payload),
       d.retry_count, d.first_failed_at, d.last_failed_at
FROM projection_pointers p
JOIN dead_letter_events d ON d.generation = p.generation AND d.id = $1
LEFT JOIN event_log l ON l.partition = d.partition AND l.position = d.source_position
LEFT JOIN LATERAL broker_place(d.partition, l.topic, d.source_position) b ON d.kafka_partition IS NOT NULL
WHERE p.live AND p.projection = 'dead_letter_events' AND p.tenant_id IN (d.tenant_id, '00000000-0000-0000-0000-000000000000')
ORDER BY p.tenant_id DESC
LIMIT 1`

// DeadLetters lists dead letters, newest first.
func (r *Reads) DeadLetters(ctx context.Context, v query.Viewer, q Query) (query.Page[DeadLetter], error) {
	after, err := ParseCursor(q.After)
	if err != nil {
		return query.Page[DeadLetter]{}, err
	}
	limit := query.PageSize(q.Limit)
	if !v.Operator && q.TenantID == nil {
		q.TenantID = &v.TenantID
	}
	sql := readAllDeadLetters
	if q.TenantID != nil {
		sql = readTenantDeadLetters
	}
	if err := r.Await(ctx, v, q.TenantID, q.Wait); err != nil {
		return query.Page[DeadLetter]{}, err
	}
	page := query.Page[DeadLetter]{Data: []DeadLetter{}}
	err = r.For(q.Wait).Snapshot(ctx, v, query.New(sql, append(filterArgs(&q.DeadLetterFilter), after, limit+1),
		page.Fill(limit, scanDeadLetter, func(d *DeadLetter) string { return d.ID.String() })))
	if err != nil {
		return query.Page[DeadLetter]{}, err
	}
	return page, nil
}

func ParseCursor(s string) (*uuid.UUID, error) {
	if s == "" {
		return nil, nil
	}
	id, err := uuid.Parse(s)
	if err != nil {
		return nil, query.ErrCursorInvalid
	}
	return &id, nil
}

// DeadLetter returns one; ErrNotFound if the viewer sees no letter with this id.
func (r *Reads) DeadLetter(ctx context.Context, v query.Viewer, id uuid.UUID) (DeadLetter, error) {
	var found []DeadLetter
	err := r.Snapshot(ctx, v, query.New(readDeadLetter, []any{id}, query.Into(&found, scanDeadLetter)))
	if err != nil {
		return DeadLetter{}, err
	}
	if len(found) == 0 {
		return DeadLetter{}, query.ErrNotFound
	}
	return found[0], nil
}

const readTenantAt = `SELECT tenant_id FROM event_log_rows WHERE partition = $1 AND position = $2`

// DeadLetterAt returns one, as DeadLetter does, once a position of its tenant has passed. If the letter is not folded yet, the tenant is
// that of the event at the position.
func (r *Reads) DeadLetterAt(ctx context.Context, v query.Viewer, id uuid.UUID, w query.Wait) (DeadLetter, error) {
	found, err := r.DeadLetter(ctx, v, id)
	if w.MinPosition == nil || err != nil && (!errors.Is(err, query.ErrNotFound) || w.MinPosition.Number == 0) {
		return found, err
	}
	tenant := found.TenantID
	if err != nil {
		if tenant, err = r.tenantAt(ctx, v, *w.MinPosition); err != nil {
			return DeadLetter{}, err
		}
	}
	if err := r.AwaitAll(ctx, v, tenant, w); err != nil {
		return DeadLetter{}, err
	}
	return r.DeadLetter(ctx, v, id)
}

func (r *Reads) tenantAt(ctx context.Context, v query.Viewer, p events.Position) (tenant uuid.UUID, err error) {
	recorded := false
	err = r.Snapshot(ctx, v, query.New(readTenantAt, []any{p.Partition, p.Number}, query.Each(func(rows pgx.Rows) error {
		recorded = true
		return rows.Scan(&tenant)
	})))
	if err == nil && !recorded {
		err = query.PositionInvalid("minPosition " + p.String() + " is beyond the end of the log")
	}
	return tenant, err
}

func scanDeadLetter(rows pgx.Rows) (d DeadLetter, err error) {
	err = rows.Scan(&d.ID, &d.TenantID, &d.Stage, &d.Status, &d.Code, &d.Reason, &d.Fingerprint, &d.Details, &d.EventID, &d.Feature,
		&d.SourcePosition.Partition, &d.SourcePosition.Number, &d.Topic, &d.KafkaPartition, &d.KafkaOffset, &d.Payload,
		&d.RetryCount, &d.FirstFailedAt, &d.LastFailedAt)
	return d, err
}
