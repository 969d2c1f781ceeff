package audit

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// Outbox describes how far the relay has published the log.
type Outbox struct {
	Totals     OutboxTotals      `json:"totals"`
	Partitions []OutboxPartition `json:"partitions"`
}

// OutboxTotals sums the partitions.
type OutboxTotals struct {
	LagEvents                int64      `json:"lagEvents" doc:"Events that the relay's cursors have not passed." example:"1200"`
	Unpublished              int64      `json:"unpublished" doc:"Of these, events that were never published. The others are published again, after a rewind." example:"1200"`
	OldestUnpublishedAt      *time.Time `json:"oldestUnpublishedAt" doc:"When the oldest event that was never published was recorded; null if all were published."`
	OldestUnpublishedSeconds float64    `json:"oldestUnpublishedSeconds" doc:"Its age; 0 if all events were published." example:"3.2"`
	Unleased                 int        `json:"unleased" doc:"Partitions without a lease in force: no instance publishes them."`
	Failing                  int        `json:"failing" doc:"Partitions whose last attempt to publish failed."`
}

// OutboxPartition is the outbox of one log partition. The relay that holds the lease publishes it.
type OutboxPartition struct {
	Partition                int16           `json:"partition" example:"17"`
	Head                     events.Position `json:"head" doc:"Last position of the log."`
	Cursor                   events.Position `json:"cursor" doc:"Last position that the relay has passed."`
	LagEvents                int64           `json:"lagEvents" doc:"Events from the cursor to the head." example:"1200"`
	Unpublished              int64           `json:"unpublished" doc:"Of these, events that were never published. The others are published again, after a rewind." example:"1200"`
	OldestUnpublishedAt      *time.Time      `json:"oldestUnpublishedAt" doc:"When the oldest event that was never published was recorded; null if all were published."`
	OldestUnpublishedSeconds float64         `json:"oldestUnpublishedSeconds" doc:"Its age; 0 if all events were published." example:"3.2"`
	Owner                    *string         `json:"owner" doc:"Instance that holds the lease, or held it last; null if it released the lease." example:"host-4711-a1b2c3"`
	Leased                   bool            `json:"leased" doc:"Whether the lease is in force."`
	LeaseUntil               *time.Time      `json:"leaseUntil" doc:"End of the lease, which the owner extends each second; null without an owner."`
	Attempts                 int             `json:"attempts" doc:"Failed attempts since the cursor last moved, counted at most once a second."`
	LastError                *string         `json:"lastError" doc:"Error of the last failed attempt; null once the cursor has moved." example:"publishing to usage.raw: no broker answers"`
	LastFailedAt             *time.Time      `json:"lastFailedAt" doc:"When an attempt last failed, also if a later one succeeded."`
}

// A rewind moves the cursor back; furthest is the cursor before it. The oldest event is read for each cursor (LATERAL): a statement without
// parameters keeps the plan that a session made while the log was empty, which as a join reads all of it.
const readOutbox = `
SELECT h.partition, h.position, c.position, greatest(h.position - c.position, 0), greatest(h.position - greatest(c.position, c.furthest), 0),
       l.recorded_at, greatest(coalesce(extract(epoch FROM now() - l.recorded_at), 0), 0)::float8,
       c.owner, c.owner IS NOT NULL AND c.lease_until >= now(), CASE WHEN c.owner IS NOT NULL AND isfinite(c.lease_until) THEN c.lease_until END,
       c.attempts, c.last_error, c.last_attempt_at
FROM log_heads h JOIN relay_cursors c USING (partition)
LEFT JOIN LATERAL (SELECT recorded_at FROM event_log_rows
  WHERE partition = h.partition AND position = greatest(c.position, c.furthest) + 1 LIMIT 1) l ON true
ORDER BY h.partition`

// Statements returns the statements on the log that have no parameters, for a test of their plans.
func Statements() map[string]string { return map[string]string{"outbox": readOutbox} }

// Outbox reads all partitions in one snapshot, for operators.
func (r *Reads) Outbox(ctx context.Context) (Outbox, error) {
	o := Outbox{Partitions: make([]OutboxPartition, 0, events.Partitions)}
	err := r.ForSystem().Snapshot(ctx, query.Viewer{Operator: true}, query.New(readOutbox, nil, query.Each(func(rows pgx.Rows) error {
		var p OutboxPartition
		err := rows.Scan(&p.Partition, &p.Head.Number, &p.Cursor.Number, &p.LagEvents, &p.Unpublished, &p.OldestUnpublishedAt,
			&p.OldestUnpublishedSeconds, &p.Owner, &p.Leased, &p.LeaseUntil, &p.Attempts, &p.LastError, &p.LastFailedAt)
		p.Head.Partition, p.Cursor.Partition = p.Partition, p.Partition
		p.OldestUnpublishedAt, p.LeaseUntil, p.LastFailedAt = query.UTC(p.OldestUnpublishedAt), query.UTC(p.LeaseUntil), query.UTC(p.LastFailedAt)
		o.Partitions = append(o.Partitions, p)
		o.Totals.add(&p)
		return err
	})))
	return o, err
}

func (t *OutboxTotals) add(p *OutboxPartition) {
	t.LagEvents += p.LagEvents
	t.Unpublished += p.Unpublished
	if p.OldestUnpublishedAt != nil && (t.OldestUnpublishedAt == nil || p.OldestUnpublishedAt.Before(*t.OldestUnpublishedAt)) {
		t.OldestUnpublishedAt, t.OldestUnpublishedSeconds = p.OldestUnpublishedAt, p.OldestUnpublishedSeconds
	}
	if !p.Leased {
		t.Unleased++
	}
	if p.Attempts > 0 {
		t.Failing++
	}
}

// WithheldRecord is an event whose record was permanently refused: an empty record has its place on the topic.
type WithheldRecord struct {
	Position     events.Position `json:"position" doc:"Of the event in the log."`
	Topic        string          `json:"topic" example:"usage.raw"`
	Subject      string          `json:"subject" doc:"Type of the event." example:"meterplex.usage.event.recorded.v1"`
	TenantID     uuid.UUID       `json:"tenantId"`
	Reason       string          `json:"reason" doc:"Why the record was refused." example:"MESSAGE_TOO_LARGE"`
	WithheldAt   time.Time       `json:"withheldAt"`
	Late         bool            `json:"late" doc:"The service's own consumer had read the event from the log before: only readers outside miss it, and it has no dead letter."`
	DeadLetterID *uuid.UUID      `json:"deadLetterId" doc:"Dead letter of the event; null if late."`
}

// WithheldQuery asks for withheld records. A nil TenantID and Topic 0 mean all.
type WithheldQuery struct {
	TenantID *uuid.UUID
	Topic    events.Topic
	Limit    int
	After    string
}

// lastTopic is beyond the numbers of all topics, with room for those of later releases.
const lastTopic = 31

// A page reads its own rows of each topic, and no others: the index of the topic, or of the tenant, has the order
// of the list.
const (
	withheldColumns = `
SELECT w.partition, w.position, w.topic, coalesce(l.subject, 0), w.tenant_id, w.reason, w.withheld_at, w.late, w.dead_letter_id
FROM (SELECT r.* FROM generate_series($1::int, $2::int) t (topic) CROSS JOIN LATERAL (
        SELECT * FROM withheld_records r WHERE r.topic = t.topic AND (r.withheld_at, r.partition, r.position) < ($3::timestamptz, $4::smallint, $5::bigint)`
	withheldOrder = `
         ORDER BY r.withheld_at DESC, r.partition DESC, r.position DESC LIMIT $6) r
      ORDER BY r.withheld_at DESC, r.partition DESC, r.position DESC LIMIT $6) w
LEFT JOIN event_log_rows l ON l.partition = w.partition AND l.position = w.position
ORDER BY w.withheld_at DESC, w.partition DESC, w.position DESC`

	readWithheld       = withheldColumns + withheldOrder
	readTenantWithheld = withheldColumns + ` AND r.tenant_id = $7` + withheldOrder
)

// Withheld lists withheld records, newest first, for operators.
func (r *Reads) Withheld(ctx context.Context, q WithheldQuery) (query.Page[WithheldRecord], error) {
	at, partition, position, err := withheldAfter(q.After)
	if err != nil {
		return query.Page[WithheldRecord]{}, err
	}
	limit, first, last := query.PageSize(q.Limit), 1, lastTopic
	if q.Topic != 0 {
		first, last = int(q.Topic), int(q.Topic)
	}
	sql, args := readWithheld, []any{first, last, at, partition, position, limit + 1}
	if q.TenantID != nil {
		sql, args = readTenantWithheld, append(args, *q.TenantID)
	}
	page := query.Page[WithheldRecord]{Data: []WithheldRecord{}}
	err = r.Snapshot(ctx, query.Viewer{Operator: true}, query.New(sql, args, query.Each(func(rows pgx.Rows) error {
		w, err := scanWithheld(rows)
		page.Data = append(page.Data, w)
		return err
	})))
	if err != nil {
		return query.Page[WithheldRecord]{}, err
	}
	if len(page.Data) > limit {
		w := &page.Data[limit-1]
		page.Data, page.Next = page.Data[:limit], fmt.Sprintf("%d/%s", w.WithheldAt.UnixMicro(), w.Position)
	}
	return page, nil
}

func scanWithheld(rows pgx.Rows) (w WithheldRecord, err error) {
	var topic events.Topic
	var subject events.Subject
	err = rows.Scan(&w.Position.Partition, &w.Position.Number, &topic, &subject, &w.TenantID, &w.Reason, &w.WithheldAt, &w.Late, &w.DeadLetterID)
	w.Topic, w.WithheldAt = topic.Name(), w.WithheldAt.UTC()
	if w.Topic == "" {
		w.Topic = fmt.Sprintf("topic %d", topic)
	}
	if info, ok := subject.Info(); ok {
		w.Subject = info.Name()
	} else {
		w.Subject = fmt.Sprintf("subject %d", subject)
	}
	return w, err
}

// withheldAfter decodes the place of a page: the time and position of the last record before it.
func withheldAfter(text string) (at any, partition int16, position int64, err error) {
	if text == "" {
		return "infinity", math.MaxInt16, math.MaxInt64, nil
	}
	micros, place, _ := strings.Cut(text, "/")
	n, err := strconv.ParseInt(micros, 10, 64)
	p, parsed := events.PositionFrom(place)
	if err != nil || !parsed {
		return nil, 0, 0, query.ErrCursorInvalid
	}
	return time.UnixMicro(n), p.Partition, p.Number, nil
}
