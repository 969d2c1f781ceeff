package eventlog

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
	"github.com/meterplex/meterplex/internal/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// frozenEnv makes this binary a process that stops itself in mid-COPY with a head
// locked; it names the database, frozenTenantEnv whose head.
const (
	frozenEnv       = "EVENTLOG_TEST_FROZEN"
	frozenTenantEnv = "EVENTLOG_TEST_FROZEN_TENANT"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(frozenEnv); url != "" {
		fmt.Fprintln(os.Stderr, freeze(url, uuid.MustParse(os.Getenv(frozenTenantEnv))))
		os.Exit(1)
	}
	localtest.Main(m, localtest.NoLeaks())
}

// frozenReader is a source of COPY data that stops the process instead of sending it.
type frozenReader struct{}

func (frozenReader) Read([]byte) (int, error) {
	fmt.Println("frozen")
	err := syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	time.Sleep(10 * time.Millisecond) // the signal arrives before this ends
	return 0, err
}

func freeze(url string, tenant uuid.UUID) error {
	ctx := context.Background()
	pool, err := postgres.Open(ctx, postgres.Config{URL: url, ApplicationName: "meterplex"})
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// All the defences of TCP against a dead peer; but this peer's kernel still answers.
		_, err := tx.Exec(ctx,
			`SET LOCAL tcp_keepalives_idle = 1; SET LOCAL tcp_keepalives_interval = 1; SET LOCAL tcp_keepalives_count = 1;
			 SET LOCAL tcp_user_timeout = 1000`)
		if err != nil {
			return err
		}
		if _, err := lockHeads(ctx, tx, []int16{events.PartitionOf(tenant)}); err != nil {
			return err
		}
		_, err = tx.Conn().PgConn().CopyFrom(ctx, frozenReader{}, server.CopySQL)
		return err
	})
}

// A process that is frozen between a COPY and its data holds a head. Other instances
// still store their submissions soon.
func TestP1_ASessionFrozenInMidCopyBlocksNoOther(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	_, _, url := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: url, ApplicationName: "meterplex"})
	must.OK(t, err)
	t.Cleanup(pool.Close)
	l, err := New(t.Context(), pool, Config{Producer: events.Producer{Service: "meterplex", Instance: "other", Commit: "x"},
		Written: localtest.CheckPayloads(t).Written})
	must.OK(t, err)
	t.Cleanup(l.Close)
	child := exec.Command(os.Args[0])
	child.SysProcAttr = childAttributes()
	child.Env = append(os.Environ(), frozenEnv+"="+url, frozenTenantEnv+"="+tenant.String())
	out, err := child.StdoutPipe()
	must.OK(t, err)
	must.OK(t, child.Start())
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	if line := make([]byte, 6); second(io.ReadFull(out, line)) != nil {
		t.Fatal("the child did not get to its COPY")
	}
	const after = 6 * time.Second // longer than idle_in_transaction_session_timeout, and than the TCP timeouts
	var ended atomic.Int64
	watch := &postgres.FrozenSessions{Pool: pool, Logger: slog.New(slog.DiscardHandler), Ended: func() {
		ended.Add(1)
	}, After: after, Every: 250 * time.Millisecond}
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
	for outcomes := []metering.Outcome(nil); len(outcomes) == 0; {
		outcomes, err = l.Submit(t.Context(), tenant, []metering.Submitted{usageEvent(tenant, "waits", 1)})
		if took := time.Since(began); took > after+15*time.Second {
			t.Fatalf("not stored after %v: %v", took, err)
		}
	}
	if took := time.Since(began); took < after-time.Second {
		t.Errorf("stored after %v: the head was not held by a session that nothing else ends", took)
	}
	expectEnded(t, &ended)
}

// Sessions that block no one are left alone, and a working session is never ended as frozen.
func TestActiveSessionsAreNotTerminated(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	l, pool, _ := openLog(t)
	tenant := uuid.Must(uuid.NewV7())
	var ended atomic.Int64
	watch := &postgres.FrozenSessions{Pool: pool, Logger: slog.New(slog.DiscardHandler), Ended: func() {
		ended.Add(1)
	}, After: time.Second, Every: 100 * time.Millisecond}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- watch.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	quiet, err := pool.Begin(t.Context())
	must.OK(t, err)
	defer func() { _ = quiet.Rollback(context.Background()) }()
	must.Exec(t, quiet, `SET LOCAL idle_in_transaction_session_timeout = 0`)
	other := (events.PartitionOf(tenant) + 1) % events.Partitions
	if _, err := lockHeads(t.Context(), quiet, []int16{other}); err != nil {
		t.Fatal(err)
	}
	for n := range 15 {
		submit(t, l, tenant, usageEvent(tenant, fmt.Sprint(n), 1))
		time.Sleep(150 * time.Millisecond)
	}
	if n := ended.Load(); n != 0 {
		t.Fatalf("%d sessions were ended", n)
	}
	// The quiet session was seen all the time: it is ended as soon as another one waits for it.
	if _, err := pool.Exec(t.Context(), `SELECT FROM log_heads WHERE partition = $1 FOR UPDATE`, other); err != nil {
		t.Errorf("a session that waits for the quiet one: %v", err)
	}
	expectEnded(t, &ended)
}

// expectEnded waits until a session was counted as ended, and expects no other. The session
// that waited may go on before the watch has the server's answer.
func expectEnded(t *testing.T, ended *atomic.Int64) {
	t.Helper()
	for began := time.Now(); ended.Load() == 0 && time.Since(began) < time.Minute; {
		time.Sleep(10 * time.Millisecond)
	}
	if n := ended.Load(); n != 1 {
		t.Errorf("%d sessions were ended, want one", n)
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
