package projections_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections/usage"
)

// writePeriod writes figures of $1 tenants, each of 20 features and 3 periods. Every hundredth tenant has a
// promoted generation of its own.
const (
	writePeriod = `
INSERT INTO usage_aggregates (generation, partition, tenant_id, feature, period_key, subscription_id, amount, event_count, applied_count, last_event_at)
SELECT 1, 0, md5(t::text)::uuid, 'f' || f, p, md5('s' || t)::uuid, t, 1, 1, now()
FROM generate_series(1, $1::int) t, generate_series(10, 29) f, unnest(ARRAY['2026-04', '2026-05', 'lifetime']) p`
	writeOwnGenerations = `
WITH own AS (SELECT 100 + t / 100 AS generation, md5(t::text)::uuid AS tenant FROM generate_series(100, $1::int, 100) t),
g AS (INSERT INTO projection_generations (projection, generation, fold_version, tenant_id) SELECT 'usage_aggregates', generation, 'usage_aggregates/v1', tenant FROM own),
p AS (INSERT INTO projection_pointers (projection, tenant_id, generation, flip) SELECT 'usage_aggregates', tenant, generation, generation FROM own),
c AS (INSERT INTO consumer_checkpoints (consumer, generation, partition) SELECT 'meterplex-usage-aggregator', generation, 0 FROM own)
INSERT INTO usage_aggregates (generation, partition, tenant_id, feature, period_key, subscription_id, amount, event_count, applied_count, last_event_at)
SELECT own.generation, a.partition, a.tenant_id, a.feature, a.period_key, a.subscription_id, -a.amount, 1, 1, a.last_event_at
FROM own JOIN usage_aggregates a ON a.generation = 1 AND a.tenant_id = own.tenant`
)

// P12: a page of the figures of all tenants costs the same for 2,000 tenants as for 20, of all features and of one.
func TestP12_PagesOfAPeriodDoNotGrowWithTheTenants(t *testing.T) {
	tier.AtSize(t)
	const tenants = 2000
	s := newSizeFixture(t)
	for _, sql := range []string{writePeriod, writeOwnGenerations} {
		s.must(second(s.pool.Exec(context.Background(), sql, tenants)))
	}
	s.must(second(s.pool.Exec(context.Background(), `ANALYZE usage_aggregates`)))
	s.endSessions()
	for feature, want := range map[string]int{"": 20 * tenants, "f17": tenants} {
		q := usage.PeriodQuery{PeriodKey: "2026-05", Feature: feature, Limit: 100}
		for page := range 3 {
			s.atMost(1500, fmt.Sprintf("page %d of %q", page, feature), func() {
				got, err := s.reads.OfPeriod(t.Context(), operator, q)
				if err != nil || len(got.Data) != 100 || got.Next == "" {
					t.Fatalf("%d figures, next %q, %v", len(got.Data), got.Next, err)
				}
				q.After = got.Next
			})
		}
		read, own, last := 0, 0, ""
		for q.After, q.Limit = "", 1000; ; {
			got, err := s.reads.OfPeriod(t.Context(), operator, q)
			s.must(err)
			for _, a := range got.Data {
				if at := a.TenantID.String() + a.Feature; at <= last {
					t.Fatalf("%s follows %s", at, last)
				} else {
					last = at
				}
				if read++; a.Amount[0] == '-' {
					own++
				}
			}
			if q.After = got.Next; q.After == "" {
				break
			}
		}
		if read != want || own != want/100 {
			t.Errorf("%q: %d figures, %d of promoted generations, want %d and %d", feature, read, own, want, want/100)
		}
	}
	page, err := s.reads.OfPeriod(t.Context(), tenantViewer(s.tenant), usage.PeriodQuery{PeriodKey: "2026-05"})
	if err != nil || len(page.Data) != 0 {
		t.Errorf("a tenant sees %d figures of others, %v", len(page.Data), err)
	}
}
