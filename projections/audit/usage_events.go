package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// EventQuery asks for a tenant's usage events by feature, status and time of
// usage in [From, To); "" and nil are all.
type EventQuery struct {
	TenantID uuid.UUID
	Feature  string
	Status   string
	From, To *time.Time
	Limit    int
	After    string
	Wait     query.Wait
}

// UsageEventRow is a usage event with its status. Code and Reason are those of the last
// rejection, if Status is REJECTED by the validator.
type UsageEventRow struct {
	EventID    string          `json:"eventId"`
	Type       string          `json:"type"`
	Feature    string          `json:"feature"`
	Amount     int64           `json:"amount"`
	Timestamp  time.Time       `json:"timestamp"`
	Status     string          `json:"status"`
	Code       string          `json:"code,omitempty"`
	Reason     string          `json:"reason,omitempty"`
	Position   events.Position `json:"position"`
	RecordedAt time.Time       `json:"recordedAt"`
}

// UsageEventPage is a page. It can hold fewer rows than requested, even zero, and
// still have a Next: one page scans a bounded part of the log.
type UsageEventPage struct {
	Data []UsageEventRow
	Next string
}

// The newest usage below $2 and not below $3, with the facts of its status: the
// verdict and the last rejection by their keys ('0' is the character after '/'),
// and its dead letters. occurred_at of a recorded event is the time of usage.
// LIMIT 1 makes the planner look up each key by the whole index, even if outdated
// statistics say that the tenant has hardly any rows.
const readUsageEvents = `
WITH page AS MATERIALIZED (
  SELECT l.position, l.recorded_at, l.payload, l.payload ->> 'eventId' AS event_id
  FROM usage_positions($1, $4, $2, $3, $5, $6, $7, $8) u (position)
  CROSS JOIN LATERAL (SELECT e.*, e.payload FROM event_log e WHERE e.partition = $1 AND e.position = u.position LIMIT 1) l)
SELECT p.position, p.recorded_at, p.payload, coalesce(v.position, 0), x.payload,
       (SELECT json_agg(json_build_object('stage', d.stage, 'status', d.status, 'topic', d.topic, 'consumer', coalesce(d.details ->> 'consumer', '')))
        FROM dead_letter_events d WHERE d.generation = $9 AND d.tenant_id = $4 AND d.producer_event_id = p.event_id)
FROM page p
LEFT JOIN LATERAL (
  SELECT v.position FROM event_log v
  WHERE v.partition = $1 AND v.tenant_id = $4 AND v.dedupe_key = 'v/' || p.position
  LIMIT 1) v ON true
LEFT JOIN LATERAL (
  SELECT r.payload FROM event_log r
  WHERE r.partition = $1 AND r.tenant_id = $4 AND r.dedupe_key > 'x/' || p.position || '/' AND r.dedupe_key < 'x/' || p.position || '0'
  ORDER BY r.position DESC
  LIMIT 1) x ON true
ORDER BY p.position DESC`

// UsageEvents lists from the log, newest first.
func (r *Reads) UsageEvents(ctx context.Context, v query.Viewer, q EventQuery) (UsageEventPage, error) {
	q.Limit = query.PageSize(q.Limit)
	before := int64(math.MaxInt64)
	if q.After != "" {
		var err error
		if before, err = strconv.ParseInt(q.After, 10, 64); err != nil || before < 1 {
			return UsageEventPage{}, query.ErrCursorInvalid
		}
	}
	if err := r.AwaitAll(ctx, v, q.TenantID, q.Wait); err != nil {
		return UsageEventPage{}, err
	}
	page := UsageEventPage{Data: []UsageEventRow{}}
	err := r.For(q.Wait).Within(ctx, v, func(tx pgx.Tx) error {
		var stands usageStanding
		if err := query.Run(ctx, tx, usageStandingOf(q.TenantID, &stands)); err != nil {
			return err
		}
		s := usageScan{query: &q, stands: &stands, before: min(before, stands.head+1)}
		s.floor = max(1, s.before-scannedRows)
		return s.fill(ctx, tx, &page)
	})
	if err != nil {
		return UsageEventPage{}, err
	}
	return page, nil
}

// usageChunk bounds the rows read in one statement if most of them may have
// another status than the requested one.
const usageChunk = 1000

// usageScan goes down a tenant's part of the log.
type usageScan struct {
	query  *EventQuery
	stands *usageStanding
	before int64 // to be scanned: [floor, before)
	floor  int64
}

func (s *usageScan) fill(ctx context.Context, tx pgx.Tx, page *UsageEventPage) error {
	for s.before > s.floor {
		chunk := s.query.Limit + 1 - len(page.Data) // one more shows if a page follows
		if s.query.Status != "" {
			chunk = usageChunk
		}
		rows, err := s.read(ctx, tx, chunk)
		if err != nil {
			return err
		}
		for i := range rows {
			if s.query.Status != "" && rows[i].Status != s.query.Status {
				continue
			}
			if len(page.Data) == s.query.Limit {
				page.Next = cursorBelow(page.Data[s.query.Limit-1].Position.Number)
				return nil
			}
			page.Data = append(page.Data, rows[i])
		}
		if len(rows) < chunk {
			break
		}
		s.before = rows[len(rows)-1].Position.Number
	}
	page.Next = cursorBelow(s.floor)
	return nil
}

// cursorBelow continues below a position; "" at the log's beginning.
func cursorBelow(position int64) string {
	if position <= 1 {
		return ""
	}
	return strconv.FormatInt(position, 10)
}

func (s *usageScan) read(ctx context.Context, tx pgx.Tx, limit int) ([]UsageEventRow, error) {
	partition := events.PartitionOf(s.query.TenantID)
	args := []any{partition, s.before, s.floor, s.query.TenantID, s.query.Feature, s.query.From, s.query.To, limit, s.stands.letterGeneration}
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
	var usage events.Usage
	var rejected events.Rejected
	err := errors.Join(json.Unmarshal(payload, &usage), query.UnmarshalOptional(rejection, &rejected), query.UnmarshalOptional(letters, &facts.letters))
	if err != nil {
		return u, fmt.Errorf("read what stands at %s: %w", u.Position, err)
	}
	facts.recorded, facts.rejected = u.Position.Number, rejection != nil
	u.EventID, u.Type, u.Feature, u.Amount, u.Timestamp = usage.EventID, usage.Type, usage.Feature, usage.Amount, usage.Timestamp.UTC()
	u.RecordedAt, u.Status = u.RecordedAt.UTC(), facts.status()
	if u.Status == projections.UsageRejected {
		u.Code, u.Reason = rejected.Code, rejected.Reason
	}
	return u, nil
}
