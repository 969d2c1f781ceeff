package projections

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// pointer is a flip that readers may be sent by.
type pointer struct {
	Scope
	flip        int
	generation  int
	foldVersion string
	broken      bool
	dropped     bool
}

// covers reports whether within a scope everything of another pointer is this one's.
func (p *pointer) covers(o *pointer, within Scope) bool {
	tenant := p.TenantID == uuid.Nil || p.TenantID == o.TenantID || p.TenantID == within.TenantID
	period := p.PeriodKey == "" || p.PeriodKey == o.PeriodKey || p.PeriodKey == within.PeriodKey
	return tenant && period
}

// comparison is a rebuild beside what readers see without it, in one snapshot.
type comparison struct {
	rebuild    domain.Rebuild
	projection *Projection
	scope      Scope
	positions  []events.Position // at which both sides stand
	base       []pointer         // the live side, by flip
}

// Before a promotion the other side is what is live; after it, what was live then.
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

// compare finds the two sides of a rebuild's difference, and that they are at equal
// positions; a *domain.Error where they are not.
func compare(ctx context.Context, tx pgx.Tx, id uuid.UUID) (*comparison, error) {
	of, err := rebuildIn(ctx, tx, id)
	if err != nil {
		return nil, err
	}
	if no := of.Comparable(); no != nil {
		return nil, no
	}
	c := &comparison{rebuild: of, scope: Scope{TenantID: of.TenantID, PeriodKey: of.PeriodKey}}
	if err := c.readBase(ctx, tx); err != nil {
		return nil, err
	}
	return c, c.readPositions(ctx, tx)
}

func (c *comparison) readBase(ctx context.Context, tx pgx.Tx) error {
	var asOf *int
	if c.rebuild.State == domain.RebuildPromoted {
		before := c.rebuild.Flip - 1
		asOf = &before
	}
	var all []pointer
	err := step(ctx, tx, statement(readBase, []any{c.rebuild.Projection, asOf, c.rebuild.TenantID, c.rebuild.PeriodKey}, each(func(rows pgx.Rows) error {
		var p pointer
		err := rows.Scan(&p.TenantID, &p.PeriodKey, &p.flip, &p.generation, &p.foldVersion, &p.broken, &p.dropped)
		all = append(all, p)
		return err
	})))
	if err != nil {
		return err
	}
	for i := range all {
		covered := false
		for j := i + 1; j < len(all); j++ {
			covered = covered || all[j].covers(&all[i], c.scope)
		}
		switch {
		case covered:
		case all[i].dropped || all[i].broken:
			return notEqual(fmt.Sprintf("what it is to be compared with, generation %d, is no longer kept", all[i].generation))
		default:
			c.base = append(c.base, all[i])
		}
	}
	if len(c.base) == 0 {
		return errNoStanding
	}
	return nil
}

func (c *comparison) readPositions(ctx context.Context, tx pgx.Tx) error {
	var live []int
	for i := range c.base {
		live = append(live, c.base[i].generation)
	}
	apart := -1
	err := step(ctx, tx, statement(readEqual, []any{c.rebuild.ID, c.rebuild.Consumer, c.rebuild.Generation, live}, each(func(rows pgx.Rows) error {
		var p events.Position
		var equal bool
		err := rows.Scan(&p.Partition, &p.Number, &equal)
		if !equal {
			apart = int(p.Partition)
		}
		c.positions = append(c.positions, p)
		return err
	})))
	switch {
	case err != nil:
		return err
	case len(c.positions) == 0:
		return notEqual("nothing of it is folded")
	case apart >= 0:
		return notEqual(fmt.Sprintf("in partition %d the two generations are not at equal positions", apart))
	}
	return nil
}

func notEqual(why string) error {
	return &domain.Error{Code: "rebuild_not_ready", Message: "The rebuild has no difference to show: " + why}
}

// live gives the pointer that a figure is seen by without the rebuild.
func (c *comparison) live(tenant uuid.UUID, period string) *pointer {
	for i := len(c.base) - 1; i >= 0; i-- {
		if p := &c.base[i]; p.hasTenant(tenant) && p.hasPeriod(period) {
			return p
		}
	}
	return nil
}
