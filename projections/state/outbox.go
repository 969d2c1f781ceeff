package state

import (
	"time"

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
	Unpublished              int64      `json:"unpublished" example:"1200"`
	OldestUnpublishedAt      *time.Time `json:"oldestUnpublishedAt"`
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
	Unpublished              int64           `json:"unpublished" example:"1200"`
	OldestUnpublishedAt      *time.Time      `json:"oldestUnpublishedAt"`
	OldestUnpublishedSeconds float64         `json:"oldestUnpublishedSeconds" doc:"Its age; 0 if all events were published." example:"3.2"`
	Owner                    *string         `json:"owner" example:"host-4711-a1b2c3"`
	Leased                   bool            `json:"leased" doc:"Whether the lease is in force."`
	LeaseUntil               *time.Time      `json:"leaseUntil"`
	Attempts                 int             `json:"attempts"`
	LastError                *string         `json:"lastError" example:"publishing to usage.raw: no broker answers"`
	LastFailedAt             *time.Time      `json:"lastFailedAt" doc:"When an attempt last failed, also if a later one succeeded."`
}

// A rewind moves the cursor back; furthest is the cursor before it. The oldest event is read for each cursor (LATERAL): a statement without
// parameters keeps the plan that a session made while the log was empty, which as a join reads all of it.
const outboxSQL = `
SELECT h.partition, h.position, c.position, greatest(h.position - c.position, 0), greatest(h.position - greatest(c.position, c.furthest),
0),
       l.recorded_at, greatest(coalesce(extract(epoch FROM now() - l.recorded_at), 0), 0)::float8,
       c.owner, c.owner IS NOT NULL AND c.lease_until >= now(), CASE WHEN c.owner IS NOT NULL
       AND isfinite(c.lease_until) THEN c.lease_until END,
       c.attempts, c.last_error, c.last_attempt_at
FROM log_heads h JOIN relay_cursors c USING (partition)
LEFT JOIN LATERAL (SELECT recorded_at FROM event_log_rows
  WHERE partition = h.partition AND position = greatest(c.position, c.furthest) + 1 LIMIT 1) l ON true
ORDER BY h.partition`

// Statement reads the outbox of all partitions.
func (o *Outbox) Statement() query.Statement {
	o.Partitions = make([]OutboxPartition, 0, events.Partitions)
	return query.New(outboxSQL, nil, query.Each(func(rows pgx.Rows) error {
		var p OutboxPartition
		err := rows.Scan(&p.Partition, &p.Head.Number, &p.Cursor.Number, &p.LagEvents, &p.Unpublished, &p.OldestUnpublishedAt,
			&p.OldestUnpublishedSeconds, &p.Owner, &p.Leased, &p.LeaseUntil, &p.Attempts, &p.LastError, &p.LastFailedAt)
		p.Head.Partition, p.Cursor.Partition = p.Partition, p.Partition
		o.Partitions = append(o.Partitions, p)
		o.Totals.add(&p)
		return err
	}))
}

// Recorded returns the number of events in the log.
func (o *Outbox) Recorded() (n int64) {
	for i := range o.Partitions {
		n += o.Partitions[i].Head.Number
	}
	return n
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
