package projections_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/projections/usage"
)

// Late usage is that of each tenant with a closed period whose live figures are of another fold, under the last flip of these: whatever
// promotions of all tenants, of one, and of one period follow each other, and whichever are rolled back.
func TestP8_LateUsageIsOfThePeriodsThatAnotherFoldCounts(t *testing.T) {
	f := newCloseFixture(t)
	ctx, tenants, closed := t.Context(), []uuid.UUID{newID(), newID(), newID()}, []string{"2026-03", "2026-04"}
	f.must(second(f.pool.Exec(ctx, `INSERT INTO period_snapshots SELECT t, p, 1, 1, 1, now(), 'x', 'x', 'x', 1, '{}' FROM unnest($1::uuid[]) t, unnest($2::text[]) p`, tenants, closed)))
	f.must(second(f.pool.Exec(ctx, `INSERT INTO adjustments (id, tenant_id, period_key, snapshot, feature, subscription_id, kind, amount, event_count, position, recorded, state)
 SELECT gen_random_uuid(), t, '2026-03', 1, 'calls', t, 'LATE_USAGE', 1, 1, 1, 1, 'PENDING' FROM unnest($1::uuid[]) t`, tenants[:2])))
	f.must(second(f.pool.Exec(ctx, `INSERT INTO projection_generations (projection, generation, fold_version) VALUES ('usage_aggregates', 101, $1), ('usage_aggregates', 102, $2)`, usage.V1, largeTwice)))
	random, listed := rand.New(rand.NewPCG(1, 2)), 0
	for round := range 60 {
		f.must(second(f.pool.Exec(ctx, `DELETE FROM projection_pointers WHERE projection = 'usage_aggregates' AND flip >= 1000`)))
		for n := range random.IntN(6) {
			var undone *int
			if random.IntN(4) == 0 {
				undone = new(int)
				*undone = 2000
			}
			f.must(second(f.pool.Exec(ctx, `INSERT INTO projection_pointers (projection, tenant_id, period_key, generation, flip, undone_flip, live) VALUES ('usage_aggregates', $1, $2, $3, $4, $5, $5::int IS NULL)`,
				append([]uuid.UUID{uuid.Nil}, tenants...)[random.IntN(4)], append([]string{""}, closed...)[random.IntN(3)], 101+random.IntN(2), 1000+n, undone)))
		}
		rows, err := f.pool.Query(ctx, `SELECT t || ' ' || max(l.flip) FROM unnest($1::uuid[]) t CROSS JOIN unnest($2::text[]) p
 JOIN projection_pointers l ON l.projection = 'usage_aggregates' AND l.flip >= 1000 AND l.generation = 102 AND l.generation = live_generation('usage_aggregates', t, p) AND l.undone_flip IS NULL
  AND l.tenant_id IN (t, '00000000-0000-0000-0000-000000000000') AND l.period_key IN (p, '')
  AND NOT EXISTS (SELECT FROM projection_pointers o WHERE o.projection = l.projection AND o.flip > l.flip AND o.undone_flip IS NULL
   AND o.tenant_id IN (t, '00000000-0000-0000-0000-000000000000') AND o.period_key IN (p, '')) GROUP BY t ORDER BY t`, tenants[:2], closed)
		f.must(err)
		want, err := pgx.CollectRows(rows, pgx.RowTo[string])
		f.must(err)
		list, _, err := f.periods.Store.LateUsage(ctx, uuid.Nil)
		f.must(err)
		var got []string
		for _, l := range list {
			got = append(got, fmt.Sprint(l.TenantID, " ", l.Flip))
		}
		if listed += len(got); !slices.Equal(got, want) {
			t.Fatalf("round %d: late usage of\n%s\nand not of\n%s", round, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if listed < 20 {
		t.Errorf("only %d times late usage", listed)
	}
}
