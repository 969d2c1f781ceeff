package postgres

import (
	"context"
	"testing"
	"time"
)

// An instance starts while another session holds heads for longer than anybody waits
// for a lock: one that is frozen holds them until its server ends it.
func TestALogIsOpenedBesideASessionThatHoldsHeads(t *testing.T) {
	_, pool, url := openLog(t)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM log_heads WHERE partition = 7 FOR UPDATE`); err != nil {
		t.Error(err)
	}
	ended := make(chan error, 1)
	go func() {
		time.Sleep(3 * time.Second) // nobody waits longer than 2 s for a lock
		ended <- tx.Rollback(context.Background())
	}()
	openLogAt(t, url)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
