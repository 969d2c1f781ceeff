package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// candidate is a generation that readers see, or could see after a promotion.
type candidate struct {
	number  int
	version string
	tenant  uuid.UUID
	period  string
	serving bool
	repairs []repair // that replaced its rows
}

// repair is the generation of a verify that found wrong rows and replaced them. The rows are known to be wrong, and readers never see them
// again: a repair cannot be rolled back.
type repair struct {
	of, by int
	tenant uuid.UUID
	period string
}

func (r *repair) covers(tenant uuid.UUID, period string) bool {
	return (r.tenant == uuid.Nil || r.tenant == tenant) && (r.period == "" || r.period == period)
}

// replacedBy returns the generation whose rows readers see instead of a figure's, since a repair; 0: none.
func (l *candidate) replacedBy(f figure) (by int) {
	for i := range l.repairs {
		if l.repairs[i].covers(f.tenant, f.period) {
			by = l.repairs[i].by
		}
	}
	return by
}

// replaced reports whether a repair replaced all rows.
func (l *candidate) replaced() bool {
	return slices.ContainsFunc(l.repairs, func(r repair) bool { return r.covers(l.tenant, l.period) })
}

// countable reports whether the rows of each repair that readers see are among those of the generations.
func (l *candidate) countable(all []candidate) bool {
	for i := range l.repairs {
		r := &l.repairs[i]
		later := slices.ContainsFunc(l.repairs[i+1:], func(o repair) bool { return o.covers(r.tenant, r.period) })
		if !later && !slices.ContainsFunc(all, func(g candidate) bool { return g.number == r.by }) {
			return false
		}
	}
	return true
}

func (l *candidate) has(f figure) bool {
	return (l.tenant == uuid.Nil || l.tenant == f.tenant) && (l.period == "" || l.period == f.period)
}

const candidatesSQL = `SELECT g.generation, g.fold_version, g.tenant_id, g.period_key, c.serving FROM projection_generations g
 JOIN consumer_checkpoints c ON c.consumer = $2 AND c.generation = g.generation AND c.partition = $3 AND c.joined
 WHERE g.projection = $1 AND g.dropped_at IS NULL ORDER BY 1`

// repairsSQL returns the repairs behind the last promotion of each generation, in their order.
const repairsSQL = `SELECT g.generation, p.generation, p.tenant_id, p.period_key FROM projection_pointers p
 JOIN projection_rebuilds r ON r.projection = p.projection AND r.generation = p.generation AND r.repair
 JOIN (SELECT generation, max(flip) AS flip FROM projection_pointers WHERE projection = $1 AND undone_flip IS NULL
 GROUP BY 1) g ON g.flip < p.flip
 WHERE p.projection = $1 AND p.undone_flip IS NULL ORDER BY p.flip`

// candidates returns the generations of a projection that are at the consumer's checkpoint and
// use a fold known to this program. Those whose rows were all replaced by a repair are left out.
func (x *pass) candidates(ctx context.Context, tx pgx.Tx, t *tally, projection, consumer string) ([]candidate, error) {
	var all []candidate
	var g candidate
	var r repair
	var repairs []repair
	err := each(ctx, tx, repairsSQL, []any{projection}, []any{&r.of, &r.by, &r.tenant, &r.period}, func() error {
		repairs = append(repairs, r)
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = each(ctx, tx, candidatesSQL, []any{projection, consumer, x.p}, []any{&g.number, &g.version, &g.tenant, &g.period, &g.serving},
		func() error {
			g.repairs = nil
			for _, r := range repairs { // those of a tenant replace rows of its partition only
				if r.of == g.number && (r.tenant == uuid.Nil || partitionOf(r.tenant) == x.p) {
					g.repairs = append(g.repairs, r)
				}
			}
			switch known := g.version == projection+"/v1"; {
			case g.replaced():
				t.note("generation %d is not checked: a repair found that it differs from the log, and replaced it", g.number)
			case known:
				all = append(all, g)
			case g.serving:
				t.incomplete(fmt.Errorf("generation %d of %s uses the unknown version %s", g.number, projection, g.version))
			default:
				t.note("generation %d, by %s, is not checked", g.number, g.version)
			}
			return nil
		})
	if err == nil && len(all) == 0 && t.undetermined == "" {
		t.incomplete(errors.New("no generation is at the consumer's checkpoint"))
	}
	return all, err
}
