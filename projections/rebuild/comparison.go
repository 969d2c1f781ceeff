package rebuild

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// pointer is a flip that decides which generation readers see.
type pointer struct {
	projections.Scope
	flip        int
	Generation  int
	FoldVersion string
	broken      bool
	dropped     bool
}

// covers reports whether, within a scope, this pointer hides the other one completely.
func (p *pointer) covers(o *pointer, within projections.Scope) bool {
	tenant := p.TenantID == uuid.Nil || p.TenantID == o.TenantID || p.TenantID == within.TenantID
	period := p.PeriodKey == "" || p.PeriodKey == o.PeriodKey || p.PeriodKey == within.PeriodKey
	return tenant && period
}

// Comparison compares a rebuild with the rows readers see without it, in one snapshot.
type Comparison struct {
	Rebuild    domain.Rebuild
	projection *projections.Projection
	Scope      projections.Scope
	Positions  []events.Position // of both sides
	base       []pointer         // the live side, by flip
}

// readBase reads the other side: before a promotion the live rows, after it the previous ones.
const readBase = `
SELECT p.tenant_id, p.period_key, p.flip, p.generation, g.fold_version, g.broken IS NOT NULL, g.dropped_at IS NOT NULL
FROM projection_pointers p JOIN projection_generations g USING (projection, generation)
WHERE p.projection = $1
  AND CASE WHEN $2::int IS NULL THEN p.undone_flip IS NULL ELSE p.flip <= $2 AND (p.undone_flip IS NULL OR p.undone_flip > $2) END
  AND ($3 = '00000000-0000-0000-0000-000000000000'::uuid OR p.tenant_id IN ($3, '00000000-0000-0000-0000-000000000000'))
  AND ($4 = '' OR p.period_key IN ($4, ''))
ORDER BY p.flip`

const readEqual = `
SELECT u.partition, coalesce(own.position, 0), coalesce(own.joined, false) AND coalesce((
         SELECT bool_and(l.joined AND l.position = own.position) FROM consumer_checkpoints l
         WHERE l.consumer = $2 AND l.partition = u.partition AND l.generation = ANY ($4::int[])), false)
FROM rebuild_units u
LEFT JOIN consumer_checkpoints own ON own.consumer = $2 AND own.generation = $3 AND own.partition = u.partition
WHERE u.rebuild_id = $1
ORDER BY u.partition`

// Compare finds the two sides of a rebuild's difference and checks that their positions
// are equal; if not, it returns a *domain.Error.
func Compare(ctx context.Context, tx pgx.Tx, id uuid.UUID) (*Comparison, error) {
	of, err := rebuildIn(ctx, tx, id)
	if err != nil {
		return nil, err
	}
	if no := of.Comparable(); no != nil {
		return nil, no
	}
	c := &Comparison{Rebuild: of, Scope: projections.Scope{TenantID: of.TenantID, PeriodKey: of.PeriodKey}}
	if err := c.readBase(ctx, tx); err != nil {
		return nil, err
	}
	return c, c.readPositions(ctx, tx)
}

func (c *Comparison) readBase(ctx context.Context, tx pgx.Tx) error {
	var asOf *int
	if c.Rebuild.State == domain.RebuildPromoted {
		before := c.Rebuild.Flip - 1
		asOf = &before
	}
	var all []pointer
	err := query.Run(ctx, tx, query.New(readBase, []any{c.Rebuild.Projection, asOf, c.Rebuild.TenantID, c.Rebuild.PeriodKey},
		query.Each(func(rows pgx.Rows) error {
			var p pointer
			err := rows.Scan(&p.TenantID, &p.PeriodKey, &p.flip, &p.Generation, &p.FoldVersion, &p.broken, &p.dropped)
			all = append(all, p)
			return err
		})))
	if err != nil {
		return err
	}
	for i := range all {
		covered := false
		for j := i + 1; j < len(all); j++ {
			covered = covered || all[j].covers(&all[i], c.Scope)
		}
		switch {
		case covered:
		case all[i].dropped || all[i].broken:
			return notEqual(fmt.Sprintf("the rows of generation %d, with which it is compared, are no longer kept", all[i].Generation))
		default:
			c.base = append(c.base, all[i])
		}
	}
	if len(c.base) == 0 {
		return query.ErrNoLiveGeneration
	}
	return nil
}

func (c *Comparison) readPositions(ctx context.Context, tx pgx.Tx) error {
	var live []int
	for i := range c.base {
		live = append(live, c.base[i].Generation)
	}
	apart := -1
	err := query.Run(ctx, tx, query.New(readEqual, []any{c.Rebuild.ID, c.Rebuild.Consumer, c.Rebuild.Generation, live},
		query.Each(func(rows pgx.Rows) error {
			var p events.Position
			var equal bool
			err := rows.Scan(&p.Partition, &p.Number, &equal)
			if !equal {
				apart = int(p.Partition)
			}
			c.Positions = append(c.Positions, p)
			return err
		})))
	switch {
	case err != nil:
		return err
	case len(c.Positions) == 0:
		return notEqual("it is still FOLDING or CATCHING_UP, or its rows are no longer kept")
	case apart >= 0:
		return notEqual(fmt.Sprintf("in partition %d the live and the rebuilt rows are not at equal positions", apart))
	}
	return nil
}

func notEqual(why string) error {
	return &domain.Error{Code: "rebuild_not_ready", Message: "The rebuild has no difference to show: " + why}
}

// Live returns the pointer that shows a figure without the rebuild.
func (c *Comparison) Live(tenant uuid.UUID, period string) *pointer {
	for i := len(c.base) - 1; i >= 0; i-- {
		if p := &c.base[i]; p.HasTenant(tenant) && p.HasPeriod(period) {
			return p
		}
	}
	return nil
}
