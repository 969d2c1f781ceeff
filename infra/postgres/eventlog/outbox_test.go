package eventlog

import (
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// An event that was withheld after its consumer had read it is no failure that anyone could act on.
func TestTheOutboxShowsLateStandInsAsPublished(t *testing.T) {
	t.Parallel()
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	submit(t, l, tenant, usageEvent(tenant, "a", 1), usageEvent(tenant, "b", 1))
	partition := events.PartitionOf(tenant)
	for _, sql := range []string{`UPDATE relay_cursors SET position = 2 WHERE partition = $1 AND $2::uuid IS NOT NULL`,
		`INSERT INTO withheld_records VALUES ($1, 1, 1, $2, gen_random_uuid(), 'x', now(), false), ($1, 2, 1, $2, NULL, 'x', now(), true)`} {
		if _, err := pool.Exec(t.Context(), sql, partition, tenant); err != nil {
			t.Fatal(err)
		}
	}
	var seen string
	if err := pool.QueryRow(t.Context(), `SELECT string_agg(status, ' ' ORDER BY position) FROM outbox_events WHERE partition = $1`, partition).Scan(&seen); err != nil || seen != "failed published" {
		t.Errorf("%q, %v", seen, err)
	}
}
