package usage

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// A figure as known at a recorded position p is the sum of the verdicts on events
// recorded up to p: the value of the live figure once all of them had passed. A retried
// event counts from the retry's position on, a re-aggregated verdict from its own. A
// verdict that could not be folded or published does not count: its re-aggregation
// counts instead.
//
// It is the last running totals of the figure before p, and the verdicts since, which an index finds:
// they are folded again for each query, by the version of the fold that the live generation
// is bound to.

// AsOf is a moment: a recorded position or, nil, a time.
type AsOf struct {
	Position *events.Position
	Time     time.Time
}

// AggregatesAsOf lists a tenant's figures as they were known at a moment, in the same way
// as Aggregates; its cursor stays with the position.
//
// It reads the names of all of the tenant's figures, and computes those of the page, one after the other, at the
// cost of figureAsOf: some 1,024 verdicts of each subscription. Figures that began after the moment are not on
// the page; those that stand before its last one in the list cost the first few verdicts each.
func (r *Reads) AggregatesAsOf(ctx context.Context, v query.Viewer, q AggregateQuery, at AsOf) (Aggregates, error) {
	after, number, err := ParseAsOfCursor(q.After)
	if err != nil {
		return Aggregates{}, err
	}
	if after.given {
		at.Position = &events.Position{Partition: events.PartitionOf(q.TenantID), Number: number}
	}
	position, err := r.moment(ctx, v, q.TenantID, at, q.Wait.For)
	if err != nil {
		return Aggregates{}, err
	}
	limit := query.PageSize(q.Limit)
	data, err := r.figuresAsOf(ctx, v, &q, after, position.Number, limit+1)
	page := Aggregates{Page: query.Page[Aggregate]{Data: data}, AsOf: &position}
	if len(page.Data) > limit {
		page.Data = page.Data[:limit]
		_, cursor, _ := strings.Cut(encodeAggregateCursor(0, &page.Data[limit-1]), "|")
		page.Next = strconv.FormatInt(position.Number, 10) + "|" + cursor
	}
	return page, err
}

// figuresAsOf returns a tenant's figures after a cursor, at least as many as are wanted, or all.
func (r *Reads) figuresAsOf(ctx context.Context, v query.Viewer, q *AggregateQuery, after aggregateCursor, at int64,
	wanted int) ([]Aggregate, error) {
	list := []Aggregate{}
	err := r.Heavy().Within(ctx, v, func(ctx context.Context, tx pgx.Tx) error {
		t, err := r.verdictsOf(ctx, tx, q.TenantID)
		if err != nil {
			return err
		}
		figures, err := t.figures(ctx, tx, q, &after)
		for _, f := range figures {
			if err != nil || len(list) >= wanted {
				break
			}
			var sums map[Key]*usageSum
			sums, err = t.figureAsOf(ctx, tx, f.feature, f.period, at)
			list = append(list, figuresAfter(sums, after)...)
		}
		return err
	})
	return list, err
}

func ParseAsOfCursor(s string) (aggregateCursor, int64, error) {
	if s == "" {
		return aggregateCursor{}, 0, nil
	}
	head, cursor, _ := strings.Cut(s, "|")
	number, err := strconv.ParseInt(head, 10, 64)
	if err != nil || number < 0 {
		return aggregateCursor{}, 0, query.ErrCursorInvalid
	}
	after, err := ParseCursor("0|" + cursor)
	return after, number, err
}

// figuresAfter orders figures as Aggregates lists them.
func figuresAfter(sums map[Key]*usageSum, after aggregateCursor) []Aggregate {
	list := make([]Aggregate, 0, len(sums))
	last := Aggregate{Feature: after.feature, PeriodKey: after.periodKey, SubscriptionID: after.subscription, PeriodStart: after.start()}
	for key, sum := range sums {
		a := Aggregate{TenantID: key.TenantID, Feature: key.Feature, PeriodKey: key.PeriodKey, SubscriptionID: key.SubscriptionID,
			Amount: json.Number(sum.amount.String()), EventCount: sum.count, LastEventAt: sum.last.UTC()}
		if start, end, ok := domain.PeriodBounds(key.PeriodKey); ok {
			a.PeriodStart, a.PeriodEnd = &start, &end
		}
		if !after.given || listedBefore(&last, &a) < 0 {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, func(a, b Aggregate) int { return listedBefore(&a, &b) })
	return list
}

// listedBefore compares by the order of lists: newest period first, lifetime last.
func listedBefore(a, b *Aggregate) int {
	var from, to time.Time
	if a.PeriodStart != nil {
		from = *a.PeriodStart
	}
	if b.PeriodStart != nil {
		to = *b.PeriodStart
	}
	if order := to.Compare(from); order != 0 {
		return order
	}
	key := Key{Feature: a.Feature, PeriodKey: a.PeriodKey, SubscriptionID: a.SubscriptionID}
	return key.compare(Key{Feature: b.Feature, PeriodKey: b.PeriodKey, SubscriptionID: b.SubscriptionID})
}

// moment returns a tenant's position at a moment, once it has passed the aggregates: for
// a time, the last position that its partition had recorded.
func (r *Reads) moment(ctx context.Context, v query.Viewer, tenant uuid.UUID, at AsOf, patience time.Duration) (events.Position, error) {
	position := events.Position{Partition: events.PartitionOf(tenant)}
	if at.Position != nil {
		position = *at.Position
	} else {
		if at.Time.After(r.Now()) {
			return position, query.PositionInvalid("asOf is in the future")
		}
		err := r.Snapshot(ctx, v, query.New(`SELECT recorded_until($1, $2, true)`, []any{position.Partition, at.Time},
			query.One(&position.Number)))
		if err != nil {
			return position, err
		}
	}
	err := r.AwaitPassed(ctx, v, query.AggregatesSource(), tenant, query.Wait{MinPosition: &position, For: patience})
	if errors.Is(err, query.ErrPositionInvalid) {
		err = query.PositionInvalid("asOfPosition is not a position of this tenant's log")
	}
	return position, err
}
