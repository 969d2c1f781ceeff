package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/meterplex/meterplex/infra/local"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// P1: the disk of the server is full: usage is refused, no batch is stored in part, and the service recovers when there is room. The WAL
// has no room, too, so PostgreSQL shuts down, and starts again.
func TestP1_DiskFull(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	dir, err := os.MkdirTemp("", "meterplex-small-")
	must.OK(t, err)
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=755,size=256m"); err != nil {
		t.Skipf("SKIPPED, a full disk was not tried: cannot mount a small file system (%v); run as root", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	// The server's log file needs room on another disk.
	seen := filepath.Join(t.TempDir(), "postgres.log")
	must.OK(t, os.Mkdir(filepath.Join(dir, "postgres"), 0o755))
	must.OK(t, os.Symlink(seen, filepath.Join(dir, "postgres", "postgres.log")))
	server, err := local.StartPostgres(context.WithoutCancel(t.Context()), local.PostgresConfig{DataDir: dir,
		Settings: map[string]string{"shared_buffers": "32MB", "min_wal_size": "32MB", "max_wal_size": "64MB"}})
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, server.Stop(context.Background())) })
	w := newDeploymentAt(t, server.URL(), ofDatabase(server))
	w.underLoad(2, lightTraffic(), func(i *instance, l *load) {
		l.awaitMore(100)
		ballast := filepath.Join(dir, "ballast")
		fill(t, ballast)
		before := l.lost()
		within(t, "the WAL has no room", func(ctx context.Context) (bool, string) {
			_, err := w.sql.Exec(ctx, `SELECT pg_switch_wal()`)
			return err != nil, fmt.Sprint(err)
		})
		within(t, "usage is refused", func(context.Context) (bool, string) { return l.lost() > before, fmt.Sprint(l.lost()) })
		status, body, err := w.call(t.Context(), w.tenants[0].key, http.MethodPost, i.url()+"/api/v1/usage/events",
			object{"events": events("full", 100, "grouped")})
		if err != nil || status != http.StatusServiceUnavailable {
			t.Errorf("answer with a full disk: %d %s %v", status, body, err)
		}
		if raw, err := os.ReadFile(seen); err != nil || !bytes.Contains(raw, []byte("No space left on device")) {
			t.Errorf("the server does not report a full disk: %v\n%s", err, raw[max(0, len(raw)-2000):])
		}
		must.OK(t, os.Remove(ballast))
		within(t, "the server recovers by itself, or ends", func(ctx context.Context) (bool, string) {
			select {
			case <-server.Done():
				err := server.Restart(t.Context())
				return err == nil, fmt.Sprint(err)
			default:
				_, err := w.sql.Exec(ctx, `SELECT pg_switch_wal()`)
				return err == nil, fmt.Sprint(err)
			}
		})
		w.sql.Reset()
		l.awaitMore(100)
	})
}

// fill fills the disk of a file to the last byte.
func fill(t testing.TB, path string) {
	t.Helper()
	f, err := os.Create(path)
	must.OK(t, err)
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 4
		}
	}
}

// Each flush of the WAL takes 100 ms and holds the WAL meanwhile, as on a slow disk.
// Requests are late, but do not fail.
func TestP1_SlowDisk(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeploymentOn(newServerPair(t, "commit_delay", "100000", "commit_siblings", "0"))
	w.underLoad(2, lightTraffic(), func(_ *instance, l *load) {
		from := time.Now()
		l.awaitMore(150)
		took, late := l.latencies(from, time.Now()), 0
		for _, d := range took {
			if d > 90*time.Millisecond {
				late++
			}
		}
		// A commit that another's flush covers is not late.
		if late < max(1, len(took)/4) {
			t.Errorf("%d of %d requests were late: the disk was not slow", late, len(took))
		}
		if l.stop(); l.lost() > 0 {
			t.Errorf("%d requests failed", l.lost())
		}
	})
}

// A sync of the WAL fails with EIO: PostgreSQL ends all sessions and recovers. The service
// must not treat the failed sync as a commit.
func TestP1_SyncFails(t *testing.T) {
	tier.AtSize(t)
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("SKIPPED, a failing sync was not tried: strace not found")
	}
	t.Parallel()
	w := newDeploymentOn(newServerPair(t))
	server := w.servers.primary
	response := filepath.Join(t.TempDir(), "strace")
	faults := exec.Command(strace, "-qq", "-f", "-p", strconv.Itoa(server.PID()), "-o", response, "-e", "trace=fdatasync", "-e",
		"inject=fdatasync:error=EIO:when=12")
	m := busyTraffic()
	m.pause = 0
	w.underLoad(3, m, func(_ *instance, l *load) {
		end := startStrace(t, faults, server.PID())
		defer end()
		// strace follows only sessions that begin after it attached.
		if n := w.count(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()
 AND pid <> pg_backend_pid()`); n == 0 {
			t.Error("no session was ended")
		}
		within(t, "a sync has failed", func(context.Context) (bool, string) {
			raw, err := os.ReadFile(response)
			return err == nil && bytes.Contains(raw, []byte("INJECTED")), fmt.Sprint(len(raw), err)
		})
		end()
		within(t, "the server is back", func(ctx context.Context) (bool, string) {
			err := w.sql.Ping(ctx)
			return err == nil, fmt.Sprint(err)
		})
		w.sql.Reset()
		l.awaitMore(400)
	})
}

// startStrace starts strace and waits until it is attached to a process. It skips the test if
// strace lacks the permission. end stops strace.
func startStrace(t *testing.T, strace *exec.Cmd, pid int) (end func()) {
	t.Helper()
	var seen bytes.Buffer
	strace.SysProcAttr, strace.Stderr = childAttributes(), &seen
	must.OK(t, strace.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = strace.Wait()
	}()
	end = func() {
		_ = strace.Process.Signal(syscall.SIGTERM)
		<-ended
	}
	attached := fmt.Sprintf("\nTracerPid:\t%d\n", strace.Process.Pid)
	for until := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err == nil && bytes.Contains(status, []byte(attached)) {
			return end
		}
		select {
		case <-ended:
			t.Skipf("SKIPPED, a failing sync was not tried: %s", bytes.TrimSpace(seen.Bytes()))
		default:
		}
		if err != nil || time.Now().After(until) {
			end()
			t.Fatalf("strace is not attached to process %d: %v %s", pid, err, seen.Bytes())
		}
	}
}
