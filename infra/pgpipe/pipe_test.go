package pgpipe_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/pgpipe"
	"github.com/meterplex/meterplex/infra/watermill"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/pipetest"
)

// testTimeout bounds waits in tests. It is long because the machine may be busy.
const testTimeout = 2 * time.Minute

func newPublisher(t testing.TB, cfg pgpipe.Config) *pgpipe.Publisher {
	t.Helper()
	p, err := pgpipe.NewPublisher(cfg)
	must.OK(t, err)
	return p
}

func subscribe(t testing.TB, cfg pgpipe.SubscriberConfig) <-chan *message.Message {
	t.Helper()
	s, err := pgpipe.NewSubscriber(cfg)
	must.OK(t, err)
	t.Cleanup(func() { s.Close() })
	messages, err := s.Subscribe(context.Background(), "usage.raw")
	must.OK(t, err)
	return messages
}

func receive(t testing.TB, messages <-chan *message.Message) (*message.Message, []events.Record) {
	t.Helper()
	select {
	case msg := <-messages:
		if msg == nil {
			t.Fatal("the subscription ended")
		}
		records, err := watermill.Records(msg)
		must.OK(t, err)
		return msg, records
	case <-time.After(testTimeout):
		t.Fatal("no batch received")
		return nil, nil
	}
}

func publish(t testing.TB, pub *pgpipe.Publisher, from, n int) {
	t.Helper()
	records := pipetest.Make(events.TopicUsageRaw, from, n)
	must.OK(t, pipetest.Publish(context.Background(), pub, records))
	if records[0].Offset != -1 {
		t.Errorf("offset %d of a record that shares its row", records[0].Offset)
	}
}

func exec(t testing.TB, db *sql.DB, statement string, args ...any) {
	t.Helper()
	if _, err := db.Exec(statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func number(t testing.TB, db *sql.DB, query string, args ...any) (n int64) {
	t.Helper()
	if err := db.QueryRow(query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// TestRowsAreReadTogether publishes single records, one per row, and reads them in batches. A refused
// batch does not change when more rows arrive.
func TestRowsAreReadTogether(t *testing.T) {
	cfg, _ := config(t)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	for i := range 50 {
		publish(t, pub, i, 1)
	}
	messages := subscribe(t, pgpipe.SubscriberConfig{Config: cfg, Group: "g", MaxRecords: 30})
	msg, records := receive(t, messages)
	if len(records) != 30 {
		t.Fatalf("%d records, wanted 30 of 50 rows", len(records))
	}
	msg.Ack()
	refused, records := receive(t, messages)
	if len(records) != 20 {
		t.Fatalf("%d records, wanted the other 20", len(records))
	}
	publish(t, pub, 50, 5)
	refused.Nack()
	again, _ := receive(t, messages)
	if !bytes.Equal(refused.Payload, again.Payload) {
		t.Error("a refused batch was delivered again with other content")
	}
	again.Ack()
	last, records := receive(t, messages)
	if len(records) != 5 || string(records[0].Value) != "50" {
		t.Errorf("%d records from %s on", len(records), records[0].Value)
	}
	last.Ack()
}

// TestManyTopicsAndRecordsInOneCall checks that a call is split into several rows.
func TestManyTopicsAndRecordsInOneCall(t *testing.T) {
	cfg, owner := config(t)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	records := append(pipetest.Make(events.TopicUsageRaw, 0, 2500), pipetest.Make(events.TopicCommands, 0, 3)...)
	must.OK(t, pipetest.Publish(t.Context(), pub, records))
	if n := number(t, owner, "SELECT count(*) FROM pipe_usage_raw"); n != 3 {
		t.Errorf("%d rows for 2500 records", n)
	}
	if n := number(t, owner, "SELECT count(*) FROM pipe_meterplex_commands"); n != 1 {
		t.Errorf("%d rows for 3 commands", n)
	}
	messages := subscribe(t, pgpipe.SubscriberConfig{Config: cfg, Group: "g"})
	for next := 0; next < 2500; {
		msg, records := receive(t, messages)
		for _, r := range records {
			if string(r.Value) != fmt.Sprint(next) {
				t.Fatalf("got record %s, want %d", r.Value, next)
			}
			next++
		}
		msg.Ack()
	}
}

// TestInvalidRowIsSkipped checks that one bad row does not stop a topic.
func TestInvalidRowIsSkipped(t *testing.T) {
	cfg, owner := config(t)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	publish(t, pub, 0, 2)
	exec(t, owner, "INSERT INTO pipe_usage_raw (uuid, payload, transaction_id) VALUES ('x', 'nonsense', pg_current_xact_id())")
	publish(t, pub, 2, 2)
	seen := 0
	messages := subscribe(t, pgpipe.SubscriberConfig{Config: cfg, Group: "g"})
	for seen < 4 {
		msg, records := receive(t, messages)
		seen += len(records)
		msg.Ack()
	}
}

// TestIdlePollsDoNotWrite counts transaction ids while the pipe is idle.
func TestIdlePollsDoNotWrite(t *testing.T) {
	cfg, owner := config(t)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	publish(t, pub, 0, 1)
	messages := subscribe(t, pgpipe.SubscriberConfig{Config: cfg, Group: "g", PollInterval: time.Millisecond})
	msg, _ := receive(t, messages)
	msg.Ack()
	for number(t, owner, "SELECT count(*) FROM pipe_offsets_usage_raw WHERE offset_acked > 0") == 0 {
		time.Sleep(time.Millisecond)
	}
	const next = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
	before := number(t, owner, next)
	time.Sleep(300 * time.Millisecond)
	// The server itself may use a few; a writing poll every millisecond would use hundreds.
	if used := number(t, owner, next) - before; used > 20 {
		t.Errorf("%d transactions wrote while the pipe was idle", used)
	}
}

// TestFailingHandlerHoldsNoTransaction lets one group refuse every batch. It must not delay another
// group.
func TestFailingHandlerHoldsNoTransaction(t *testing.T) {
	cfg, _ := config(t)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	publish(t, pub, 0, 1)
	failing := subscribe(t, pgpipe.SubscriberConfig{Config: cfg, Group: "failing"})
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case msg := <-failing:
				msg.Nack()
			case <-done:
				return
			}
		}
	}()
	working := subscribe(t, pgpipe.SubscriberConfig{Config: cfg, Group: "working"})
	for i := 1; i < 20; i++ {
		publish(t, pub, i, 1)
		for got := false; !got; {
			msg, records := receive(t, working)
			got = string(records[len(records)-1].Value) == fmt.Sprint(i)
			msg.Ack()
		}
	}
	close(done)
	<-stopped
}

// TestARefusedBatchComesAgainAfterItsPause refuses a batch in a process that publishes its rows itself: the pauses of an idle topic do
// not delay it.
func TestARefusedBatchComesAgainAfterItsPause(t *testing.T) {
	cfg, _ := config(t)
	cfg.Arrivals = new(pgpipe.Arrivals)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	publish(t, pub, 0, 1)
	messages := subscribe(t, pgpipe.SubscriberConfig{Config: cfg, Group: "g", PollInterval: time.Millisecond, IdleInterval: time.Hour})
	for range 18 { // a pause that doubled each time would be longer than receive waits
		msg, _ := receive(t, messages)
		msg.Nack()
	}
	msg, _ := receive(t, messages)
	msg.Ack()
}

// TestP1_NothingIsLostWhenConnectionsAreCut terminates all connections repeatedly while records are
// published and consumed.
func TestP1_NothingIsLostWhenConnectionsAreCut(t *testing.T) {
	cfg, owner := config(t)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	messages := subscribe(t, pgpipe.SubscriberConfig{Config: cfg, Group: "g", MaxRecords: 20})
	const total = 2000
	cuts, failures := 0, 0
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for i := 0; i < total; i += 20 {
			for {
				err := pipetest.Publish(context.Background(), pub, pipetest.Make(events.TopicUsageRaw, i, 20))
				if err == nil {
					break
				}
				failures++
			}
			if i%200 == 0 {
				cuts += cut(t, owner)
			}
		}
	})
	seen, order := map[string]bool{}, -1
	for len(seen) < total {
		msg, records := receive(t, messages)
		for _, r := range records {
			var n int
			fmt.Sscan(string(r.Value), &n)
			if !seen[string(r.Value)] && n != order+1 {
				t.Fatalf("record %d received first after %d", n, order)
			}
			if !seen[string(r.Value)] {
				order = n
			}
			seen[string(r.Value)] = true
		}
		msg.Ack()
	}
	publishing.Wait()
	if cuts == 0 {
		t.Error("no connection was cut: the fault was not reached")
	}
	t.Logf("%d connections were cut, %d calls failed", cuts, failures)
}

// cut terminates the service's connections.
func cut(t testing.TB, owner *sql.DB) int {
	rows, err := owner.Query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND usename = " +
		"current_user AND pid <> pg_backend_pid()")
	if err != nil {
		return 0 // this connection was terminated as well
	}
	defer rows.Close()
	n := 0
	for rows.Next() {
		n++
	}
	return n
}

// TestServiceCannotCreateTables checks that the service's role can use the pipe but not create tables.
func TestServiceCannotCreateTables(t *testing.T) {
	cfg, owner := config(t)
	if err := pgpipe.Ensure(t.Context(), cfg, "other"); err == nil {
		t.Error("the service's role created a table")
	}
	as := cfg
	as.DB = owner
	if err := pgpipe.Ensure(t.Context(), as); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

// Rows are read in the order of their transactions: a transaction that began first and wrote last has smaller numbers and greater
// offsets, and no row behind its page is skipped.
func TestP3_RowsOfTransactionsThatOverlapAreAllRead(t *testing.T) {
	cfg, owner := config(t)
	pub := newPublisher(t, cfg)
	defer pub.Close()
	publish(t, pub, 0, 1)
	const copies = `INSERT INTO pipe_usage_raw (uuid, payload, transaction_id)
 SELECT r.uuid, r.payload, pg_current_xact_id() FROM (SELECT uuid, payload FROM pipe_usage_raw LIMIT 1) r, generate_series(1, 250)`
	first, err := owner.Begin()
	must.OK(t, err)
	defer first.Rollback()
	if _, err := first.Exec("SELECT pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	exec(t, owner, copies)
	if _, err := first.Exec(copies); err != nil {
		t.Fatal(err)
	}
	must.OK(t, first.Commit())
	publish(t, pub, 999, 1)
	messages, read := subscribe(t, pgpipe.SubscriberConfig{Config: cfg, Group: "g"}), 0
	for last := ""; last != "999"; {
		msg, records := receive(t, messages)
		read += len(records)
		last = string(records[len(records)-1].Value)
		msg.Ack()
	}
	if want := 1 + 250 + 250 + 1; read != want {
		t.Errorf("%d records were read up to the last one, want %d", read, want)
	}
}
