package relay

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog"
)

// A relay may wait for the consumer before it withholds a record. Meanwhile the cursor must not be
// locked: the renewal of all its leases would wait for it.
func TestP3_CursorIsFreeWhileTheConsumerIsWaitedFor(t *testing.T) {
	url, pool := migrated(t, false)
	log, err := eventlog.New(t.Context(), pool, eventlog.Config{Producer: events.Producer{Service: "meterplex", Instance: "test", Commit: "x"}, Written: localtest.CheckPayloads(t).Written})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(log.Close)
	tenant := uuid.New()
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := log.AppendTx(t.Context(), tx, []events.Pending{{EventID: uuid.New(), Subject: events.UsageRecorded, TenantID: tenant, DedupeKey: "u/x",
			Actor: events.Actor{Type: "api_key", ID: "k"}, Residency: events.ResidencyUnspecified, OccurredAt: time.Now(), Payload: []byte(`{"amount":1,"eventId":"x","feature":"f","timestamp":"2026-05-01T00:00:00Z","type":"usage"}`), Counts: events.Counts{Accepted: 1}}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	partition := events.PartitionOf(tenant)
	list, err := log.Read(t.Context(), partition, 0, 1, 1)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	consumer, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = consumer.Rollback(context.Background()) }()
	if _, err := consumer.Exec(t.Context(), lockCheckpointsSQL, events.GroupValidator, partition); err != nil {
		t.Fatal(err)
	}
	s := &Subscriber{Relay: &Relay{Pool: pool, Log: log, Appender: log, NewID: uuid.New, Now: time.Now}}
	owner, err := postgres.OwnerDB(url) // the service's role cannot see the waits of other sessions
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	var fence int64 // set when the epoch was raised
	if err := owner.QueryRowContext(t.Context(), `SELECT fence FROM relay_cursors WHERE partition = $1`, partition).Scan(&fence); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := s.withholdTx(t.Context(), span{partition: partition, fence: fence}, &list[0], errors.New("refused"))
		done <- err
	}()
	for waits := false; !waits; time.Sleep(5 * time.Millisecond) {
		const sql = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`
		if err := owner.QueryRowContext(t.Context(), sql).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			t.Fatalf("withhold did not wait: %v", err)
		default:
		}
	}
	if _, err := pool.Exec(t.Context(), `SELECT FROM relay_cursors WHERE partition = $1 FOR UPDATE NOWAIT`, partition); err != nil {
		t.Errorf("a lease cannot be renewed: %v", err)
	}
	if err := consumer.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	var withheld int
	if err := <-done; err != nil || pool.QueryRow(t.Context(), `SELECT count(*) FROM withheld_records WHERE NOT late`).Scan(&withheld) != nil || withheld != 1 {
		t.Errorf("%d records were withheld: %v", withheld, err)
	}
}
