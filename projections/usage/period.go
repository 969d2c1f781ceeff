package usage

import (
	"context"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// PeriodQuery asks for the figures of all tenants in a period, at most Limit of them after the
// cursor After. Feature filters, "" means all.
type PeriodQuery struct {
	PeriodKey string
	Feature   string
	Test      bool // with test tenants
	Limit     int
	After     string
}

// The generation that readers of a tenant see is that of the latest flip that covers the tenant and the
// period $1; at the flip $2, if it is given. The pointer of all tenants covers everyone, so only
// pointers of one tenant with a later flip show another generation.
const periodGenerations = `
WITH shown AS MATERIALIZED (
  SELECT p.tenant_id, p.generation, p.flip FROM projection_pointers p
  WHERE p.projection = 'usage_aggregates' AND p.period_key IN ($1, '')
    AND CASE WHEN $2::int IS NULL THEN p.live ELSE p.flip <= $2 AND (p.undone_flip IS NULL OR p.undone_flip > $2) END),
common AS MATERIALIZED (
  SELECT generation, flip FROM shown WHERE tenant_id = '00000000-0000-0000-0000-000000000000' ORDER BY flip DESC LIMIT 1),
own AS MATERIALIZED (
  SELECT DISTINCT ON (s.tenant_id) s.tenant_id, s.generation FROM shown s
  WHERE s.tenant_id >= $3::uuid AND s.tenant_id <> '00000000-0000-0000-0000-000000000000' AND s.flip > (SELECT flip FROM common)
  ORDER BY s.tenant_id, s.flip DESC)`

// The common generation and those of tenants that have one of their own are read by an index, each in its order. $3 to $5
// are the last row of the previous page: tenant, feature, subscription. If the common generation fills the page, no tenant
// after its last row is read.
const readPeriod = periodGenerations + `,
many AS MATERIALIZED (
  SELECT a.* FROM usage_aggregates a
  WHERE a.generation = (SELECT generation FROM common) AND a.period_key = $1 AND a.tenant_id NOT IN (SELECT tenant_id FROM own)` +
	ofBilled + `
    AND (a.tenant_id, a.feature, a.subscription_id) > ($3::uuid, $4::text, $5::uuid)
  ORDER BY a.tenant_id, a.feature, a.subscription_id LIMIT $6),
few AS (
  SELECT a.* FROM own CROSS JOIN LATERAL (
    SELECT a.* FROM usage_aggregates a
    WHERE a.generation = own.generation AND a.period_key = $1 AND a.tenant_id = own.tenant_id` + ofBilled + `
      AND (a.tenant_id, a.feature, a.subscription_id) > ($3::uuid, $4::text, $5::uuid)
    ORDER BY a.tenant_id, a.feature, a.subscription_id LIMIT $6) a` + ownOfPage + periodColumns + `
ORDER BY a.tenant_id, a.feature, a.subscription_id
LIMIT $6`

// The same of one feature, $4.
const readPeriodOfFeature = periodGenerations + `,
many AS MATERIALIZED (
  SELECT a.* FROM usage_aggregates a
  WHERE a.generation = (SELECT generation FROM common) AND a.period_key = $1 AND a.tenant_id NOT IN (SELECT tenant_id FROM own)` +
	ofBilled + `
    AND a.feature = $4::text AND (a.tenant_id, a.subscription_id) > ($3::uuid, $5::uuid)
  ORDER BY a.tenant_id, a.subscription_id LIMIT $6),
few AS (
  SELECT a.* FROM own CROSS JOIN LATERAL (
    SELECT a.* FROM usage_aggregates a
    WHERE a.generation = own.generation AND a.period_key = $1 AND a.tenant_id = own.tenant_id` + ofBilled + `
      AND a.feature = $4::text AND (a.tenant_id, a.subscription_id) > ($3::uuid, $5::uuid)
    ORDER BY a.tenant_id, a.subscription_id LIMIT $6) a` + ownOfPage + periodColumns + `
ORDER BY a.tenant_id, a.subscription_id
LIMIT $6`

// Test tenants are left out unless $7.
const ofBilled = ` AND ($7::boolean OR a.tenant_id NOT IN (SELECT t.id FROM tenants t WHERE t.mode = 'test'))`

const ownOfPage = `
  WHERE own.tenant_id <= coalesce((SELECT m.tenant_id FROM many m ORDER BY m.tenant_id OFFSET $6 - 1 LIMIT 1),
  'ffffffff-ffff-ffff-ffff-ffffffffffff'))`

const periodColumns = `
SELECT a.tenant_id, a.feature, a.period_key, a.subscription_id, a.amount::text, a.event_count, a.period_start, a.period_end, a.last_event_at
FROM (SELECT * FROM many UNION ALL SELECT * FROM few) a`

// readPeriodFlip is readFlip for the pointers of all tenants that cover the period $1, and all partitions: $3 of them, or that
// of a generation's tenant.
const readPeriodFlip = `
SELECT coalesce($2::int, max(greatest(p.flip, p.undone_flip)), 0),
       coalesce($2::int > max(greatest(p.flip, p.undone_flip)), true) OR coalesce(bool_or($2::int IS NOT NULL AND p.flip <= $2
       AND (p.undone_flip IS NULL OR p.undone_flip > $2)
         AND (g.dropped_at IS NOT NULL OR g.broken IS NOT NULL
         OR CASE g.tenant_id WHEN '00000000-0000-0000-0000-000000000000' THEN $3 ELSE 1 END > (
           SELECT count(*) FROM consumer_checkpoints c
           WHERE c.consumer = 'meterplex-usage-aggregator' AND c.generation = g.generation AND c.joined))
         AND NOT EXISTS (
           SELECT FROM projection_pointers later
           WHERE later.projection = p.projection AND later.flip > p.flip AND later.flip <= $2 AND (later.undone_flip IS NULL
           OR later.undone_flip > $2)
             AND later.tenant_id IN (p.tenant_id, '00000000-0000-0000-0000-000000000000') AND later.period_key IN ($1, ''))), false)
FROM projection_pointers p JOIN projection_generations g USING (projection, generation)
WHERE p.projection = 'usage_aggregates' AND p.period_key IN ($1, '')`

// OfPeriod lists the figures of all tenants in a period, ordered by tenant, feature and
// subscription: for operators, since a tenant's viewer gets its own figures only. A page has no position, because
// each tenant's log has its own. A cursor stays with the generations that its list began in;
// ErrCursorInvalid once one of them is gone, or no longer gets the newest usage.
func (r *Reads) OfPeriod(ctx context.Context, v query.Viewer, q PeriodQuery) (Aggregates, error) {
	q.Limit = query.PageSize(q.Limit)
	after, err := ParsePeriodCursor(q.After)
	if err != nil {
		return Aggregates{}, err
	}
	sql := readPeriod
	if q.Feature != "" {
		sql, after.feature = readPeriodOfFeature, q.Feature
	}
	page := Aggregates{Page: query.Page[Aggregate]{Data: []Aggregate{}}}
	var flip int
	var gone bool
	err = r.For(query.Wait{}).Snapshot(ctx, v,
		query.New(readPeriodFlip, []any{q.PeriodKey, after.flip, events.Partitions}, query.One(&flip, &gone)),
		query.New(sql, []any{q.PeriodKey, after.flip, after.tenant, after.feature, after.subscription, q.Limit + 1, q.Test},
			query.Into(&page.Data, scanAggregate)))
	if err != nil {
		return Aggregates{}, err
	}
	if after.flip != nil && gone {
		return Aggregates{}, query.ErrCursorInvalid
	}
	if len(page.Data) > q.Limit {
		page.Data = page.Data[:q.Limit]
		page.Next = encodePeriodCursor(flip, &page.Data[q.Limit-1])
	}
	return page, nil
}

// periodCursor is the cursor of a page: its last row. The zero value is before the first row: no tenant
// has the nil id.
type periodCursor struct {
	flip         *int
	tenant       uuid.UUID
	feature      string
	subscription uuid.UUID
}

func encodePeriodCursor(flip int, last *Aggregate) string {
	return strings.Join([]string{strconv.Itoa(flip), last.TenantID.String(), last.Feature, last.SubscriptionID.String()}, "|")
}

func ParsePeriodCursor(s string) (periodCursor, error) {
	if s == "" {
		return periodCursor{}, nil
	}
	parts := strings.Split(s, "|")
	if len(parts) != 4 || !query.Storable(s) {
		return periodCursor{}, query.ErrCursorInvalid
	}
	number, err := strconv.ParseInt(parts[0], 10, 32)
	if err != nil {
		return periodCursor{}, query.ErrCursorInvalid
	}
	tenant, err := uuid.Parse(parts[1])
	if err != nil {
		return periodCursor{}, query.ErrCursorInvalid
	}
	subscription, err := uuid.Parse(parts[3])
	if err != nil {
		return periodCursor{}, query.ErrCursorInvalid
	}
	flip := int(number)
	return periodCursor{&flip, tenant, parts[2], subscription}, nil
}
