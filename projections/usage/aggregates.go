package usage

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// AggregateQuery asks for a tenant's aggregates, at most Limit of them after the
// cursor After. Feature and PeriodKey filter, "" means all.
type AggregateQuery struct {
	TenantID  uuid.UUID
	Feature   string
	PeriodKey string
	Limit     int
	After     string
	Wait      query.Wait
}

// Aggregate is a billing figure: a tenant's usage of a feature in a period
// under a subscription. Amount is an exact integer of any size. The period is
// [PeriodStart, PeriodEnd) in UTC, nil for lifetime; LastEventAt is the latest
// time of usage in it.
type Aggregate struct {
	TenantID       uuid.UUID   `json:"tenantId"`
	Feature        string      `json:"feature"`
	PeriodKey      string      `json:"periodKey"`
	SubscriptionID uuid.UUID   `json:"subscriptionId"`
	Amount         json.Number `json:"amount"`
	EventCount     int64       `json:"eventCount"`
	PeriodStart    *time.Time  `json:"periodStart"`
	PeriodEnd      *time.Time  `json:"periodEnd"`
	LastEventAt    time.Time   `json:"lastEventAt"`
}

// Aggregates is a page. Next is the cursor of the next one, "" on the last. Every
// event of the tenant recorded up to AsOf is in the figures.
type Aggregates struct {
	query.Page[Aggregate]
	AsOf *events.Position
}

// A tenant's aggregates are few: they are sorted whole. $2 is the flip whose
// generations are shown, $5 to $9 are the last row of the previous page.
// -infinity puts lifetime last.
const readAggregates = `
SELECT a.tenant_id, a.feature, a.period_key, a.subscription_id, a.amount::text, a.event_count, a.period_start, a.period_end, a.last_event_at
FROM usage_aggregates a
WHERE a.tenant_id = $1
  AND a.generation = (
    SELECT p.generation FROM projection_pointers p
    WHERE p.projection = 'usage_aggregates'
      AND p.tenant_id IN ($1, '00000000-0000-0000-0000-000000000000') AND p.period_key IN (a.period_key, '')
      AND CASE WHEN $2::int IS NULL THEN p.live ELSE p.flip <= $2 AND (p.undone_flip IS NULL OR p.undone_flip > $2) END
    ORDER BY p.flip DESC LIMIT 1)
  AND ($3 = '' OR a.feature = $3) AND ($4 = '' OR a.period_key = $4)
  AND (NOT $5::boolean
    OR coalesce(a.period_start, '-infinity') < coalesce($6::timestamptz, '-infinity')
    OR coalesce(a.period_start, '-infinity') = coalesce($6::timestamptz, '-infinity')
      AND (a.feature, a.period_key, a.subscription_id) > ($7::text, $8::text, $9::uuid))
ORDER BY coalesce(a.period_start, '-infinity') DESC, a.feature, a.period_key, a.subscription_id
LIMIT $10`

// Reads the flip that readers see now ($2: the one their cursor is bound to), and whether
// a generation live then does not get the newest usage of the tenant's partition $3 any more: it was dropped or detached
// after a failure, or is being dropped. A generation that a later flip covers
// wholly was not live.
const readFlip = `
SELECT coalesce($2::int, max(greatest(p.flip, p.undone_flip)), 0),
       coalesce($2::int > max(greatest(p.flip, p.undone_flip)), true) OR coalesce(bool_or($2::int IS NOT NULL AND p.flip <= $2
       AND (p.undone_flip IS NULL OR p.undone_flip > $2)
         AND (g.dropped_at IS NOT NULL OR g.broken IS NOT NULL OR NOT EXISTS (
           SELECT FROM consumer_checkpoints c
           WHERE c.consumer = 'meterplex-usage-aggregator' AND c.generation = g.generation AND c.partition = $3 AND c.joined))
         AND NOT EXISTS (
           SELECT FROM projection_pointers later
           WHERE later.projection = p.projection AND later.flip > p.flip AND later.flip <= $2 AND (later.undone_flip IS NULL
           OR later.undone_flip > $2)
             AND later.tenant_id IN (p.tenant_id, '00000000-0000-0000-0000-000000000000') AND later.period_key IN (p.period_key, ''))),
             false)
FROM projection_pointers p JOIN projection_generations g USING (projection, generation)
WHERE p.projection = 'usage_aggregates' AND p.tenant_id IN ($1, '00000000-0000-0000-0000-000000000000')`

// Aggregates lists a tenant's figures, newest period first, lifetime last, within
// a period by feature. A cursor stays with the generations that its list began in;
// ErrCursorInvalid once one of them is gone, or no longer gets the newest usage.
func (r *Reads) Aggregates(ctx context.Context, v query.Viewer, q AggregateQuery) (Aggregates, error) {
	q.Limit = query.PageSize(q.Limit)
	after, err := ParseCursor(q.After)
	if err != nil {
		return Aggregates{}, err
	}
	if err := r.AwaitPassed(ctx, v, query.AggregatesSource(), q.TenantID, q.Wait); err != nil {
		return Aggregates{}, err
	}
	page := Aggregates{Page: query.Page[Aggregate]{Data: []Aggregate{}}}
	var stands query.Standing
	var flip int
	var gone bool
	err = r.For(q.Wait).Snapshot(ctx, v, query.ReadStanding(query.AggregatesSource(), q.TenantID, &stands),
		query.New(readFlip, []any{q.TenantID, after.flip, events.PartitionOf(q.TenantID)}, query.One(&flip, &gone)), query.Statement{
			SQL: readAggregates,
			Args: []any{q.TenantID, after.flip, q.Feature, q.PeriodKey,
				after.given, after.start(), after.feature, after.periodKey, after.subscription, q.Limit + 1},
			Scan: query.Into(&page.Data, scanAggregate),
		})
	if err != nil {
		return Aggregates{}, err
	}
	if after.given && gone {
		return Aggregates{}, query.ErrCursorInvalid
	}
	if len(page.Data) > q.Limit {
		page.Data = page.Data[:q.Limit]
		page.Next = encodeAggregateCursor(flip, &page.Data[q.Limit-1])
	}
	asOf := stands.AsOf(q.TenantID, q.Wait)
	page.AsOf = &asOf
	return page, nil
}

func scanAggregate(rows pgx.Rows) (Aggregate, error) {
	var a Aggregate
	var amount string
	err := rows.Scan(&a.TenantID, &a.Feature, &a.PeriodKey, &a.SubscriptionID, &amount, &a.EventCount, &a.PeriodStart, &a.PeriodEnd,
		&a.LastEventAt)
	a.Amount = json.Number(amount)
	return a, err
}

// aggregateCursor is the cursor of a page: its last row.
type aggregateCursor struct {
	given        bool
	flip         *int
	periodKey    string
	feature      string
	subscription uuid.UUID
}

func (p *aggregateCursor) start() *time.Time {
	if start, _, ok := domain.PeriodBounds(p.periodKey); ok {
		return &start
	}
	return nil
}

// encodeAggregateCursor joins the parts of a cursor, which never have the separator.
func encodeAggregateCursor(flip int, last *Aggregate) string {
	return strings.Join([]string{strconv.Itoa(flip), last.PeriodKey, last.Feature, last.SubscriptionID.String()}, "|")
}

func ParseCursor(s string) (aggregateCursor, error) {
	if s == "" {
		return aggregateCursor{}, nil
	}
	parts := strings.Split(s, "|")
	if len(parts) != 4 || !query.Storable(s) {
		return aggregateCursor{}, query.ErrCursorInvalid
	}
	number, err := strconv.ParseInt(parts[0], 10, 32)
	if err != nil {
		return aggregateCursor{}, query.ErrCursorInvalid
	}
	subscription, err := uuid.Parse(parts[3])
	if err != nil {
		return aggregateCursor{}, query.ErrCursorInvalid
	}
	flip := int(number)
	return aggregateCursor{true, &flip, parts[1], parts[2], subscription}, nil
}
