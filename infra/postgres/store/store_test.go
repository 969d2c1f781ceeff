package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/logtest"
	"github.com/meterplex/meterplex/internal/must"
)

// openStore makes a migrated database with a log and a store on it.
func openStore(t testing.TB) (*Store, *eventlog.Log, *pgxpool.Pool, string) {
	url := localtest.Migrated(t, postgres.Migrate)
	s, l, pool := openStoreAt(t, url)
	return s, l, pool, url
}

func openStoreAt(t testing.TB, url string) (*Store, *eventlog.Log, *pgxpool.Pool) {
	l, pool := logtest.Open(t, url)
	return New(pool, l, Config{}), l, pool
}

func count(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	must.OK(t, pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

// holdHead locks a partition's head until it is released, and so blocks its appends.
func holdHead(t *testing.T, pool *pgxpool.Pool, partition int16) (let func()) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	must.OK(t, err)
	must.Exec(t, tx, `SET LOCAL idle_in_transaction_session_timeout = 0`)
	must.Exec(t, tx, `SELECT FROM log_heads WHERE partition = $1 FOR UPDATE`, partition)
	let = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	t.Cleanup(let)
	return let
}

func isOverloaded(err error) bool {
	var full *commands.Overloaded
	return errors.As(err, &full) && errors.Is(err, commands.ErrUnavailable)
}

// asOwner opens a database as its owner, which may write rows that the service may not.
func asOwner(t *testing.T, url string) *sql.DB {
	t.Helper()
	owner, err := postgres.OwnerDB(url)
	must.OK(t, err)
	t.Cleanup(func() { _ = owner.Close() })
	return owner
}

// usageEvent makes a submission, in short as those that are decoded; other amounts make other payloads.
func usageEvent(tenant uuid.UUID, eventID string, amount int) metering.Submitted {
	return metering.Submitted{Pending: events.Pending{
		EventID: uuid.Must(uuid.NewV7()), Subject: events.UsageRecorded, TenantID: tenant, DedupeKey: events.KeyUsage(eventID),
		Canonical: strictjson.Version, Actor: events.Actor{Type: "api_key", ID: "k"}, Residency: events.ResidencyUnspecified,
		OccurredAt: time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC),
		Payload:    fmt.Appendf(nil, `[%d,"f"]`, amount), Counts: events.Counts{Accepted: 1},
	}}
}

func submit(t testing.TB, l *eventlog.Log, tenant uuid.UUID, batch ...metering.Submitted) []metering.Outcome {
	t.Helper()
	outcomes, err := l.Submit(t.Context(), tenant, batch)
	must.OK(t, err)
	return outcomes
}

func TestMain(m *testing.M) { localtest.Main(m, localtest.NoLeaks()) }
