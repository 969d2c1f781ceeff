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

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/projections"
)

// tag identifies a difference as it was shown.
type tag struct {
	// state is a hash of the compared generations and their positions. While it is equal, so is every figure.
	state string
	// figures is a hash of the number of differing keys and of their deltas: in all, by period and by tenant. "" if the rows are no amounts.
	figures string
}

// String returns the tag as an entity tag (RFC 9110).
func (t tag) String() string { return `"` + t.state + "." + t.figures + `"` }

// is reports whether an entity tag was made of the difference: in the same state, or with the same figures at other positions.
func (t tag) is(shown string) bool {
	state, figures, ok := strings.Cut(strings.Trim(shown, `"`), ".")
	return ok && (state == t.state || figures != "" && figures == t.figures)
}

// tagOf returns the tag of a whole difference.
func (c *Comparison) tagOf(totals *DiffTotals) tag {
	return tag{c.stateHash(), c.figuresHash(totals)}
}

func (c *Comparison) stateHash() string {
	h := sha256.New()
	fmt.Fprintln(h, c.Rebuild.ID, c.Rebuild.Generation)
	for i := range c.base {
		fmt.Fprintln(h, c.base[i].flip, c.base[i].Generation)
	}
	for _, p := range c.Positions {
		fmt.Fprintln(h, p)
	}
	return short(h)
}

func (c *Comparison) figuresHash(t *DiffTotals) string {
	if !c.projection.Diff.Sums || t.Delta == nil {
		return ""
	}
	h := sha256.New()
	fmt.Fprintln(h, c.Rebuild.ID, c.Rebuild.Generation)
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
	boundSums   = `SET LOCAL statement_timeout = '1500ms'`
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
	now := tag{state: c.stateHash()}
	if slices.ContainsFunc(shown, now.is) {
		return nil, nil
	}
	if c.projection, err = projections.Find(list, c.Rebuild.Projection); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, boundSums); err != nil {
		return nil, fmt.Errorf("prepare to compare with a shown difference: %w", err)
	}
	totals, err := c.totals(ctx, tx, DiffQuery{RebuildID: id})
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == canceled && ctx.Err() == nil {
		return nil, &domain.Error{Code: "state_changed", Message: "The positions are not those of the difference that was shown, and its sums take too long to compare; read it again"}
	}
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, unboundSums); err != nil {
		return nil, fmt.Errorf("compare with a shown difference: %w", err)
	}
	if now = c.tagOf(totals); slices.ContainsFunc(shown, now.is) {
		return nil, nil
	}
	return &domain.Current{Keys: &totals.Differing, Delta: totals.Delta, ETag: now.String()}, nil
}
