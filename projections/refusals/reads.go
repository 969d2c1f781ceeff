package refusals

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// Refusal is a group of refused usage events: those of a tenant that were refused for the same code and feature.
type Refusal struct {
	TenantID uuid.UUID           `json:"tenantId"`
	Code     string              `json:"code"`
	Feature  string              `json:"feature"`
	Count    int64               `json:"count"`
	First    time.Time           `json:"first"`
	Last     time.Time           `json:"last"`
	Samples  []events.SeenSample `json:"samples"`
}

// Query selects a page of groups, the last refused first. Empty members select all.
type Query struct {
	TenantID      *uuid.UUID // nil: all tenants, of an operator
	Code, Feature string
	Test          bool // with test tenants, if all are selected
	Limit         int
	After         string
	Wait          query.Wait
}

// Readers of a tenant with a generation of its own see that one, the others the common one.
const readRefusals = `
WITH live AS MATERIALIZED (
  SELECT p.tenant_id, p.generation FROM projection_pointers p WHERE p.live AND p.projection = 'usage_refusals')
SELECT p.tenant_id, p.code, p.feature, p.count, p.first_at, p.last_at, p.samples
FROM (SELECT n.*, sum(pg_column_size(n.samples)) OVER (ORDER BY n.last_at DESC, n.tenant_id, n.code,
n.feature ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING) AS before FROM (
SELECT r.tenant_id, r.code, r.feature, r.count, r.first_at, r.last_at, r.samples
FROM usage_refusals r
WHERE r.generation IN (SELECT generation FROM live)
  AND r.generation = (SELECT live.generation FROM live WHERE live.tenant_id IN (r.tenant_id, '00000000-0000-0000-0000-000000000000')
                      ORDER BY live.tenant_id DESC LIMIT 1)
  AND ($1::uuid IS NULL OR r.tenant_id = $1) AND ($2 = '' OR r.code = $2) AND ($3 = '' OR r.feature = $3)
  AND ($9::boolean OR $1 IS NOT NULL OR r.tenant_id NOT IN (SELECT t.id FROM tenants t WHERE t.mode = 'test'))
  AND ($4::timestamptz IS NULL OR r.last_at < $4 OR r.last_at = $4 AND (r.tenant_id, r.code, r.feature) > ($5::uuid, $6, $7))
ORDER BY r.last_at DESC, r.tenant_id, r.code, r.feature
LIMIT $8) n) p
WHERE coalesce(p.before, 0) < $10
ORDER BY p.last_at DESC, p.tenant_id, p.code, p.feature`

// Refusals lists groups. One that is refused again while the pages are read moves to the first page.
func (r *Reads) Refusals(ctx context.Context, v query.Viewer, q Query) (query.Page[Refusal], error) {
	page := query.Page[Refusal]{Data: []Refusal{}}
	after, err := ParseCursor(q.After)
	if err != nil {
		return page, err
	}
	if !v.Operator {
		q.TenantID = &v.TenantID
	}
	if err := r.Await(ctx, v, q.TenantID, q.Wait); err != nil {
		return page, err
	}
	if !query.Storable(q.Code) || !query.Storable(q.Feature) {
		return page, nil
	}
	limit := query.PageSize(q.Limit)
	args := append([]any{q.TenantID, q.Code, q.Feature}, append(after, limit+1, q.Test, query.PageBytes)...)
	err = r.For(q.Wait).Snapshot(ctx, v, query.New(readRefusals, args, page.Fill(limit, scanRefusal, func(last *Refusal) string {
		return strings.Join([]string{last.Last.Format(time.RFC3339Nano), last.TenantID.String(), last.Code, last.Feature}, "|")
	})))
	return page, err
}

func scanRefusal(rows pgx.Rows) (one Refusal, err error) {
	var samples []byte
	if err = rows.Scan(&one.TenantID, &one.Code, &one.Feature, &one.Count, &one.First, &one.Last, &samples); err == nil {
		err = json.Unmarshal(samples, &one.Samples)
	}
	return one, err
}

// ParseCursor returns the key of a page's last group; nulls for the first page.
func ParseCursor(s string) ([]any, error) {
	if s == "" {
		return []any{nil, uuid.Nil, "", ""}, nil
	}
	parts := strings.Split(s, "|")
	if len(parts) != 4 || !query.Storable(s) {
		return nil, query.ErrCursorInvalid
	}
	at, err := time.Parse(time.RFC3339Nano, parts[0])
	tenant, idErr := uuid.Parse(parts[1])
	if err != nil || idErr != nil {
		return nil, query.ErrCursorInvalid
	}
	return []any{at, tenant, parts[2], parts[3]}, nil
}
