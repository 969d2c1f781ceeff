package rebuild

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// DiffQuery asks for the difference that a rebuild makes. TenantID, Feature and
// PeriodKey select keys, zero values all; All includes equal keys, too.
type DiffQuery struct {
	RebuildID uuid.UUID
	TenantID  uuid.UUID
	Feature   string
	PeriodKey string
	All       bool
	Limit     int
	After     string
	Largest   bool // with the keys of the greatest differences, of projections of amounts
	Totals    bool // with the totals and, for usage, the conservation check
	Priced    bool // with what the figures cost; refused for projections whose rows are no amounts
}

// whole reports whether the query selects all keys that differ.
func (q *DiffQuery) whole() bool {
	return q.TenantID == uuid.Nil && q.Feature == "" && q.PeriodKey == ""
}

// DiffRow is a key of a projection as readers see it without the rebuild, and in the
// rebuild; null if the row is missing. Live and Rebuilt are exact integers for
// projections of amounts, objects for the others. Delta is rebuilt − live.
type DiffRow struct {
	ID             *uuid.UUID      `json:"id,omitempty"`
	TenantID       uuid.UUID       `json:"tenantId"`
	Feature        string          `json:"feature"`
	PeriodKey      *string         `json:"periodKey,omitempty"`
	SubscriptionID *uuid.UUID      `json:"subscriptionId,omitempty"`
	Live           json.RawMessage `json:"live"`
	Rebuilt        json.RawMessage `json:"rebuilt"`
	Delta          *json.Number    `json:"delta"`
	EventCount     *int64          `json:"eventCount,omitempty"`     // behind the rebuilt figure
	LiveEventCount *int64          `json:"liveEventCount,omitempty"` // behind the live one
	// ClosedSnapshot is set if the period is closed: a promotion changes no frozen figure, and proposes Adjustment, which is the delta.
	ClosedSnapshot *int         `json:"closedSnapshot,omitempty"`
	Adjustment     *json.Number `json:"adjustment,omitempty"`
	// Charge is what the figures cost; nil if it was not asked for, or the key has no price.
	Charge *DiffCharge `json:"charge,omitempty"`
	// Charges are those in further currencies, if a plan in another currency was applied in the period.
	Charges []DiffCharge `json:"charges,omitempty" nullable:"false"`
}

// Diff is a page of a difference, from one snapshot in which both generations are at the
// positions of AsOf. Next is the cursor of the next page, "" on the last.
type Diff struct {
	Rebuild domain.Rebuild
	query.Page[DiffRow]
	AsOf         []events.Position
	Largest      []DiffRow // the greatest first, at most maxLargest
	Totals       *DiffTotals
	Conservation *Conservation
	Tag          string // entity tag of the whole difference; "" without totals, and of a part
}

// Diff compares a rebuild with the rows readers see without it. It returns a *domain.Error
// with code rebuild_not_ready if a comparison is not possible, or not yet.
func (r *Reads) Diff(ctx context.Context, q DiffQuery) (Diff, error) {
	d := Diff{Page: query.Page[DiffRow]{Data: []DiffRow{}}}
	err := r.compared(ctx, &r.DB, q, func(ctx context.Context, tx pgx.Tx, c *Comparison) error {
		d.Rebuild, d.AsOf = c.Rebuild, c.Positions
		limit := query.PageSize(q.Limit)
		err := c.rows(ctx, tx, q, limit+1, func(row DiffRow) error {
			d.Data = append(d.Data, row)
			return nil
		})
		if err != nil {
			return err
		}
		if len(d.Data) > limit {
			d.Data = d.Data[:limit]
			d.Next = diffCursor(&d.Data[limit-1])
		}
		if q.Priced {
			if err := r.price(ctx, tx, c, d.Data); err != nil {
				return err
			}
		}
		if q.Largest {
			if d.Largest, err = c.largest(ctx, tx, q); err != nil {
				return err
			}
		}
		if !q.Totals {
			return nil
		}
		d.Totals = new(DiffTotals)
		if err = c.totals(ctx, tx, q, d.Totals); err != nil {
			return err
		}
		if err = c.countClosed(ctx, tx, q, d.Totals); err != nil {
			return err
		}
		if q.whole() {
			now, err := c.state(ctx, tx)
			if err != nil {
				return err
			}
			now.figures = c.figuresHash(d.Totals)
			d.Tag = now.String()
		}
		if q.Priced {
			if err := r.charges(ctx, tx, c, q, d.Totals); err != nil {
				return err
			}
		}
		d.Conservation, err = c.conservation(ctx, tx, q)
		return err
	})
	return d, err
}

// EachDiff passes every row of a difference to a function, from one snapshot, without
// keeping any. It ends with the context: its statement lasts as long as its reader takes.
func (r *Reads) EachDiff(ctx context.Context, q DiffQuery, row func(DiffRow) error) error {
	return r.compared(ctx, r.Heavy(), q, func(ctx context.Context, tx pgx.Tx, c *Comparison) error {
		if _, err := tx.Exec(ctx, withoutTimeout); err != nil {
			return fmt.Errorf("prepare to read a difference: %w", err)
		}
		if q.Priced {
			return r.eachPriced(ctx, tx, c, q, row)
		}
		return c.rows(ctx, tx, q, 0, row)
	})
}

// A session that waits for a reader of priced rows is idle in its transaction.
const withoutTimeout = `SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = '1min'`

// inOrder makes the planner read in key order rather than sort: a page needs the plan that
// is cheapest for its first row.
const inOrder = `SET LOCAL enable_sort = off; SET LOCAL enable_hashagg = off; SET LOCAL max_parallel_workers_per_gather = 0`

func (r *Reads) compared(ctx context.Context, db *query.DB, q DiffQuery, read func(context.Context, pgx.Tx, *Comparison) error) error {
	if !query.Storable(q.Feature) || !query.Storable(q.PeriodKey) {
		return nil
	}
	return db.Within(ctx, query.Viewer{Operator: true}, func(ctx context.Context, tx pgx.Tx) error {
		c, err := Compare(ctx, tx, q.RebuildID)
		if err != nil {
			return err
		}
		if c.projection, err = projections.Find(r.List, c.Rebuild.Projection); err != nil {
			return err
		}
		if q.PeriodKey != "" && !c.projection.Diff.Periods {
			return &domain.Error{Code: "parameter_invalid", Message: "The rows of " + c.projection.Name + " have no period"}
		}
		if q.Priced && !c.projection.Diff.Sums {
			return &domain.Error{Code: "parameter_invalid", Message: "The rows of " + c.projection.Name + " are no amounts with a price"}
		}
		if _, err := tx.Exec(ctx, inOrder); err != nil {
			return fmt.Errorf("prepare to compare: %w", err)
		}
		return read(ctx, tx, c)
	})
}

// arguments returns the arguments that all queries of a difference share, $1 to $11.
func (c *Comparison) arguments(q DiffQuery) ([]any, error) {
	low, high := uuid.Nil, uuid.Max
	for _, tenant := range []uuid.UUID{c.Scope.TenantID, q.TenantID} {
		switch {
		case tenant == uuid.Nil:
		case low != uuid.Nil && low != tenant:
			low, high = uuid.Max, uuid.Nil // no tenant is both
		default:
			low, high = tenant, tenant
		}
	}
	period := c.Scope.PeriodKey
	if q.PeriodKey != "" {
		if period != "" && period != q.PeriodKey {
			low, high = uuid.Max, uuid.Nil
		}
		period = q.PeriodKey
	}
	after, err := ParseCursor(q.After)
	if err != nil {
		return nil, err
	}
	var tenants []uuid.UUID
	var periods []string
	var flips, generations []int
	for i := range c.base {
		p := &c.base[i]
		tenants, periods = append(tenants, p.TenantID), append(periods, p.PeriodKey)
		flips, generations = append(flips, p.flip), append(generations, p.Generation)
	}
	return []any{c.Rebuild.Generation, generations[0], len(generations) == 1, tenants, periods, flips, generations,
		low, high, []string{q.Feature, period}, after}, nil
}

// rows reads the rows in the order of their keys, at most limit, 0 for all.
func (c *Comparison) rows(ctx context.Context, tx pgx.Tx, q DiffQuery, limit int, take func(DiffRow) error) error {
	args, err := c.arguments(q)
	if err != nil {
		return err
	}
	var most *int
	if limit > 0 {
		most = &limit
	}
	return query.Run(ctx, tx, query.New(c.projection.Diff.Rows, append(args, q.All, most), eachDiff(take)))
}

// eachDiff passes the rows of a statement to a function.
func eachDiff(take func(DiffRow) error) func(pgx.Rows) error {
	return query.Each(func(rows pgx.Rows) error {
		row, err := scanDiff(rows)
		if err != nil {
			return err
		}
		return take(row)
	})
}

// maxLargest is the number of keys with the greatest differences.
const maxLargest = 20

// largest returns the keys with the greatest differences of their figures; nil of projections whose rows are no amounts.
func (c *Comparison) largest(ctx context.Context, tx pgx.Tx, q DiffQuery) (list []DiffRow, err error) {
	if c.projection.Diff.Largest == "" {
		return nil, nil
	}
	q.After = ""
	args, err := c.arguments(q)
	if err != nil {
		return nil, err
	}
	err = query.Run(ctx, tx, query.New(c.projection.Diff.Largest, append(args, maxLargest), eachDiff(func(row DiffRow) error {
		list = append(list, row)
		return nil
	})))
	return list, err
}

func scanDiff(rows pgx.Rows) (DiffRow, error) {
	var d DiffRow
	var live, rebuilt, delta *string
	into := []any{&d.ID, &d.TenantID, &d.Feature, &d.PeriodKey, &d.SubscriptionID, &live, &rebuilt, &delta, &d.EventCount,
		&d.LiveEventCount, &d.ClosedSnapshot}
	err := rows.Scan(into[:len(rows.FieldDescriptions())]...) // only figures of periods that can be closed have the last
	d.Live, d.Rebuilt = orNull(live), orNull(rebuilt)
	if delta != nil {
		n := json.Number(*delta)
		d.Delta = &n
	}
	if d.ClosedSnapshot != nil {
		d.Adjustment = d.Delta
	}
	return d, err
}

func orNull(text *string) json.RawMessage {
	if text == nil {
		return json.RawMessage("null")
	}
	return json.RawMessage(*text)
}

// diffCursor returns the key of a row. Of its parts only the period can contain the separator.
func diffCursor(last *DiffRow) string {
	if last.ID != nil {
		return last.ID.String()
	}
	period, subscription := "", uuid.Nil
	if last.PeriodKey != nil {
		period = *last.PeriodKey
	}
	if last.SubscriptionID != nil {
		subscription = *last.SubscriptionID
	}
	return strings.Join([]string{last.TenantID.String(), last.Feature, period, subscription.String()}, "|")
}

// ParseCursor returns the parts of a key; for an empty cursor, parts before the first key.
func ParseCursor(s string) ([]string, error) {
	if s == "" {
		return []string{uuid.Nil.String(), "", "", uuid.Nil.String()}, nil
	}
	parts := strings.Split(s, "|")
	first, err := uuid.Parse(parts[0])
	if err != nil || !query.Storable(s) || len(parts) != 1 && len(parts) < 4 {
		return nil, query.ErrCursorInvalid
	}
	if len(parts) == 1 {
		return []string{first.String()}, nil
	}
	end := len(parts) - 1
	last, err := uuid.Parse(parts[end])
	if err != nil {
		return nil, query.ErrCursorInvalid
	}
	return []string{first.String(), parts[1], strings.Join(parts[2:end], "|"), last.String()}, nil
}
