package usage

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// ExplainQuery asks for the events behind a figure: its current value, or its value
// at a moment. SubscriptionID Nil: of all subscriptions together. Rejected asks for
// the events left out, too.
type ExplainQuery struct {
	TenantID       uuid.UUID
	Feature        string
	PeriodKey      string
	SubscriptionID uuid.UUID
	AsOf           *AsOf
	Rejected       bool
	Limit          int
	After          string
	Wait           query.Wait
}

// Explanation is a page of the events that add up to a figure, in the order in which
// they were counted. It can hold fewer events than requested, even zero, and still have a Next: a page reads a bounded
// part of the figure, in which events of other subscriptions may be. Total and EventCount are the figure itself, from the aggregates
// if it is live. Adds says that all events, including those of the other pages, add up to
// exactly that; of a figure of more than checkedAtOnce events only the last page proves it, and
// earlier pages say it unless they disprove it. LeftOut is nil unless requested.
type Explanation struct {
	Total      json.Number
	EventCount int64
	Adds       bool
	AsOf       events.Position
	query.Page[ExplainedUsage]
	LeftOut []LeftOutUsage
	// LeftOutMore means that more may be left out than LeftOut lists: it is truncated, or the tenant has
	// more rejections or failures than one answer looks through.
	LeftOutMore bool
}

// ExplainedUsage is an event behind a figure: its amount, and the sum so far. The amount of a correction is the change that it made.
type ExplainedUsage struct {
	EventID         string          `json:"eventId"`
	Kind            string          `json:"kind" enum:"usage,correction,retraction"`
	Position        events.Position `json:"position"`
	Amount          int64           `json:"amount"`
	Count           int64           `json:"count"`
	Timestamp       time.Time       `json:"timestamp"`
	RecordedAt      time.Time       `json:"recordedAt"`
	VerdictPosition events.Position `json:"verdictPosition"`
	RunningTotal    json.Number     `json:"runningTotal"`
}

// explanation is the state of a running explanation.
type explanation struct {
	*ExplainQuery
	cursor  explainCursor
	live    bool
	sum     big.Int // of the counted verdicts that were read, on earlier pages too
	count   int64
	read    int   // verdicts
	ended   bool  // all verdicts were read
	cutAt   int64 // the last verdict that was read, if the walk was cut there; or 0
	entries []countedUsage
	limit   int
}

// Explain returns the events behind a figure.
func (r *Reads) Explain(ctx context.Context, v query.Viewer, q ExplainQuery) (Explanation, error) {
	x := explanation{ExplainQuery: &q, limit: query.PageSize(q.Limit), live: q.AsOf == nil}
	cursor, given, err := ParseExplainCursor(q.After)
	if err == nil && given != nil && *given != x.live {
		err = query.ErrCursorInvalid
	}
	if err != nil {
		return Explanation{}, err
	}
	x.cursor = cursor
	if x.live {
		err = r.AwaitPassed(ctx, v, query.AggregatesSource(), q.TenantID, q.Wait)
	} else {
		var at events.Position
		at, err = r.moment(ctx, v, q.TenantID, x.moment(), q.Wait.For)
		x.cursor.asOf = at.Number
	}
	if err != nil {
		return Explanation{}, err
	}
	var e Explanation
	err = r.Heavy().Within(ctx, v, func(ctx context.Context, tx pgx.Tx) error {
		t, err := r.verdictsOf(ctx, tx, q.TenantID)
		if err != nil {
			return err
		}
		if err := x.begin(ctx, tx, t); err != nil {
			return err
		}
		if err := x.walk(ctx, tx, t); err != nil {
			return err
		}
		if e, err = x.page(ctx, tx); err != nil || !x.Rejected || q.After != "" {
			return err
		}
		e.LeftOut, e.LeftOutMore, err = x.leftOut(ctx, tx, t)
		return err
	})
	return e, err
}

func (x *explanation) moment() AsOf {
	if x.After != "" {
		return AsOf{Position: &events.Position{Partition: events.PartitionOf(x.TenantID), Number: x.cursor.asOf}}
	}
	return *x.AsOf
}

// Reads the checkpoint of the generation that is live for the figure's period, and its figure.
const readFigure = `
SELECT c.position, coalesce(a.amount, 0)::text, coalesce(a.event_count, 0)
FROM (SELECT live_generation('usage_aggregates', $2, $4) AS generation) g
JOIN consumer_checkpoints c ON c.consumer = 'meterplex-usage-aggregator' AND c.generation = g.generation AND c.partition = $1
CROSS JOIN LATERAL (
  SELECT sum(a.amount) AS amount, sum(a.event_count)::bigint AS event_count FROM usage_aggregates a
  WHERE a.generation = g.generation AND a.tenant_id = $2 AND a.feature = $3 AND a.period_key = $4
    AND ($5::uuid IS NULL OR a.subscription_id = $5)) a`

// begin sets the subject of a first page: the live figure at this moment, or that of a position.
func (x *explanation) begin(ctx context.Context, tx pgx.Tx, t *tenantVerdicts) error {
	if x.After != "" {
		return nil
	}
	if !x.live {
		return x.beginAsOf(ctx, tx, t)
	}
	var subscription *uuid.UUID
	if x.SubscriptionID != uuid.Nil {
		subscription = &x.SubscriptionID
	}
	var stands query.Standing
	if err := query.Run(ctx, tx, query.ReadStanding(query.AggregatesSource(), x.TenantID, &stands)); err != nil {
		return err
	}
	x.cursor.asOf = stands.AsOf(x.TenantID, x.Wait).Number
	args := []any{events.PartitionOf(x.TenantID), x.TenantID, x.Feature, x.PeriodKey, subscription}
	found := false
	err := query.Run(ctx, tx, query.New(readFigure, args, query.Each(func(rows pgx.Rows) error {
		found = true
		var amount string
		err := rows.Scan(&x.cursor.bound, &amount, &x.cursor.count)
		if _, ok := x.cursor.total.SetString(amount, 10); !ok {
			err = errors.Join(err, errNoInteger)
		}
		return err
	})))
	if err == nil && !found {
		err = query.ErrNoLiveGeneration
	}
	return err
}

func (x *explanation) beginAsOf(ctx context.Context, tx pgx.Tx, t *tenantVerdicts) error {
	sums, err := t.figureAsOf(ctx, tx, x.Feature, x.PeriodKey, x.cursor.asOf)
	for key, sum := range sums {
		if x.SubscriptionID == uuid.Nil || key.SubscriptionID == x.SubscriptionID {
			x.cursor.total.Add(&x.cursor.total, &sum.amount)
			x.cursor.count += sum.count
		}
	}
	return err
}

var errNoInteger = errors.New("a figure is no integer")

// knows reports whether a verdict belongs to the explained figure: the live figure includes
// verdicts up to the checkpoint, a past figure those on events recorded by then.
func (x *explanation) knows(c *countedUsage) bool {
	if x.live && c.position > x.cursor.bound || !x.live && c.cause > x.cursor.asOf {
		return false
	}
	key := c.key
	if key == (Key{}) { // not folded
		key = Key{Feature: c.verdict.Feature, PeriodKey: c.verdict.PeriodKey, SubscriptionID: c.verdict.ValidatedSubscriptionID}
	}
	return key.Feature == x.Feature && key.PeriodKey == x.PeriodKey &&
		(x.SubscriptionID == uuid.Nil || key.SubscriptionID == x.SubscriptionID)
}

// checkedAtOnce is the number of verdicts that a first page reads to find whether they add up to
// the figure. Of a longer figure the last page shows it.
const checkedAtOnce = 1000

// readAtOnce bounds the verdicts that a page reads, those of other subscriptions included: some tenths of a second.
const readAtOnce = 10_000

// walk reads the verdicts of the page and one more, which shows that another page follows. A
// first page reads up to checkedAtOnce of them. No page reads more than readAtOnce.
func (x *explanation) walk(ctx context.Context, tx pgx.Tx, t *tenantVerdicts) error {
	f := t.wholeFigure(x.Feature, x.PeriodKey, nil)
	f.after, f.upTo, f.most = x.cursor.after, x.cursor.bound, readAtOnce
	if !x.live {
		f.asOf, f.upTo = &x.cursor.asOf, math.MaxInt64
	}
	x.sum.Set(&x.cursor.before)
	x.count, x.ended = x.cursor.counted, true
	err := f.each(ctx, tx, func(c *countedUsage, counted bool) bool {
		x.read++
		if counted && x.knows(c) {
			x.add(c)
		}
		whole := x.After == "" && x.read < checkedAtOnce
		x.ended = len(x.entries) <= x.limit || whole
		return x.ended
	})
	if f.cut {
		x.ended, x.cutAt = false, f.after
	}
	return err
}

func (x *explanation) add(c *countedUsage) {
	x.sum.Add(&x.sum, big.NewInt(c.delta.Amount))
	x.count += c.delta.Count
	if len(x.entries) <= x.limit {
		x.entries = append(x.entries, *c)
	}
}

// adds reports whether the events add up to the figure, as far as they were read.
func (x *explanation) adds() bool {
	if !x.ended { // those that follow may be retractions
		return x.cursor.adds
	}
	return x.cursor.adds && x.cursor.total.Cmp(&x.sum) == 0 && x.cursor.count == x.count
}

func (x *explanation) page(ctx context.Context, tx pgx.Tx) (Explanation, error) {
	partition := events.PartitionOf(x.TenantID)
	e := Explanation{Total: json.Number(x.cursor.total.String()), EventCount: x.cursor.count,
		Page: query.Page[ExplainedUsage]{Data: []ExplainedUsage{}},
		Adds: x.adds(), AsOf: events.Position{Partition: partition, Number: x.cursor.asOf}}
	more := len(x.entries) > x.limit
	x.entries = x.entries[:min(len(x.entries), x.limit)]
	recorded, err := x.recordedAt(ctx, tx, partition)
	for _, c := range x.entries {
		x.cursor.before.Add(&x.cursor.before, big.NewInt(c.delta.Amount))
		x.cursor.counted += c.delta.Count
		e.Data = append(e.Data, ExplainedUsage{
			EventID: c.verdict.EventID, Kind: kindOf(&c.verdict), Position: events.Position{Partition: partition,
				Number: c.verdict.RawPosition},
			Amount: c.delta.Amount, Count: c.delta.Count, Timestamp: c.verdict.Timestamp.UTC(), RecordedAt: recorded[c.verdict.RawPosition],
			VerdictPosition: events.Position{Partition: partition, Number: c.position}, RunningTotal: json.Number(x.cursor.before.String()),
		})
	}
	switch {
	case more:
		x.cursor.after = x.entries[x.limit-1].position
	case x.cutAt > 0:
		x.cursor.after = x.cutAt
	default:
		return e, err
	}
	x.cursor.adds = e.Adds
	e.Next = x.cursor.String(x.live)
	return e, err
}

// kindOf returns the type of the event that a verdict counts.
func kindOf(v *events.Validated) string {
	if v.CorrectedUsage != nil {
		return v.Kind
	}
	return events.TypeUsage
}

func (x *explanation) recordedAt(ctx context.Context, tx pgx.Tx, partition int16) (map[int64]time.Time, error) {
	partitions, numbers := make([]int16, len(x.entries)), make([]int64, len(x.entries))
	for i, c := range x.entries {
		partitions[i], numbers[i] = partition, c.verdict.RawPosition
	}
	times := make(map[int64]time.Time, len(numbers))
	return times, query.Run(ctx, tx, query.New(query.ReadTimes, []any{partitions, numbers}, query.Each(func(rows pgx.Rows) error {
		var e query.Timed
		err := rows.Scan(&e.Partition, &e.Number, &e.At)
		times[e.Number] = e.At
		return err
	})))
}
