package local

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/meterplex/meterplex/infra/local/account"
	"github.com/meterplex/meterplex/infra/local/download"
	"github.com/meterplex/meterplex/infra/local/localkafka"
	"github.com/meterplex/meterplex/internal/must"
)

// asProcess in the environment makes the test binary act as another process of the product: it starts
// servers in the directory of dataEnv, reports on standard output, and waits for the end of its standard
// input.
const (
	asProcess = "LOCAL_TEST_PROCESS"
	dataEnv   = "LOCAL_TEST_DATA"
)

func TestMain(m *testing.M) {
	if servers := os.Getenv(asProcess); servers != "" {
		os.Exit(runAsProcess(servers, os.Getenv(dataEnv)))
	}
	code := m.Run()
	// Wait for goroutines that end late on a busy machine.
	for end := time.Now().Add(20 * time.Second); code == 0; time.Sleep(100 * time.Millisecond) {
		err := goleak.Find()
		if err == nil {
			break
		}
		if time.Now().After(end) {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// report is the output of such a process.
type report struct {
	URL      string
	PIDs     []int
	UID      int
	CacheDir string
	Err      string
}

func runAsProcess(servers, dir string) int {
	ctx := context.Background()
	r := report{UID: os.Geteuid(), CacheDir: download.CacheDir()}
	p, err := StartPostgres(ctx, PostgresConfig{DataDir: dir})
	if err != nil {
		r.Err = err.Error()
	} else {
		r.URL, r.PIDs = p.URL(), []int{p.PID()}
	}
	if err == nil && servers == "both" {
		k, err := localkafka.Start(ctx, localkafka.Config{DataDir: dir})
		if err != nil {
			r.Err = err.Error()
		} else {
			r.PIDs = append(r.PIDs, k.PID())
		}
	}
	json.NewEncoder(os.Stdout).Encode(r)
	io.Copy(io.Discard, os.Stdin)
	if p != nil {
		p.Stop(ctx)
	}
	return 0
}

// startOther runs this test binary as another process and returns its report. stop ends it and waits;
// alternatively kill cmd.
func startOther(t *testing.T, servers, dir string, user account.Account, env ...string) (r report, cmd *exec.Cmd, stop func()) {
	t.Helper()
	cmd = exec.Command(reachableSelf(t))
	cmd.Dir = "/"
	cmd.Env = append(append(os.Environ(), asProcess+"="+servers, dataEnv+"="+dir), env...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user.Credential()}
	in, err := cmd.StdinPipe()
	must.OK(t, err)
	out, err := cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	stop = func() { in.Close(); cmd.Wait() }
	t.Cleanup(stop)
	line, err := bufio.NewReader(out).ReadString('\n')
	must.OK(t, err)
	must.OK(t, json.Unmarshal([]byte(line), &r))
	return r, cmd, stop
}

// reachableSelf returns a copy of the test binary that any user may run. The folder of the original is
// closed to other users.
func reachableSelf(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(os.Args[0])
	must.OK(t, err)
	to := filepath.Join(openDir(t), "test")
	must.OK(t, os.WriteFile(to, b, 0o755))
	return to
}

// openDir returns a temporary directory that every user may enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "meterplex-local-")
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, os.RemoveAll(dir)) })
	must.OK(t, os.Chmod(dir, 0o755))
	return dir
}

func startPostgres(t *testing.T, cfg PostgresConfig) *Postgres {
	t.Helper()
	p, err := StartPostgres(t.Context(), cfg)
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, p.Stop(context.Background())) })
	return p
}

func exec1(t *testing.T, url, sql string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	must.OK(t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(t.Context(), sql, args...)
	must.OK(t, err)
}

func query1[T any](t *testing.T, url, sql string) (v T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	must.OK(t, err)
	defer conn.Close(context.Background())
	must.OK(t, conn.QueryRow(t.Context(), sql).Scan(&v))
	return v
}

func asRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("requires root")
	}
}
