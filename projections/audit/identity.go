package audit

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// Terms are the terms of "accepted = applied + rejected + undecided + unapplied +
// parked", each from its own source.
type Terms struct {
	Accepted  int64 `json:"accepted"`  // counted with each recorded event
	Applied   int64 `json:"applied"`   // verdicts folded into the live aggregates
	Rejected  int64 `json:"rejected"`  // counted with each rejection
	Undecided int64 `json:"undecided"` // recorded beyond the validator's checkpoint
	Unapplied int64 `json:"unapplied"` // validated beyond the aggregator's checkpoint
	Parked    int64 `json:"parked"`    // counted with each failure to publish or fold
	Validated int64 `json:"validated"` // counted with each verdict; no term of the identity
	Missing   int64 `json:"missing"`   // accepted less the other terms: 0, or something is wrong
}

// PartitionTerms are the terms of one log partition.
type PartitionTerms struct {
	Partition int16 `json:"partition"`
	Terms
}

// Identity accounts for every accepted event: accepted = aggregated + rejected + in
// flight + parked. Holds is true if no event is missing in any partition.
type Identity struct {
	Holds      bool             `json:"holds"`
	Accepted   int64            `json:"accepted"`
	Aggregated int64            `json:"aggregated"`
	Rejected   int64            `json:"rejected"`
	InFlight   int64            `json:"inFlight"` // undecided and unapplied
	Parked     int64            `json:"parked"`
	Total      Terms            `json:"total"`
	Partitions []PartitionTerms `json:"partitions"`
}

// Rows are counted from the checkpoints on: few if the consumers keep up. A withheld
// event was counted as parked when its dead letter was appended.
// 1 and 2 are the topics usage.raw and usage.validated.
var readIdentity = events.SQL(`
WITH live AS MATERIALIZED (
  SELECT p.tenant_id, p.period_key, p.flip, p.generation FROM projection_pointers p
  WHERE p.live AND p.projection = '` + projections.ProjectionUsage + `'),
applied AS (
  SELECT a.partition, sum(a.applied_count) AS applied
  FROM usage_aggregates a
  WHERE a.generation IN (SELECT generation FROM live) AND a.generation = (
    SELECT l.generation FROM live l
    WHERE l.tenant_id IN (a.tenant_id, '00000000-0000-0000-0000-000000000000') AND l.period_key IN (a.period_key, '')
    ORDER BY l.flip DESC LIMIT 1)
  GROUP BY a.partition)
SELECT h.partition, h.accepted, coalesce(applied.applied, 0)::bigint, h.rejected, undecided.n, unapplied.n, h.parked, h.validated
FROM log_heads h
JOIN live every ON every.tenant_id = '00000000-0000-0000-0000-000000000000' AND every.period_key = ''
JOIN consumer_checkpoints v ON v.consumer = 'meterplex-usage-validator' AND v.generation = 1 AND v.partition = h.partition
JOIN consumer_checkpoints a ON a.consumer = 'meterplex-usage-aggregator' AND a.generation = every.generation AND a.partition = h.partition
LEFT JOIN applied ON applied.partition = h.partition
CROSS JOIN LATERAL (
  SELECT count(*) AS n FROM event_log l
  WHERE l.partition = h.partition AND l.position > v.position AND l.position <= h.topic_positions[{usage.raw}] AND l.topic = {usage.raw}
    AND NOT EXISTS (SELECT FROM withheld_records w WHERE w.partition = l.partition AND w.position = l.position AND NOT w.late)) undecided
CROSS JOIN LATERAL (
  SELECT count(*) AS n FROM event_log l
  WHERE l.partition = h.partition AND l.position > a.position AND l.position <= h.topic_positions[{usage.validated}]
  AND l.topic = {usage.validated}
    AND NOT EXISTS (SELECT FROM withheld_records w WHERE w.partition = l.partition AND w.position = l.position AND NOT w.late)) unapplied
ORDER BY h.partition`)

// Identity computes the terms in one snapshot, for operators.
func (r *Reads) Identity(ctx context.Context) (Identity, error) {
	identity := Identity{Holds: true, Partitions: make([]PartitionTerms, 0, events.Partitions)}
	err := r.ForSystem().Snapshot(ctx, query.Viewer{Operator: true}, query.New(readIdentity, nil, query.Each(func(rows pgx.Rows) error {
		var p PartitionTerms
		err := rows.Scan(&p.Partition, &p.Accepted, &p.Applied, &p.Rejected, &p.Undecided, &p.Unapplied, &p.Parked, &p.Validated)
		p.Missing = p.Accepted - p.Applied - p.Rejected - p.Undecided - p.Unapplied - p.Parked
		identity.Partitions = append(identity.Partitions, p)
		identity.Total.add(&p.Terms)
		identity.Holds = identity.Holds && p.Missing == 0
		return err
	})))
	if err != nil {
		return Identity{}, err
	}
	if len(identity.Partitions) != events.Partitions {
		return Identity{}, query.ErrNoLiveGeneration
	}
	t := &identity.Total
	identity.Accepted, identity.Aggregated, identity.Rejected, identity.Parked = t.Accepted, t.Applied, t.Rejected, t.Parked
	identity.InFlight = t.Undecided + t.Unapplied
	return identity, nil
}

func (t *Terms) add(o *Terms) {
	t.Accepted += o.Accepted
	t.Applied += o.Applied
	t.Rejected += o.Rejected
	t.Undecided += o.Undecided
	t.Unapplied += o.Unapplied
	t.Parked += o.Parked
	t.Validated += o.Validated
	t.Missing += o.Missing
}
