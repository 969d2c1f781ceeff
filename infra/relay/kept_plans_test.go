package relay

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/relay/cursors"
	"github.com/meterplex/meterplex/internal/tier"
)

// TestKeptPlansReadTheLogByItsKey checks plans that were made for an empty log and are kept after it has
// grown.
func TestKeptPlansReadTheLogByItsKey(t *testing.T) {
	tier.AtSize(t)
	_, pool := migrated(t, true)
	for name, sql := range map[string]string{"withhold": withholdSQL, "move": cursors.Statements()["move"], "heads": headsSQL} {
		plan := planned(t, pool, sql)
		if strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "Bitmap") {
			t.Errorf("%s reads all of a table:\n%s", name, plan)
		}
		if strings.Contains(plan, "on event_log_rows") && !localtest.LogByKey(plan) {
			t.Errorf("%s does not read the log by its key:\n%s", name, plan)
		}
	}
}

func planned(t *testing.T, pool *pgxpool.Pool, sql string) string {
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	return localtest.Plan(t, conn.Conn(), sql)
}
