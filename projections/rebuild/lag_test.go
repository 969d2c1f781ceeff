package rebuild

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/projections"
)

// GET /projections finds the first waiting event of a rare topic without reading those of other topics.
func TestLagOfARareTopicIsReadAlongItsChain(t *testing.T) {
	tier.AtSize(t)
	conn, err := pgx.Connect(t.Context(), localtest.SuperuserURL(t, localtest.Migrated(t, postgres.Migrate)))
	must.OK(t, err)
	defer conn.Close(t.Context())
	args := []any{[]string{projections.ProjectionDeadLetters, projections.ProjectionEntitlements}, []int16{int16(events.TopicUsageDeadLetter), 0}, []string{events.GroupDeadLetter, events.GroupEntitlements}}
	localtest.RareEventWaits(t, conn, readProjectionLag, args...)
	rows, err := conn.Query(t.Context(), readProjectionLag, args...)
	must.OK(t, err)
	var of, version string
	var generation int
	var checkpoint, behind int64
	var age float64
	if _, err := pgx.ForEachRow(rows, []any{&of, &generation, &version, &checkpoint, &behind, &age}, func() error {
		if letters := of == projections.ProjectionDeadLetters; letters && (behind != 20_001 || age < 59 || age > 600) || !letters && (behind != 0 || age != 0) {
			t.Errorf("%s is %d events and %v s behind", of, behind, age)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
