package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/local"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// smallDisk is a tmpfs of a few megabytes that holds a database.
type smallDisk struct {
	t    *testing.T
	dir  string
	name string // of the tablespace
}

const smallDiskBytes = 64 << 20

// newSmallDisk must be called before the database is created: cleanups run in reverse order.
func newSmallDisk(t *testing.T, size int) *smallDisk {
	t.Helper()
	sweepSmallDisks(t)
	dir, err := os.MkdirTemp("", fmt.Sprint(smallPrefix, os.Getpid(), "-"))
	must.OK(t, err)
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=755,size="+strconv.Itoa(size)); err != nil {
		t.Skipf("SKIPPED, a full disk was not tried: cannot mount a small file system (%v); run as root", err)
	}
	d := &smallDisk{t: t, dir: dir, name: "small_" + strings.ReplaceAll(filepath.Base(dir)[len(smallPrefix):], "-", "_")}
	t.Cleanup(func() {
		// Processes of the shared server may still have files of the dropped tablespace open.
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount the small file system: %v", err)
		}
	})
	return d
}

// smallPrefix begins a small disk's folder name; the process id of its creator follows.
const smallPrefix = "meterplex-small-"

// sweepSmallDisks removes the disks that killed test binaries left behind.
func sweepSmallDisks(t *testing.T) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(os.TempDir(), smallPrefix+"*"))
	must.OK(t, err)
	for _, dir := range left {
		owner, _, _ := strings.Cut(filepath.Base(dir)[len(smallPrefix):], "-")
		if pid, err := strconv.Atoi(owner); err == nil && syscall.Kill(pid, 0) != syscall.ESRCH {
			continue // it is in use
		}
		if err := syscall.Unmount(dir, 0); err == nil || err == syscall.EINVAL {
			_ = os.Remove(dir)
		}
	}
}

// space creates the tablespace on the disk.
func (d *smallDisk) space() {
	d.t.Helper()
	server := localtest.Postgres(d.t)
	owner, err := os.Stat(filepath.Join(server.Dir(), "data"))
	must.OK(d.t, err)
	space := filepath.Join(d.dir, "space")
	must.OK(d.t, os.Mkdir(space, 0o700))
	as := owner.Sys().(*syscall.Stat_t)
	must.OK(d.t, os.Chown(space, int(as.Uid), int(as.Gid)))
	d.admin(`CREATE TABLESPACE ` + d.name + ` LOCATION '` + space + `'`)
	d.t.Cleanup(func() { d.admin(`DROP TABLESPACE ` + d.name) })
}

func (d *smallDisk) admin(statement string) {
	d.t.Helper()
	ctx := context.Background() // used by cleanups, too
	conn, err := pgx.Connect(ctx, localtest.Postgres(d.t).AdminURL())
	if err != nil {
		d.t.Errorf("%s: %v", statement, err)
		return
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, statement); err != nil {
		d.t.Errorf("%s: %v", statement, err)
	}
}

// fill fills the disk to the last byte; free empties it again.
func (d *smallDisk) fill() (free func()) {
	d.t.Helper()
	path := filepath.Join(d.dir, "ballast")
	f, err := os.Create(path)
	must.OK(d.t, err)
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 4
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			d.t.Error(err)
		}
	}
}

// The database's disk is full: usage is refused with 503 and Retry-After, no batch is stored
// in part, and the service recovers by itself when there is room.
func TestP1_DiskFull(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	d := newSmallDisk(t, smallDiskBytes)
	d.space()
	w := newDeployment(t)
	d.admin(`ALTER DATABASE ` + strings.TrimPrefix(w.sql.Config().ConnConfig.Database, "/") + ` SET TABLESPACE ` + d.name)
	m := lightTraffic()
	m.pause, m.batch = 5*time.Millisecond, 100
	w.underLoad(1, m, func(i *instance, l *load) {
		l.awaitMore(500)
		free := d.fill()
		before := l.lost()
		within(t, "usage is refused", func(context.Context) (bool, string) {
			return l.lost() > before && i.logContains("53100"), fmt.Sprint(l.lost())
		})
		x := w.tenants[0]
		refused, problem := w.submitRaw(i, x, events("at-a-full-disk", 100, "api_calls"))
		for n := 0; refused.StatusCode == http.StatusAccepted && n < 20; n++ { // an existing page had room
			refused, problem = w.submitRaw(i, x, events(fmt.Sprint("still-room-", n), 100, "api_calls"))
		}
		if refused.StatusCode != http.StatusServiceUnavailable || refused.Header.Get("Retry-After") == "" || strings.Contains(problem, "53100") {
			t.Errorf("answer with a full disk: %s, Retry-After %q: %s", refused.Status, refused.Header.Get("Retry-After"), problem)
		}
		free()
		l.awaitMore(500)
	})
}

// submitRaw sends a batch once and returns the raw answer.
func (w *deployment) submitRaw(at *instance, x *tenant, batch []event) (*http.Response, string) {
	w.t.Helper()
	x.ledger.sending(batch)
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, at.url()+"/api/v1/usage/events", bytes.NewReader(jsonOf(w.t, object{"events": batch})))
	must.OK(w.t, err)
	r.Header.Set("Authorization", "Bearer "+x.key)
	r.Header.Set("Content-Type", "application/json")
	answer, err := w.http.Do(r)
	must.OK(w.t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	must.OK(w.t, err)
	return answer, string(body)
}

// The disk of the server's WAL is full: PostgreSQL shuts down, and starts when there
// is room. The test has a server of its own, because the crash stops every user of it.
func TestP1_LogDiskFull(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	d := newSmallDisk(t, 4*smallDiskBytes)
	// The server's log file needs room on another disk.
	seen := filepath.Join(t.TempDir(), "postgres.log")
	if err := errors.Join(os.Mkdir(filepath.Join(d.dir, "postgres"), 0o755), os.Symlink(seen, filepath.Join(d.dir, "postgres", "postgres.log"))); err != nil {
		t.Fatal(err)
	}
	server, err := local.StartPostgres(context.WithoutCancel(t.Context()), local.PostgresConfig{DataDir: d.dir, Settings: map[string]string{"shared_buffers": "32MB", "min_wal_size": "32MB", "max_wal_size": "64MB"}})
	must.OK(t, err)
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	w := newDeploymentAt(t, server.URL(), ofDatabase(server))
	w.underLoad(2, lightTraffic(), func(_ *instance, l *load) {
		l.awaitMore(100)
		free := d.fill()
		before := l.lost()
		within(t, "the WAL has no room", func(ctx context.Context) (bool, string) {
			_, err := w.sql.Exec(ctx, `SELECT pg_switch_wal()`)
			return err != nil, fmt.Sprint(err)
		})
		within(t, "usage is refused", func(context.Context) (bool, string) {
			return l.lost() > before, fmt.Sprint(l.lost())
		})
		if raw, err := os.ReadFile(seen); err != nil || !bytes.Contains(raw, []byte("No space left on device")) {
			t.Errorf("the server does not report a full disk: %v\n%s", err, raw[max(0, len(raw)-2000):])
		}
		free()
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

// Each flush of the WAL takes 100 ms and holds the WAL meanwhile, as on a slow disk.
// Requests are late, but do not fail.
func TestP1_SlowDisk(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w, _ := newDeploymentOnOwnServer(t)
	database := w.sql.Config().ConnConfig.Database
	for _, slow := range []string{"commit_delay = 100000", "commit_siblings = 0"} {
		if _, err := w.sql.Exec(t.Context(), `ALTER DATABASE `+database+` SET `+slow); err != nil {
			t.Fatal(err)
		}
	}
	w.sql.Reset()
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
			t.Errorf("%d requests were refused", l.lost())
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
	w, server := newDeploymentOnOwnServer(t)
	response := filepath.Join(t.TempDir(), "strace")
	faults := exec.Command(strace, "-qq", "-f", "-p", strconv.Itoa(server.PID()), "-o", response, "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=12")
	m := busyTraffic()
	m.pause = 0
	w.underLoad(3, m, func(_ *instance, l *load) {
		end := startStrace(t, faults, server.PID())
		defer end()
		// strace follows only sessions that begin after it attached.
		if n := w.count(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`); n == 0 {
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
