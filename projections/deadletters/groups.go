package deadletters

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// DeadLetterGroup groups dead letters of one cause: of one fingerprint. Reason is that
// of the newest one, SampleID.
type DeadLetterGroup struct {
	Fingerprint   string             `json:"fingerprint"`
	Stage         string             `json:"stage"`
	Code          string             `json:"code"`
	Reason        string             `json:"reason"`
	Feature       string             `json:"feature"`
	Consumer      string             `json:"consumer"` // the one that failed; "" if no fold was involved
	Count         int64              `json:"count"`
	Statuses      DeadLetterStatuses `json:"statuses"`
	Tenants       int64              `json:"tenants"`
	FirstFailedAt time.Time          `json:"firstFailedAt"`
	LastFailedAt  time.Time          `json:"lastFailedAt"`
	SampleID      uuid.UUID          `json:"sampleId"`
}

// DeadLetterStatuses counts a group's letters by status.
type DeadLetterStatuses struct {
	Failed    int64 `json:"FAILED"`
	Retrying  int64 `json:"RETRYING"`
	Resolved  int64 `json:"RESOLVED"`
	Discarded int64 `json:"DISCARDED"`
}

// liveLetters are the letters that readers see: for a tenant with its own generation those
// of that generation, for the others the common ones.
const liveLetters = `
WITH live AS MATERIALIZED (
  SELECT p.tenant_id, p.generation FROM projection_pointers p WHERE p.live AND p.projection = 'dead_letter_events'),
letters AS (
  SELECT d.* FROM dead_letter_events d
  WHERE d.generation IN (SELECT generation FROM live)
    AND d.generation = (SELECT live.generation FROM live WHERE live.tenant_id IN (d.tenant_id, '00000000-0000-0000-0000-000000000000')
                        ORDER BY live.tenant_id DESC LIMIT 1)
    AND ` + letterFilter + `)`

// A fingerprint covers all columns here except the reason, so any letter of a group
// determines it. Ids of one length compare as their text.
const readDeadLetterGroups = liveLetters + `,
groups AS (
  SELECT d.fingerprint, min(d.stage) AS stage, min(d.code) AS code, min(d.feature) AS feature, coalesce(min(d.details ->> 'consumer'),
  '') AS consumer,
         count(*) AS n, count(*) FILTER (WHERE d.status = 'FAILED') AS failed, count(*) FILTER (WHERE d.status = 'RETRYING') AS retrying,
         count(*) FILTER (WHERE d.status = 'RESOLVED') AS resolved, count(*) FILTER (WHERE d.status = 'DISCARDED') AS discarded,
         count(DISTINCT d.tenant_id) AS tenants, min(d.first_failed_at) AS first_failed_at, max(d.last_failed_at) AS last_failed_at,
         max(d.id::text COLLATE "C")::uuid AS sample
  FROM letters d
  GROUP BY d.fingerprint
  HAVING $12::bigint IS NULL OR (count(*), d.fingerprint) < ($12, $13 COLLATE "C")
  ORDER BY n DESC, d.fingerprint DESC
  LIMIT $14)
SELECT g.fingerprint, g.stage, g.code, s.reason, g.feature, g.consumer, g.n, g.failed, g.retrying, g.resolved, g.discarded,
       g.tenants, g.first_failed_at, g.last_failed_at, g.sample
FROM groups g
CROSS JOIN LATERAL (SELECT x.reason FROM dead_letter_events x WHERE x.generation` + liveOf + ` AND x.id = g.sample LIMIT 1) s
ORDER BY g.n DESC, g.fingerprint DESC`

// DeadLetterGroups groups the letters that DeadLetters would list, the biggest group
// first, for operators.
func (r *Reads) DeadLetterGroups(ctx context.Context, q Query) (query.Page[DeadLetterGroup], error) {
	count, fingerprint, err := ParseGroupCursor(q.After)
	if err != nil {
		return query.Page[DeadLetterGroup]{}, err
	}
	viewer, limit := query.Viewer{Operator: true}, query.PageSize(q.Limit)
	if err := r.Await(ctx, viewer, q.TenantID, q.Wait); err != nil {
		return query.Page[DeadLetterGroup]{}, err
	}
	page := query.Page[DeadLetterGroup]{Data: []DeadLetterGroup{}}
	sql, args := readDeadLetterGroups, append(filterArgs(&q.DeadLetterFilter), count, fingerprint, limit+1)
	if isCounted(&q.DeadLetterFilter) {
		sql, args = readCountedGroups, append(args, countedArgs(&q.DeadLetterFilter)...)
	}
	err = r.For(q.Wait).Snapshot(ctx, viewer, query.New(sql, args, query.Each(func(rows pgx.Rows) error {
		var g DeadLetterGroup
		s := &g.Statuses
		err := rows.Scan(&g.Fingerprint, &g.Stage, &g.Code, &g.Reason, &g.Feature, &g.Consumer, &g.Count, &s.Failed, &s.Retrying,
			&s.Resolved, &s.Discarded,
			&g.Tenants, &g.FirstFailedAt, &g.LastFailedAt, &g.SampleID)
		page.Data = append(page.Data, g)
		return err
	})))
	if err != nil {
		return query.Page[DeadLetterGroup]{}, err
	}
	if len(page.Data) > limit {
		last := page.Data[limit-1]
		page.Data, page.Next = page.Data[:limit], fmt.Sprintf("%d/%s", last.Count, last.Fingerprint)
	}
	return page, nil
}

// ParseGroupCursor reads the size and the fingerprint of a page's last group.
func ParseGroupCursor(s string) (count *int64, fingerprint string, err error) {
	if s == "" {
		return nil, "", nil
	}
	size, fingerprint, ok := strings.Cut(s, "/")
	n, err := strconv.ParseInt(size, 10, 64)
	if !ok || err != nil || !query.Storable(fingerprint) {
		return nil, "", query.ErrCursorInvalid
	}
	return &n, fingerprint, nil
}

const findDeadLetters = liveLetters + `
SELECT d.id, d.tenant_id FROM letters d ORDER BY d.id LIMIT $12`

// FindDeadLetters returns the letters that match a filter, at most limit, for operators.
func (r *Reads) FindDeadLetters(ctx context.Context, f *events.DeadLetterFilter, limit int) ([]domain.DeadLetterRef, error) {
	var refs []domain.DeadLetterRef
	err := r.Snapshot(ctx, query.Viewer{Operator: true}, query.New(findDeadLetters, append(filterArgs(f), limit),
		query.Each(func(rows pgx.Rows) error {
			var ref domain.DeadLetterRef
			err := rows.Scan(&ref.ID, &ref.TenantID)
			refs = append(refs, ref)
			return err
		})))
	return refs, err
}
