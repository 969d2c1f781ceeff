package projections_test

import (
	"strings"
	"testing"

	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections/audit"
)

// TestKeptPlansUseTheKeys: plans made while the tables are empty are kept when the
// tables have grown.
func TestKeptPlansUseTheKeys(t *testing.T) {
	tier.AtSize(t)
	w := newLogFixture(t)
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: w.url, KeepPlans: true})
	w.must(err)
	t.Cleanup(pool.Close)
	conn, err := pool.Acquire(t.Context())
	w.must(err)
	defer conn.Release()
	for name, sql := range KeptStatements() {
		plan := localtest.Plan(t, conn.Conn(), sql)
		for _, bad := range []string{"Seq Scan", "Bitmap", "Hash Join", "Merge Join", "Materialize"} {
			if strings.Contains(plan, bad) {
				t.Errorf("%s: %s in\n%s", name, bad, plan)
			}
		}
		if lines := strings.Split(plan, "\n"); name == "targets" {
			for i, line := range lines {
				if strings.Contains(line, "Index") && strings.Contains(line, "Scan") && (i+1 == len(lines) || !strings.Contains(lines[i+1], "Index Cond")) {
					t.Errorf("%s: a whole index is read in\n%s", name, plan)
				}
			}
		}
		if name == "histories" && !strings.Contains(plan, "Index Cond: (tenant_id = ANY") {
			t.Errorf("histories are not read by the tenant:\n%s", plan)
		}
	}
}

// A statement without parameters keeps the plan that a session made while the log was empty.
func TestTheOutboxIsReadByTheKeyOfTheLog(t *testing.T) {
	tier.AtSize(t)
	w := newLogFixture(t)
	conn, err := w.pool.Acquire(t.Context())
	w.must(err)
	defer conn.Release()
	for name, sql := range audit.Statements() {
		if plan := localtest.Plan(t, conn.Conn(), sql); !localtest.LogByKey(plan) {
			t.Errorf("%s does not read the log by its key:\n%s", name, plan)
		}
	}
}
