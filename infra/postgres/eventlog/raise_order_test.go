package eventlog

import (
	"context"
	"testing"
	"time"
)

// An epoch is raised under the locks of its cursors, then of its heads, which is the order of locks everywhere: while it waits for a
// cursor, a session with the cursor, such as a relay's that withholds a record, gets the head.
func TestAnEpochIsRaisedInTheOrderOfLocks(t *testing.T) {
	l, pool, _ := openLog(t)
	const partition = int16(3)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM relay_cursors WHERE partition = $1 FOR UPDATE`, partition); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- l.raise(context.Background(), []int16{partition}, nil) }()
	for count(t, pool, `SELECT count(*) FROM pg_locks WHERE NOT granted`) == 0 {
		select {
		case err := <-done:
			t.Fatalf("the epoch is raised without the cursor's lock: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM log_heads WHERE partition = $1 FOR UPDATE NOWAIT`, partition); err != nil {
		t.Errorf("the session that waits for the cursor has locked the head already: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
