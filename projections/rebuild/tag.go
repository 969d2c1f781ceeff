package rebuild

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/projections"
)

// tag identifies a difference as it was shown.
type tag struct {
	// state is a hash of the compared generations, their positions, and the number of closes and reopenings. While it is equal, so is every
	// figure.
	state string
	// figures is a hash of the number of differing keys, of their deltas: in all, by period and by tenant, and of their closed periods. ""
	// if the rows are no amounts.
	figures string
}

// String returns the tag as an entity tag (RFC 9110).
func (t tag) String() string { return `"` + t.state + "." + t.figures + `"` }

// is reports whether an entity tag was made of the difference: in the same state, or with the same figures at other positions.
func (t tag) is(shown string) bool {
	state, figures, ok := strings.Cut(strings.Trim(shown, `"`), ".")
	return ok && (state == t.state || figures != "" && figures == t.figures)
}

// Periods are closed and opened again by new rows.
const countClosings = `SELECT count(*) FROM period_changes WHERE change <> 'close_requested'`

// state returns the tag of a difference without its figures.
func (c *Comparison) state(ctx context.Context, tx pgx.Tx) (t tag, err error) {
	closings := int64(0)
	if c.projection.Diff.Closed != "" {
		if err := tx.QueryRow(ctx, countClosings).Scan(&closings); err != nil {
			return t, fmt.Errorf("count the closes of periods: %w", err)
		}
	}
	h := sha256.New()
	fmt.Fprintln(h, c.Rebuild.ID, c.Rebuild.Generation, closings)
	for i := range c.base {
		fmt.Fprintln(h, c.base[i].flip, c.base[i].Generation)
	}
	for _, p := range c.Positions {
		fmt.Fprintln(h, p)
	}
	return tag{state: short(h)}, nil
}

func (c *Comparison) figuresHash(t *DiffTotals) string {
	if !c.projection.Diff.Sums || t.Delta == nil {
		return ""
	}
	h := sha256.New()
	fmt.Fprintln(h, c.Rebuild.ID, c.Rebuild.Generation, textOf(t.DifferingClosed), t.closed)
	for i := range c.base {
		fmt.Fprintln(h, c.base[i].flip, c.base[i].Generation)
	}
	for _, s := range slices.Concat([]DiffSum{t.DiffSum}, t.ByPeriod, t.ByTenant) {
		fmt.Fprintf(h, "%s %q %s %d\n", textOf(s.TenantID), textOf(s.PeriodKey), textOf(s.Delta), s.Differing)
	}
	return short(h)
}

func textOf[T any](v *T) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(*v)
}

func short(h hash.Hash) string { return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:12]) }

const (
	// A transaction that holds consumers back reads the sums only for a short time.
	sumsTime = 1500 * time.Millisecond

	boundSums   = `SELECT set_config('statement_timeout', $1::bigint::text, true)`
	unboundSums = `SET LOCAL statement_timeout TO DEFAULT`

	canceled = "57014"
)

// Changed compares a difference with the entity tags of those that were shown. It returns the present difference if it is none of them,
// else nil. The transaction holds the generations' checkpoints, so that the result holds until its end.
func Changed(ctx context.Context, tx pgx.Tx, list []projections.Projection, id uuid.UUID, shown []string) (*domain.Current, error) {
	c, err := Compare(ctx, tx, id)
	if err != nil {
		return nil, err
	}
	if c.projection, err = projections.Find(list, c.Rebuild.Projection); err != nil {
		return nil, err
	}
	now, err := c.state(ctx, tx)
	if err != nil || slices.ContainsFunc(shown, now.is) {
		return nil, err
	}
	totals, err := c.sums(ctx, tx)
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == canceled && ctx.Err() == nil {
		return nil, &domain.Error{Code: "state_changed", Message: "The positions or the closed periods are not those of the difference " +
			"that was shown, and its sums take too long to compare; read it again"}
	}
	if err != nil {
		return nil, err
	}
	if now.figures = c.figuresHash(totals); slices.ContainsFunc(shown, now.is) {
		return nil, nil
	}
	return &domain.Current{Keys: &totals.Differing, Delta: totals.Delta, Closed: totals.DifferingClosed, ETag: now.String()}, nil
}

// sums reads the totals of a whole difference within sumsTime.
func (c *Comparison) sums(ctx context.Context, tx pgx.Tx) (*DiffTotals, error) {
	t, end := new(DiffTotals), time.Now().Add(sumsTime)
	for _, read := range []func(context.Context, pgx.Tx, DiffQuery, *DiffTotals) error{c.totals, c.countClosed} {
		if _, err := tx.Exec(ctx, boundSums, max(time.Until(end).Milliseconds(), 1)); err != nil {
			return nil, fmt.Errorf("prepare to compare with a shown difference: %w", err)
		}
		if err := read(ctx, tx, DiffQuery{RebuildID: c.Rebuild.ID}, t); err != nil {
			return nil, err
		}
	}
	if _, err := tx.Exec(ctx, unboundSums); err != nil {
		return nil, fmt.Errorf("compare with a shown difference: %w", err)
	}
	return t, nil
}
