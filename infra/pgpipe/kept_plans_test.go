package pgpipe

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/tier"
)

// TestKeptPlansOfAnEmptyPipeAreThoseOfALargeOne: a plan from when a topic had no rows is kept after it has many, and must still be a
// range scan of the key.
func TestKeptPlansOfAnEmptyPipeAreThoseOfALargeOne(t *testing.T) {
	tier.AtSize(t)
	url := localtest.Migrated(t, postgres.Migrate)
	owner, err := postgres.OwnerDB(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { owner.Close() })
	cfg := Config{DB: owner, Logger: slog.New(slog.DiscardHandler)}
	if err := Ensure(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	const topic = "usage.raw"
	polled := cfg.schema().SelectQuery(topic, "g", cfg.offsets()).Query
	for name, statement := range map[string]string{
		"poll": polled, "lag": fmt.Sprintf(lagRows, cfg.messagesTable(topic), cfg.offsetsTable(topic)), "trim": fmt.Sprintf(trimRows, cfg.messagesTable(topic), cfg.offsetsTable(topic)),
		"restored": cfg.format(topic, lastRestored),
	} {
		plan := keptPlan(t, url, statement)
		for _, bad := range []string{"Seq Scan on pipe_usage_raw", "Bitmap", "Hash Join", "Merge Join"} {
			if strings.Contains(plan, bad) {
				t.Errorf("%s: %s in\n%s", name, bad, plan)
			}
		}
		if !strings.Contains(plan, `Scan using pipe_usage_raw_pkey`) {
			t.Errorf("%s is no stretch of the key:\n%s", name, plan)
		}
	}
}

// keptPlan returns the plan of a statement in a session as those of the service's readers.
func keptPlan(t *testing.T, url, statement string) (plan string) {
	t.Helper()
	db, err := postgres.WorkerDB(postgres.Config{URL: url, KeepPlans: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Raw(func(c any) error {
		plan = localtest.Plan(t, c.(*stdlib.Conn).Conn(), statement)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return plan
}
