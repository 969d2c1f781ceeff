package postgres

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/local/localtest"
)

// frozenEnv makes this binary a process that stops itself in mid-COPY with a head
// locked; it names the database, frozenTenantEnv whose head.
const (
	frozenEnv       = "METERPLEX_TEST_FROZEN"
	frozenTenantEnv = "METERPLEX_TEST_FROZEN_TENANT"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(frozenEnv); url != "" {
		fmt.Fprintln(os.Stderr, freeze(url, uuid.MustParse(os.Getenv(frozenTenantEnv))))
		os.Exit(1)
	}
	localtest.Main(m, localtest.NoLeaks())
}

// freezing is a source of COPY data that stops the process instead of sending it.
type freezing struct{}

func (freezing) Read([]byte) (int, error) {
	fmt.Println("frozen")
	err := syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	time.Sleep(10 * time.Millisecond) // the signal arrives before this ends
	return 0, err
}

func freeze(url string, tenant uuid.UUID) error {
	ctx := context.Background()
	pool, err := Open(ctx, Config{URL: url, ApplicationName: "meterplex"})
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// All the defences of TCP against a dead peer; but this peer's kernel still answers.
		_, err := tx.Exec(ctx, `SET LOCAL tcp_keepalives_idle = 1; SET LOCAL tcp_keepalives_interval = 1; SET LOCAL tcp_keepalives_count = 1; SET LOCAL tcp_user_timeout = 1000`)
		if err != nil {
			return err
		}
		if _, err := lockHeads(ctx, tx, []int16{events.PartitionOf(tenant)}); err != nil {
			return err
		}
		_, err = tx.Conn().PgConn().CopyFrom(ctx, freezing{}, copyRows)
		return err
	})
}

// A process that is frozen between a COPY and its data holds a head. Other instances
// still store their submissions soon.
func TestP1_FrozenInMidCopyKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	_, _, url := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	pool, err := Open(t.Context(), Config{URL: url, ApplicationName: "meterplex"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	l, err := NewLog(t.Context(), pool, LogConfig{Producer: events.Producer{Service: "meterplex", Instance: "other", Commit: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	child := exec.Command(os.Args[0])
	child.SysProcAttr = childAttributes()
	child.Env = append(os.Environ(), frozenEnv+"="+url, frozenTenantEnv+"="+tenant.String())
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	if line := make([]byte, 6); second(io.ReadFull(out, line)) != nil {
		t.Fatal("the child did not get to its COPY")
	}
	const after = 6 * time.Second // longer than idle_in_transaction_session_timeout, and than the TCP timeouts
	var ended atomic.Int64
	watch := &FrozenSessions{Pool: pool, Logger: slog.New(slog.DiscardHandler), Ended: func() { ended.Add(1) }, After: after, Every: 250 * time.Millisecond}
	began := time.Now()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- watch.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for places := []commands.Placement(nil); len(places) == 0; {
		places, err = l.Submit(t.Context(), tenant, []commands.Submitted{usageEvent(tenant, "waits", 1)})
		if took := time.Since(began); took > after+15*time.Second {
			t.Fatalf("not stored after %v: %v", took, err)
		}
	}
	if took := time.Since(began); ended.Load() != 1 || took < after-time.Second {
		t.Errorf("%d sessions were ended, stored after %v: the head was not held by one that nothing else ends", ended.Load(), took)
	}
}

// Sessions that block no one are left alone, and a working session is never ended as frozen.
func TestSessionsThatAreNotFrozenAreLeftAlone(t *testing.T) {
	t.Parallel()
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	watch := &FrozenSessions{Pool: pool, Logger: slog.New(slog.DiscardHandler), Ended: func() { t.Error("a session was ended") }, After: time.Second, Every: time.Second}
	quiet, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = quiet.Rollback(context.Background()) }()
	if _, err := quiet.Exec(t.Context(), `SET LOCAL idle_in_transaction_session_timeout = 0`); err != nil {
		t.Fatal(err)
	}
	if _, err := lockHeads(t.Context(), quiet, []int16{(events.PartitionOf(tenant) + 1) % events.Partitions}); err != nil {
		t.Fatal(err)
	}
	for n := range 15 {
		submit(t, l, tenant, usageEvent(tenant, fmt.Sprint(n), 1))
		if err := watch.poll(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(150 * time.Millisecond)
	}
	if len(watch.seen) != 1 {
		t.Errorf("%d sessions were seen to wait for their clients, want the quiet one", len(watch.seen))
	}
}

// trickle is a COPY's data over a link that is slow, but works.
type trickle struct{ left int }

func (r *trickle) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	time.Sleep(100 * time.Millisecond)
	r.left--
	return copy(p, "slow\n"), nil
}

// A COPY that takes longer than a session may wait, and blocks another session, is left
// alone while it makes progress.
func TestP1_SlowCopyThatGetsOnIsNotEnded(t *testing.T) {
	t.Parallel()
	_, pool, _ := openLog(t)
	watch := &FrozenSessions{Pool: pool, Logger: slog.New(slog.DiscardHandler), Ended: func() { t.Error("a session was ended") }, After: 2 * time.Second, Every: 100 * time.Millisecond}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- watch.Run(ctx) }()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `CREATE TEMPORARY TABLE slow (line text)`); err != nil {
			return err
		}
		if _, err := lockHeads(t.Context(), tx, []int16{3}); err != nil {
			return err
		}
		go func() {
			_, err := pool.Exec(ctx, `SET lock_timeout = 0; SELECT FROM log_heads WHERE partition = 3 FOR UPDATE`)
			done <- err
		}()
		_, err := tx.Conn().PgConn().CopyFrom(t.Context(), &trickle{40}, `COPY slow FROM STDIN`)
		return err
	})
	waited := <-done
	stop()
	if looked := <-done; err != nil || waited != nil || looked != nil {
		t.Error(err, waited, looked)
	}
}

func TestWhoStandsIsToldByWhatItWaitsFor(t *testing.T) {
	f := &FrozenSessions{}
	n, now := int64(7), time.Unix(1000, 0)
	at := func(pid int32, state string, waits time.Duration, copied *int64) waiting {
		return waiting{frozen: frozen{pid: pid}, state: state, waits: waits, copied: copied}
	}
	for i, want := range []string{"[]", "[1]", "[1]", "[1 2]", "[1 2 3]"} {
		waits := []time.Duration{11, 11, 20, 20, 61}[i] * time.Second
		found := []int32{}
		for _, w := range f.suspects([]waiting{at(1, "idle in transaction", waits, nil), at(2, "active", waits, &n), at(3, "active", waits, nil)}, now.Add(time.Duration(i)*4*time.Second)) {
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
			t.Errorf("look %d: who was told to end is told again", look)
		}
	}
}

func TestThatSessionsCannotBeEndedIsToldOnce(t *testing.T) {
	var told strings.Builder
	f := &FrozenSessions{Logger: slog.New(slog.NewTextHandler(&told, nil))}
	for range 2 {
		f.report(fmt.Errorf("ending a session: %w", &pgconn.PgError{Code: notAllowed}))
	}
	f.report(context.DeadlineExceeded)
	if strings.Count(told.String(), "level=WARN") != 1 || strings.Count(told.String(), "level=") != 1 {
		t.Error(told.String())
	}
}

func second[T any](_ T, err error) error { return err }

// lockHeads locks heads in a test's own transaction.
func lockHeads(ctx context.Context, tx pgx.Tx, partitions []int16) (heads, error) {
	rows, err := tx.Query(ctx, lockHeadsSQL, partitions)
	if err != nil {
		return nil, err
	}
	return scanHeads(rows)
}
