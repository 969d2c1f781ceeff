package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// Bounds of one statement of a scan.
const (
	usageChunk = 1000 // events whose facts are read
	walkedRows = 5000 // rows walked for them
)

// usageScan goes down a tenant's part of the log, newest first.
//
// Down to the position that has passed the aggregates it looks at each recorded event. Below, an
// event is AGGREGATED unless it was rejected, parked or has failed just now: for another
// status it looks at those exceptions alone.
type usageScan struct {
	query      *EventQuery
	stands     *usageStanding
	below      int64 // the next event is below this position
	until      time.Time
	passed     int64   // -1: each event is looked at
	exceptions []int64 // parked and failing events up to passed, newest first
}

// fill adds rows to a page until it is full, the log ends or the time is over.
func (s *usageScan) fill(ctx context.Context, tx pgx.Tx, page *query.Page[UsageEventRow]) error {
	// One more than the limit shows if a page follows.
	for chunk := s.query.Limit + 1; s.below > 1; chunk = min(2*chunk, usageChunk) {
		positions, next, err := s.candidates(ctx, tx, chunk)
		if err != nil {
			return err
		}
		rows, err := s.read(ctx, tx, positions)
		if err != nil {
			return err
		}
		for i := range rows {
			if !s.wants(&rows[i]) {
				continue
			}
			if len(page.Data) == s.query.Limit {
				page.Next = cursorBelow(page.Data[s.query.Limit-1].Position.Number)
				return nil
			}
			page.Data = append(page.Data, rows[i])
		}
		if s.below = next; time.Now().After(s.until) {
			break
		}
	}
	page.Next = cursorBelow(s.below)
	return nil
}

func (s *usageScan) wants(u *UsageEventRow) bool {
	q := s.query
	return (q.Status == "" || u.Status == q.Status) && (q.Feature == "" || u.Feature == q.Feature) &&
		(q.From == nil || !u.Timestamp.Before(*q.From)) && (q.To == nil || u.Timestamp.Before(*q.To))
}

// maxExceptions bounds the parked events that a scan collects first. If there are more, it looks at
// each event instead.
const maxExceptions = 1000

const readParked = `
SELECT DISTINCT d.producer_event_id FROM dead_letter_events d
WHERE d.generation = $1 AND d.tenant_id = $2 AND d.stage NOT IN ('INGESTION', 'VALIDATION') LIMIT $3`

// Recorded events by the keys $3, and those that the failed positions $4 belong to.
var readExceptions = events.SQL(`
SELECT l.position FROM unnest($3::text[]) AS given (key) CROSS JOIN LATERAL (
  SELECT e.position FROM event_log e WHERE e.partition = $1 AND e.tenant_id = $2 AND e.dedupe_key = given.key LIMIT 1) l
UNION
SELECT CASE l.subject WHEN {usage.event.validated} THEN (l.payload ->> 'rawPosition')::bigint ELSE l.position END
FROM unnest($4::bigint[]) AS given (number) CROSS JOIN LATERAL (
  SELECT e.position, e.subject, e.payload FROM event_log e WHERE e.partition = $1 AND e.position = given.number LIMIT 1) l
WHERE l.subject IN ({usage.event.recorded}, {usage.event.admitted}, {usage.event.corrected}, {usage.event.retracted},
{usage.event.validated})`)

// usageDuplicate is the status of events that were answered and not recorded.
const usageDuplicate = "DUPLICATE"

// open decides which events a scan for a status looks at.
func (s *usageScan) open(ctx context.Context, tx pgx.Tx) error {
	s.passed = -1
	switch s.query.Status {
	case "":
		return nil
	case projections.UsageAggregated: // a verdict is behind its event
		s.below = min(s.below, s.stands.aggregated)
		return nil
	case usageDuplicate:
		s.below = 0
		return nil
	}
	if !s.stands.lettersComplete {
		return nil
	}
	tenant := s.query.TenantID
	var names []string
	err := query.Run(ctx, tx, query.New(readParked, []any{s.stands.letterGeneration, tenant, maxExceptions + 1},
		query.Each(func(rows pgx.Rows) error {
			var name string
			err := rows.Scan(&name)
			names = append(names, events.KeyUsage(name))
			return err
		})))
	if err != nil || len(names) > maxExceptions {
		return err
	}
	err = query.Run(ctx, tx, query.New(readExceptions, []any{events.PartitionOf(tenant), tenant, names, s.stands.failing},
		query.Values(&s.exceptions)))
	slices.SortFunc(s.exceptions, func(a, b int64) int { return cmp.Compare(b, a) })
	s.passed = s.stands.passed
	return err
}

// candidates returns positions of recorded usage, newest first, and the position below which the
// scan continues; 1 at the beginning of the log.
func (s *usageScan) candidates(ctx context.Context, tx pgx.Tx, chunk int) ([]int64, int64, error) {
	if s.below > s.passed+1 {
		return s.walk(ctx, tx, chunk)
	}
	return s.exceptional(ctx, tx, chunk)
}

const readUsageWalk = `SELECT positions, next_below FROM usage_walk($1, $2, $3, $4, $5, $6, $7, $8, $9)`

// walk looks at each recorded event above passed.
func (s *usageScan) walk(ctx context.Context, tx pgx.Tx, chunk int) (found []int64, next int64, err error) {
	q := s.query
	args := []any{events.PartitionOf(q.TenantID), q.TenantID, s.below, max(s.passed+1, 1), q.Feature, q.From, q.To, chunk, walkedRows}
	err = query.Run(ctx, tx, query.New(readUsageWalk, args, query.Each(func(rows pgx.Rows) error { return rows.Scan(&found, &next) })))
	return found, next, err
}

const readRejectedPositions = `SELECT rejected_positions($1, $2, $3)`

// rejected returns the positions of rejected events, unless the status excludes them.
func (s *usageScan) rejected(ctx context.Context, tx pgx.Tx, chunk int) (found []int64, err error) {
	if s.query.Status == projections.UsageDeadLettered {
		return nil, nil
	}
	err = query.Run(ctx, tx, query.New(readRejectedPositions, []any{s.query.TenantID, s.below, chunk},
		query.Values(&found)))
	return found, err
}

// exceptional looks at exceptions up to passed.
func (s *usageScan) exceptional(ctx context.Context, tx pgx.Tx, chunk int) ([]int64, int64, error) {
	found, err := s.rejected(ctx, tx, chunk)
	next := int64(1)
	if len(found) == chunk {
		next = found[chunk-1]
	}
	for _, position := range s.exceptions {
		if position < s.below && position >= next {
			found = append(found, position)
		}
	}
	slices.SortFunc(found, func(a, b int64) int { return cmp.Compare(b, a) })
	return slices.Compact(found), next, err
}

// The events at the positions $2, newest first, with the facts of their status: the verdict and
// the last rejection by their keys, $3 and between $4 and $5, and their dead letters. LIMIT 1
// makes the planner look up each key by the whole index, even if outdated statistics say
// that the tenant has hardly any rows. OFFSET 0 makes it sort the rejections of an event: it
// would walk the log backwards otherwise, until it meets the last one.
const readUsageEvents = `
WITH page AS MATERIALIZED (
  SELECT l.position, l.recorded_at, l.payload, l.payload ->> 'eventId' AS event_id, u.verdict, u.after, u.before
  FROM unnest($2::bigint[], $3::text[], $4::text[], $5::text[]) AS u (position, verdict, after, before)
  CROSS JOIN LATERAL (SELECT e.*, e.payload FROM event_log e WHERE e.partition = $1 AND e.position = u.position LIMIT 1) l)
SELECT p.position, p.recorded_at, p.payload, coalesce(v.position, 0), x.payload,
       (SELECT json_agg(json_build_object('stage', d.stage, 'status', d.status, 'topic', d.topic, 'consumer',
       coalesce(d.details ->> 'consumer', '')))
        FROM dead_letter_events d WHERE d.generation = $7 AND d.tenant_id = $6 AND d.producer_event_id = p.event_id)
FROM page p
LEFT JOIN LATERAL (
  SELECT e.position FROM event_log e
  WHERE e.partition = $1 AND e.tenant_id = $6 AND e.dedupe_key = p.verdict
  LIMIT 1) v ON true
LEFT JOIN LATERAL (
  SELECT r.payload FROM (
    SELECT e.position, e.payload FROM event_log e
    WHERE e.partition = $1 AND e.tenant_id = $6 AND e.dedupe_key > p.after AND e.dedupe_key < p.before
    OFFSET 0) r
  ORDER BY r.position DESC
  LIMIT 1) x ON true
ORDER BY p.position DESC`

func (s *usageScan) read(ctx context.Context, tx pgx.Tx, positions []int64) ([]UsageEventRow, error) {
	if len(positions) == 0 {
		return nil, nil
	}
	verdicts, rejections := make([]string, len(positions)), make([]keyRange, len(positions))
	for i, number := range positions {
		verdicts[i], rejections[i] = events.KeyValidated(number), rejectionsOf(number)
	}
	after, before := endsOf(rejections)
	partition := events.PartitionOf(s.query.TenantID)
	args := []any{partition, positions, verdicts, after, before, s.query.TenantID, s.stands.letterGeneration}
	var list []UsageEventRow
	err := query.Run(ctx, tx, query.New(readUsageEvents, args, query.Each(func(rows pgx.Rows) error {
		u, err := s.scan(rows, partition)
		list = append(list, u)
		return err
	})))
	return list, err
}

func (s *usageScan) scan(row pgx.Rows, partition int16) (UsageEventRow, error) {
	u := UsageEventRow{Position: events.Position{Partition: partition}}
	facts := usageFacts{aggregated: s.stands.aggregated, failing: s.stands.failing}
	var payload, rejection, letters []byte
	if err := row.Scan(&u.Position.Number, &u.RecordedAt, &payload, &facts.validated, &rejection, &letters); err != nil {
		return u, err
	}
	var usage struct {
		events.Usage
		CorrectionRef string `json:"correctionRef"`
	}
	var rejected events.Rejected
	err := errors.Join(json.Unmarshal(payload, &usage), query.UnmarshalOptional(rejection, &rejected),
		query.UnmarshalOptional(letters, &facts.letters))
	if err != nil {
		return u, fmt.Errorf("read what stands at %s: %w", u.Position, err)
	}
	facts.recorded, facts.rejected = u.Position.Number, rejection != nil
	u.EventID, u.Type, u.Feature, u.Amount, u.Timestamp = usage.EventID, usage.Type, usage.Feature, usage.Amount, usage.Timestamp.UTC()
	u.CorrectionRef = usage.CorrectionRef
	u.Status = facts.status()
	if u.Status == projections.UsageRejected {
		u.Code, u.Reason = rejected.Code, rejected.Reason
	}
	return u, nil
}
