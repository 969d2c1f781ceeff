package reads

import (
	"strings"
	"testing"

	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }

// TestKeptPlansOfAnEmptyLogAreThoseOfALargeOne: a plan from when the log was empty is
// kept after it has grown, and must still be a range scan of the key.
func TestKeptPlansOfAnEmptyLogAreThoseOfALargeOne(t *testing.T) {
	tier.AtSize(t)
	url := localtest.Migrated(t, postgres.Migrate)
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url, KeepPlans: true})
	must.OK(t, err)
	t.Cleanup(pool.Close)
	conn, err := pool.Acquire(t.Context())
	must.OK(t, err)
	defer conn.Release()
	for name, sql := range map[string]string{"read": readSQL, "stretches": readStretchesSQL, "stretches of": readStretchesOfSQL} {
		plan := localtest.Plan(t, conn.Conn(), sql)
		for _, bad := range []string{"Seq Scan", "Bitmap", "Sort", "Hash", "Merge"} {
			if strings.Contains(plan, bad) {
				t.Errorf("%s: %s in\n%s", name, bad, plan)
			}
		}
		if !strings.Contains(plan, "Index Scan using event_log_rows_pkey") || !strings.Contains(plan, "> ") ||
			!strings.Contains(plan, "<= ") {
			t.Errorf("%s is no stretch of the key:\n%s", name, plan)
		}
	}
}
