package crossings

import (
	"strings"
	"testing"

	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }

// TestKeptPlansOfThresholdsReadNoWholeTable: a plan from when the log was empty is kept after it has grown.
func TestKeptPlansOfThresholdsReadNoWholeTable(t *testing.T) {
	tier.AtSize(t)
	url := localtest.Migrated(t, postgres.Migrate)
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url, KeepPlans: true})
	must.OK(t, err)
	t.Cleanup(pool.Close)
	conn, err := pool.Acquire(t.Context())
	must.OK(t, err)
	defer conn.Release()
	for name, sql := range map[string]string{"watchers": watchersSQL, "watched": watchedSQL} {
		if plan := localtest.Plan(t, conn.Conn(), sql); strings.Contains(plan, "Seq Scan") {
			t.Errorf("%s reads a whole table:\n%s", name, plan)
		}
	}
}
