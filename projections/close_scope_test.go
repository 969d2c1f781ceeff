package projections_test

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/projections"
)

// A close waits for rebuilds in each open state whose scope has the period, and for no other.
func TestP8_OnlyRebuildsOfThePeriodAreAwaited(t *testing.T) {
	f := newCloseFixture(t)
	f.record("a", "calls", 10)
	f.flow()
	r := f.start(commands.StartRebuild{Projection: projections.ProjectionUsage, TenantID: f.tenant})
	c := f.request()
	f.flow()
	other := newID()
	for _, s := range []struct {
		tenant        uuid.UUID
		period, state string
		waits         bool
	}{
		{f.tenant, "", "FOLDING", true}, {f.tenant, "", "CATCHING_UP", true}, {f.tenant, "", "READY", true}, {uuid.Nil, "", "READY", true}, {f.tenant, "2026-05", "READY", true},
		{uuid.Nil, "2026-05", "FOLDING", true}, {other, "", "READY", false}, {f.tenant, "2026-04", "READY", false}, {uuid.Nil, "2026", "READY", false}, {f.tenant, "", "FAILED", false},
	} {
		f.must(second(f.pool.Exec(t.Context(), `UPDATE projection_rebuilds SET tenant_id = $2, period_key = $3, state = $4 WHERE id = $1`, r.ID, s.tenant, s.period, s.state)))
		missing, err := f.periods.Store.Missing(t.Context(), domain.Closing{TenantID: f.tenant, PeriodKey: "2026-05", Snapshot: c.Snapshot})
		f.must(err)
		if slices.Equal(missing, []string{domain.MissingRebuilds}) != s.waits || !s.waits && len(missing) > 0 {
			t.Errorf("a close waits for %v beside a rebuild of %q of %s that is %s", missing, s.period, s.tenant, s.state)
		}
	}
	f.must(second(f.pool.Exec(t.Context(), `UPDATE projection_rebuilds SET tenant_id = $2, period_key = '', state = 'FOLDING' WHERE id = $1`, r.ID, f.tenant)))
	f.waits(c, domain.MissingRebuilds)
	_, err := f.rebuilds.Abandon(t.Context(), commands.Request{By: operatorKey}, r.ID, "test")
	f.must(err)
	f.ends(c)
	f.want("lines", f.lines(), "calls 10/1")
}

// A period is due when the hours of the policy have passed since its end; months, years, not lifetime.
func TestP8_ClosesAreDueHoursAfterTheEnd(t *testing.T) {
	f := newCloseFixture(t)
	f.must(second(f.pool.Exec(t.Context(), `INSERT INTO usage_aggregates (generation, tenant_id, feature, period_key, subscription_id, amount, event_count, period_start, period_end, last_event_at, partition, applied_count)
SELECT 1, $1, 'calls', p.key, $1, 1, 1, CASE WHEN p.key <> 'lifetime' THEN now() - interval '40 days' END, now() - p.since, now(), $2, 1
FROM (VALUES ('2026-05', interval '90 minutes'), ('2026-04', interval '121 minutes'), ('2025', interval '3 hours'), ('2026', interval '-1 hour'), ('lifetime', NULL)) p (key, since)`, f.tenant, f.partition)))
	due := func() (keys string) {
		for last := (domain.Closing{}); ; {
			list, err := f.periods.Store.DueCloses(t.Context(), last, 1)
			if f.must(err); len(list) == 0 {
				return keys
			}
			last = list[0]
			keys += last.PeriodKey + " "
		}
	}
	f.want("due without a policy", due(), "")
	f.must(second(f.pool.Exec(t.Context(), `UPDATE tenants SET close_after_hours = 2 WHERE id = $1`, f.tenant)))
	f.want("due after 2 hours", due(), "2025 2026-04 ")
	f.must(second(f.pool.Exec(t.Context(), `UPDATE tenants SET close_after_hours = 1 WHERE id = $1`, f.tenant)))
	f.want("due after an hour", due(), "2025 2026-04 2026-05 ")
	f.must(second(f.pool.Exec(t.Context(), `UPDATE tenants SET status = 'ARCHIVED' WHERE id = $1`, f.tenant)))
	f.want("due of an archived tenant", due(), "")
}

// While figures are frozen, no verdict is folded, and nothing is appended to the tenant's partition.
func TestP8_AFreezeLocksTheFigures(t *testing.T) {
	f := newCloseFixture(t)
	f.must(f.periods.Store.FreezePeriod(t.Context(), f.tenant, func(commands.FreezeTx) error {
		for _, lock := range []string{`SELECT FROM consumer_checkpoints WHERE consumer = 'meterplex-usage-aggregator' AND partition = $1 FOR UPDATE NOWAIT`,
			`SELECT FROM log_heads WHERE partition = $1 FOR UPDATE NOWAIT`} {
			if _, err := f.pool.Exec(t.Context(), lock, f.partition); err == nil {
				t.Errorf("not held: %s", lock)
			}
		}
		return nil
	}))
}
