package relay

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
)

// recordToWithhold appends one event, and returns it with a relay and the span of its partition.
func recordToWithhold(t *testing.T, pool *pgxpool.Pool) (*Subscriber, span, *events.Envelope) {
	t.Helper()
	log, err := eventlog.New(t.Context(), pool,
		eventlog.Config{Producer: events.Producer{Service: "meterplex", Instance: "test", Commit: "x"},
			Written: localtest.CheckPayloads(t).Written})
	must.OK(t, err)
	t.Cleanup(log.Close)
	tenant := uuid.New()
	if err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := log.AppendTx(t.Context(), tx,
			[]events.Pending{{EventID: uuid.New(), Subject: events.UsageRecorded, TenantID: tenant, DedupeKey: "u/x",
				Actor: events.Actor{Type: "api_key", ID: "k"}, Residency: events.ResidencyUnspecified, OccurredAt: time.Now(),
				Payload: []byte(`{"amount":1,"eventId":"x","feature":"f","timestamp":"2026-05-01T00:00:00Z","type":"usage"}`),
				Counts:  events.Counts{Accepted: 1}}})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	sp := span{partition: events.PartitionOf(tenant)}
	list, err := log.Read(t.Context(), sp.partition, 0, 1, 1)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	// The fence was set when the epoch was raised.
	must.OK(t, pool.QueryRow(t.Context(), `SELECT fence FROM relay_cursors WHERE partition = $1`, sp.partition).Scan(&sp.fence))
	return &Subscriber{Relay: &Relay{Pool: pool, Log: log, Appender: log, NewID: uuid.New, Now: time.Now}}, sp, &list[0]
}

// A record that is withheld again, because the COMMIT that withheld it had no answer, keeps its one dead letter, and is parked once. An
// archived tenant's has no text of the broker.
func TestP3_ARecordIsWithheldOnce(t *testing.T) {
	_, pool := migrated(t, false)
	s, sp, event := recordToWithhold(t, pool)
	must.Exec(t, pool, `INSERT INTO tenants (id, name, class, status, created_at) VALUES ($1, 'T', 'small', 'ARCHIVED', now())`,
		event.TenantID)
	for range 2 {
		if late, err := s.withholdTx(t.Context(), sp, event, errors.New("refused")); err != nil || late {
			t.Fatalf("late %t, %v", late, err)
		}
	}
	var letters, parked, withheld int64
	const sql = `SELECT (SELECT count(*) FROM event_log_rows WHERE subject = $1), (SELECT sum(parked) FROM log_heads), (SELECT count(*)
		FROM withheld_records WHERE reason = 'erased')`
	if err := pool.QueryRow(t.Context(), sql, int16(events.PublishFailed)).Scan(&letters, &parked, &withheld); err != nil || letters != 1 ||
		parked != 1 || withheld != 1 {
		t.Errorf("%d dead letters, %d parked, %d withheld records, want one of each: %v", letters, parked, withheld, err)
	}
}

// A relay may wait for the consumer before it withholds a record. Meanwhile the cursor must not be
// locked: the renewal of all its leases would wait for it.
func TestP3_CursorIsFreeWhileTheConsumerIsWaitedFor(t *testing.T) {
	url, pool := migrated(t, false)
	s, sp, event := recordToWithhold(t, pool)
	consumer, err := pool.Begin(t.Context())
	must.OK(t, err)
	defer func() { _ = consumer.Rollback(context.Background()) }()
	must.Exec(t, consumer, lockCheckpointsSQL, events.GroupValidator, sp.partition)
	owner, err := postgres.OwnerDB(url) // the service's role cannot see the waits of other sessions
	must.OK(t, err)
	defer owner.Close()
	done := make(chan error, 1)
	go func() {
		_, err := s.withholdTx(t.Context(), sp, event, errors.New("refused"))
		done <- err
	}()
	for waits := false; !waits; time.Sleep(5 * time.Millisecond) {
		const sql = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`
		must.OK(t, owner.QueryRowContext(t.Context(), sql).Scan(&waits))
		select {
		case err := <-done:
			t.Fatalf("withhold did not wait: %v", err)
		default:
		}
	}
	if _, err := pool.Exec(t.Context(), `SELECT FROM relay_cursors WHERE partition = $1 FOR UPDATE NOWAIT`, sp.partition); err != nil {
		t.Errorf("a lease cannot be renewed: %v", err)
	}
	must.OK(t, consumer.Rollback(t.Context()))
	var withheld int
	if err := <-done; err != nil || pool.QueryRow(t.Context(), `SELECT count(*) FROM withheld_records WHERE NOT late`).
		Scan(&withheld) != nil || withheld != 1 {
		t.Errorf("%d records were withheld: %v", withheld, err)
	}
}
