package postgres

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/internal/tier"
)

// slowReader is a COPY's data over a link that is slow, but works.
type slowReader struct{ left int }

func (r *slowReader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	time.Sleep(100 * time.Millisecond)
	r.left--
	return copy(p, "slow\n"), nil
}

// A COPY that takes longer than a session may wait, and blocks another session, is left
// alone while it makes progress.
func TestP1_ASlowCopyIsNotTerminated(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	pool, _ := openPool(t)
	watch := &FrozenSessions{Pool: pool, Logger: slog.New(slog.DiscardHandler), Ended: func() {
		t.Error("a session was ended")
	}, After: 2 * time.Second, Every: 100 * time.Millisecond}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- watch.Run(ctx) }()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `CREATE TEMPORARY TABLE slow (line text)`); err != nil {
			return err
		}
		if _, err := tx.Exec(t.Context(), `SELECT FROM log_heads WHERE partition = 3 FOR UPDATE`); err != nil {
			return err
		}
		go func() {
			_, err := pool.Exec(ctx, `SET lock_timeout = 0; SELECT FROM log_heads WHERE partition = 3 FOR UPDATE`)
			done <- err
		}()
		_, err := tx.Conn().PgConn().CopyFrom(t.Context(), &slowReader{40}, `COPY slow FROM STDIN`)
		return err
	})
	waited := <-done
	stop()
	if looked := <-done; err != nil || waited != nil || looked != nil {
		t.Error(err, waited, looked)
	}
}

func TestFrozenSessionsAreRecognizedByTheirWait(t *testing.T) {
	f := &FrozenSessions{}
	n, now := int64(7), time.Unix(1000, 0)
	at := func(pid int32, state string, waits time.Duration, copied *int64) waiting {
		return waiting{frozen: frozen{pid: pid}, state: state, waits: waits, copied: copied}
	}
	for i, want := range []string{"[]", "[1]", "[1]", "[1 2]", "[1 2 3]"} {
		waits := []time.Duration{11, 11, 20, 20, 61}[i] * time.Second
		found := []int32{}
		for _, w := range f.suspects([]waiting{at(1, "idle in transaction", waits, nil), at(2, "active", waits, &n),
			at(3, "active", waits, nil)}, now.Add(time.Duration(i)*4*time.Second)) {
			found = append(found, w.pid)
		}
		if got := fmt.Sprint(found); got != want {
			t.Errorf("look %d: %s, want %s", i, got, want)
		}
	}
	told := f.seen[frozen{pid: 1}]
	told.ended = true
	f.seen[frozen{pid: 1}] = told
	for look := range 2 {
		if found := f.suspects([]waiting{at(1, "idle in transaction", time.Minute, nil)}, now.Add(time.Minute)); len(found) != 0 {
			t.Errorf("check %d: a session that was ended is ended again", look)
		}
	}
}
