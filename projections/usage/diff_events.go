package usage

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/rebuild"
)

// DiffEventsQuery asks which events cause the difference of a key. If SubscriptionID is
// Nil, the key covers all subscriptions.
type DiffEventsQuery struct {
	RebuildID      uuid.UUID
	TenantID       uuid.UUID
	Feature        string
	PeriodKey      string
	SubscriptionID uuid.UUID
	Limit          int
	After          string
}

// DiffEvent is an event that adds a different amount by the rebuilt generation's fold than
// by the live one's; null if it is not in the figure. Position is that of the recorded
// usage, VerdictPosition that of its verdict.
type DiffEvent struct {
	EventID         string          `json:"eventId"`
	Position        events.Position `json:"position"`
	VerdictPosition events.Position `json:"verdictPosition"`
	Live            *int64          `json:"live"`
	Rebuilt         *int64          `json:"rebuilt"`
	Delta           int64           `json:"delta"`
}

// DiffEvents is a page of them. On the first page, Delta is the difference of the
// rows, Explained the sum over the events, and Unexplained the remainder: not 0 if rows
// differ from the result of their own fold over the log. LiveDrift and RebuiltDrift are
// that difference, row less fold.
type DiffEvents struct {
	query.Page[DiffEvent]
	AsOf          events.Position
	LiveFold      string
	RebuiltFold   string
	Delta         *json.Number
	Explained     *json.Number
	Unexplained   *json.Number
	LiveDrift     *json.Number
	RebuiltDrift  *json.Number
	EventsCompare int64 // verdicts of the tenant that were folded for the comparison
}

// Withheld verdicts and those that failed to fold are in neither generation.
var readKeysVerdicts = events.SQL(`
SELECT l.position, l.subject, l.event_id, l.recorded_at, l.occurred_at, l.dedupe_key, l.body::text
FROM event_log_rows l
WHERE l.partition = $1 AND l.tenant_id = $2 AND l.topic = {usage.validated} AND l.position > $3 AND l.position <= $4
  AND NOT EXISTS (SELECT FROM withheld_records w WHERE w.partition = l.partition AND w.position = l.position AND NOT w.late)
  AND l.position <> ALL (ARRAY(
    SELECT (f.payload ->> 'sourcePosition')::bigint
    FROM event_log_rows f JOIN log_origins o ON o.id = f.origin AND o.actor_type = 'service' AND o.actor_id = 'meterplex-usage-aggregator'
    WHERE f.partition = $1 AND f.tenant_id = $2 AND f.topic = {usage.dead-letter} AND f.subject = {usage.event.aggregation_failed}
    AND f.position > $3))
ORDER BY l.position`)

const readKeysRows = `
SELECT coalesce(sum(a.amount) FILTER (WHERE a.generation = $5), 0)::text, coalesce(sum(a.amount) FILTER (WHERE a.generation = $6), 0)::text
FROM usage_aggregates a
WHERE a.generation IN ($5::int, $6::int) AND a.tenant_id = $1 AND a.feature = $2 AND a.period_key = $3
  AND ($4 = '00000000-0000-0000-0000-000000000000'::uuid OR a.subscription_id = $4)`

// keyComparison compares the folds of a key, event by event.
type keyComparison struct {
	q             DiffEventsQuery
	live, rebuilt Fold
	partition     int16
	page          *DiffEvents
	limit         int
	sums          [2]big.Int // by the folds: live, rebuilt
}

// DiffEvents folds the tenant's verdicts by both generations' folds and lists those whose
// results differ for the key.
func (r *Reads) DiffEvents(ctx context.Context, q DiffEventsQuery) (DiffEvents, error) {
	page := DiffEvents{Page: query.Page[DiffEvent]{Data: []DiffEvent{}}}
	after, err := ParseEventCursor(q.After)
	if err != nil || !query.Storable(q.Feature) || !query.Storable(q.PeriodKey) {
		return page, err
	}
	err = r.Heavy().Within(ctx, query.Viewer{Operator: true}, func(ctx context.Context, tx pgx.Tx) error {
		c, err := rebuild.Compare(ctx, tx, q.RebuildID)
		if err != nil {
			return err
		}
		t, live, err := r.compareKey(c, q, &page)
		if err != nil {
			return err
		}
		args := []any{t.partition, q.TenantID, after, page.AsOf.Number}
		err = query.Run(ctx, tx, query.New(readKeysVerdicts, args, query.Each(func(rows pgx.Rows) error {
			e := events.Envelope{TenantID: q.TenantID, Position: events.Position{Partition: t.partition}}
			var payload string
			err := rows.Scan(&e.Position.Number, &e.Subject, &e.EventID, &e.RecordedAt, &e.OccurredAt, &e.DedupeKey, &payload)
			e.Payload = json.RawMessage(payload)
			t.add(&e)
			return err
		})))
		if err != nil || q.After != "" {
			return err
		}
		return t.explain(ctx, tx, live, c.Rebuild.Generation)
	})
	return page, err
}

func ParseEventCursor(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, query.ErrCursorInvalid
	}
	return n, nil
}

// compareKey begins a comparison, with the generation that is live for the key.
func (r *Reads) compareKey(c *rebuild.Comparison, q DiffEventsQuery, page *DiffEvents) (*keyComparison, int, error) {
	t := &keyComparison{q: q, page: page, partition: events.PartitionOf(q.TenantID), limit: query.PageSize(q.Limit)}
	if c.Rebuild.Projection != projections.ProjectionUsage {
		return nil, 0, &domain.Error{Code: "scope_invalid", Message: "Only figures of usage_aggregates can be broken down by event"}
	}
	live := c.Live(q.TenantID, q.PeriodKey)
	if live == nil || !c.Scope.HasTenant(q.TenantID) || !c.Scope.HasPeriod(q.PeriodKey) {
		return nil, 0, &domain.Error{Code: "scope_invalid", Message: "The key is outside the rebuild's scope"}
	}
	for _, p := range c.Positions {
		if p.Partition == t.partition {
			page.AsOf = p
		}
	}
	folds := r.Folds
	page.LiveFold, page.RebuiltFold = live.FoldVersion, c.Rebuild.FoldVersion
	var unknown, neither error
	t.live, unknown = folds.Of(page.LiveFold)
	t.rebuilt, neither = folds.Of(page.RebuiltFold)
	if unknown != nil || neither != nil {
		return nil, 0, &domain.Error{Code: "fold_not_held", Message: fmt.Sprintf("This instance does not have both versions, %s and %s",
			page.LiveFold, page.RebuiltFold)}
	}
	return t, live.Generation, nil
}

// increment is the amount that an event adds to a figure.
type increment struct {
	Delta
	there bool
}

// of folds a verdict for the key; zero if the fold refuses it.
func (t *keyComparison) of(fold Fold, e *events.Envelope, v events.Validated) (p increment) {
	_ = projections.Try(*e, func() error {
		key, delta, err := fold.inItsFigure(e, v)
		if err == nil && key.Feature == t.q.Feature && key.PeriodKey == t.q.PeriodKey &&
			(t.q.SubscriptionID == uuid.Nil || key.SubscriptionID == t.q.SubscriptionID) {
			p = increment{delta, true}
		}
		return err
	})
	return p
}

func (t *keyComparison) add(e *events.Envelope) {
	t.page.EventsCompare++
	v, err := codec.VerdictOf(e)
	if err != nil {
		return // no fold counts it
	}
	live, rebuilt := t.of(t.live, e, v), t.of(t.rebuilt, e, v)
	t.sums[0].Add(&t.sums[0], big.NewInt(live.Amount))
	t.sums[1].Add(&t.sums[1], big.NewInt(rebuilt.Amount))
	same := live.there == rebuilt.there && live.Amount == rebuilt.Amount && live.Count == rebuilt.Count && live.At.Equal(rebuilt.At)
	if same || len(t.page.Data) > t.limit {
		return
	}
	if len(t.page.Data) == t.limit {
		if t.page.Next == "" {
			t.page.Next = strconv.FormatInt(t.page.Data[t.limit-1].VerdictPosition.Number, 10)
		}
		return
	}
	t.page.Data = append(t.page.Data, DiffEvent{EventID: v.EventID,
		Position:        events.Position{Partition: e.Position.Partition, Number: v.RawPosition},
		VerdictPosition: e.Position, Delta: rebuilt.Amount - live.Amount, Live: live.amount(), Rebuilt: rebuilt.amount()})
}

func (p *increment) amount() *int64 {
	if !p.there {
		return nil
	}
	return &p.Amount
}

// explain compares the sums of the folds with the rows.
func (t *keyComparison) explain(ctx context.Context, tx pgx.Tx, live, rebuilt int) error {
	var rows [2]big.Int
	var liveRow, rebuiltRow string
	args := []any{t.q.TenantID, t.q.Feature, t.q.PeriodKey, t.q.SubscriptionID, live, rebuilt}
	err := query.Run(ctx, tx, query.New(readKeysRows, args, query.One(&liveRow, &rebuiltRow)))
	if err != nil {
		return err
	}
	rows[0].SetString(liveRow, 10)
	rows[1].SetString(rebuiltRow, 10)
	less := func(a, b *big.Int) *big.Int { return new(big.Int).Sub(a, b) }
	delta, explained := less(&rows[1], &rows[0]), less(&t.sums[1], &t.sums[0])
	p := t.page
	p.Delta, p.Explained, p.Unexplained = exact(delta), exact(explained), exact(less(delta, explained))
	p.LiveDrift, p.RebuiltDrift = exact(less(&rows[0], &t.sums[0])), exact(less(&rows[1], &t.sums[1]))
	return nil
}

func exact(n *big.Int) *json.Number {
	text := json.Number(n.String())
	return &text
}
