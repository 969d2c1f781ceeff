package pgpipe_test

import (
	"testing"

	"github.com/meterplex/meterplex/infra/pgpipe"
)

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
	if err != nil {
		t.Fatal(err)
	}
	defer first.Rollback()
	if _, err := first.Exec("SELECT pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	exec(t, owner, copies)
	if _, err := first.Exec(copies); err != nil {
		t.Fatal(err)
	}
	if err := first.Commit(); err != nil {
		t.Fatal(err)
	}
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
