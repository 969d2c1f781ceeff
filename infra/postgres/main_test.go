package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/internal/localtest"
)

func TestMain(m *testing.M) {
	postgres.AppendOne = appendOne
	localtest.Main(m, localtest.NoLeaks())
}

// appendOne starts an event log on a database, and appends an event as ingest does.
func appendOne(ctx context.Context, pool *pgxpool.Pool, tenant uuid.UUID) (events.Position, error) {
	l, err := eventlog.New(ctx, pool, eventlog.Config{Producer: events.Producer{Service: "meterplex", Instance: "test", Commit: "x"},
		LongestWait: time.Hour})
	if err != nil {
		return events.Position{}, err
	}
	defer l.Close()
	outcomes, err := l.Submit(ctx, tenant, []metering.Submitted{{Pending: events.Pending{
		EventID: uuid.Must(uuid.NewV7()), Subject: events.UsageRecorded, TenantID: tenant, DedupeKey: events.KeyUsage("a"),
		Canonical: strictjson.Version, Actor: events.Actor{Type: "api_key", ID: "k"}, Residency: events.ResidencyUnspecified,
		OccurredAt: time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC), Payload: []byte(`[1,"f"]`), Counts: events.Counts{Accepted: 1},
	}}})
	if err != nil {
		return events.Position{}, err
	}
	return outcomes[0].Position, nil
}
