package relay

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
)

// A relay may wait for the consumer before it withholds a record. Meanwhile the cursor must not be
// locked: the renewal of all its leases would wait for it.
func TestP3_CursorIsFreeWhileTheConsumerIsWaitedFor(t *testing.T) {
	url, pool := migrated(t, false)
	s, sp, event := recordToWithhold(t, pool)
	consumer, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = consumer.Rollback(context.Background()) }()
	if _, err := consumer.Exec(t.Context(), lockCheckpointsSQL, events.GroupValidator, sp.partition); err != nil {
		t.Fatal(err)
	}
	owner, err := postgres.OwnerDB(url) // the service's role cannot see the waits of other sessions
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	done := make(chan error, 1)
	go func() {
		_, err := s.withholdTx(t.Context(), sp, event, errors.New("refused"))
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
	if _, err := pool.Exec(t.Context(), `SELECT FROM relay_cursors WHERE partition = $1 FOR UPDATE NOWAIT`, sp.partition); err != nil {
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
