package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
)

func binaryDir() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("meterplex-e2e-%d", os.Getpid()))
}

// binary builds the service, once for all tests.
var binary = sync.OnceValues(func() (string, error) {
	if *built != "" {
		return *built, nil
	}
	path := filepath.Join(binaryDir(), "meterplex")
	args := []string{"build", "-ldflags=-s", "-o", path} // the link takes a third less time without debugging information and symbols
	if underRace {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "github.com/meterplex/meterplex/cmd/meterplex")...)
	build.Env = buildEnv()
	out, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the service: %w\n%s", err, out)
	}
	return path, nil
})

// buildEnv lets the compiler collect garbage later, which saves a quarter of its work beside the tests.
func buildEnv() []string { return append(os.Environ(), "GOGC=400") }

// patience is longer than any wait of a test takes on a busy machine. A test that waits so long waits for ever.
const patience = 5 * time.Minute

// instance is one process of the service, which a test may end and start again.
type instance struct {
	t    testing.TB
	name string
	args []string
	env  []string
	// build builds the binary; nil: the service's own.
	build func() (string, error)

	arm        string   // the file that names the kill point at which it dies; "": it has none
	reached    int      // number of kill points
	afterDeath func()   // if not nil, called before the process starts again
	database   *proxy   // between it and its server; nil: no proxy
	clients    *proxy   // between its clients and it
	pipe       []*proxy // between it and each broker

	mu   sync.Mutex
	run  *run
	logs []string
}

// run is one process of an instance, from start to end.
type run struct {
	cmd   *exec.Cmd
	ready chan string   // its URL
	done  chan struct{} // ended and reaped
	url   string
	// firstLine is the number of the first line that it logged.
	firstLine int
	// readErr is the error that ended the reading of its log; nil: read to the end.
	readErr error
}

// start runs the process and waits until it prints its address.
func (i *instance) start() {
	i.t.Helper()
	must.OK(i.t, i.tryStart())
}

func (i *instance) tryStart() error {
	build := i.build
	if build == nil {
		build = binary
	}
	path, err := build()
	if err != nil {
		return err
	}
	cmd := exec.Command(path, i.args...)
	cmd.Env, cmd.SysProcAttr = i.env, childAttributes()
	out, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("start %s: %w", i.name, err)
	}
	r := &run{cmd: cmd, ready: make(chan string, 1), done: make(chan struct{}), firstLine: i.lineCount()}
	started, since := make(chan error, 1), time.Now()
	go i.runOnOneThread(r, out, started)
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", i.name, err)
	}
	i.mu.Lock()
	i.run = r
	i.mu.Unlock()
	select {
	case url := <-r.ready:
		i.mu.Lock()
		r.url = url
		i.mu.Unlock()
		i.t.Logf("%s started in %s", i.name, time.Since(since).Round(time.Millisecond))
		return nil
	case <-r.done:
		if _, err := os.Stat(i.arm + ".reached"); err == nil && i.arm != "" { // awaitDeath finds it dead
			return nil
		}
		return fmt.Errorf("%s (process %d) ended at its start after %s: %s; its log, read until %v:\n%s",
			i.name, cmd.Process.Pid, time.Since(since), cmd.ProcessState, r.readErr, i.lastLines(30))
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		<-r.done
		return fmt.Errorf("%s did not start within %s:\n%s", i.name, patience, i.lastLines(30))
	}
}

// runOnOneThread runs the child on a locked thread until it ends: the kernel sends the parent death
// signal when the thread that forked ends.
func (i *instance) runOnOneThread(r *run, out io.Reader, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(r.done)
	err := r.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		i.mu.Lock()
		i.logs = append(i.logs, lines.Text())
		i.mu.Unlock()
		if url, ok := strings.CutPrefix(lines.Text(), "The service answers at "); ok {
			r.ready <- url
		} else if strings.HasPrefix(lines.Text(), "The service runs, without the role api") {
			r.ready <- ""
		}
	}
	r.readErr = lines.Err()
	_ = r.cmd.Wait()
}

// url is the service's address, "" while it does not run or has no role api.
func (i *instance) url() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.run == nil {
		return ""
	}
	return i.run.url
}

// alive reports whether the process runs.
func (i *instance) alive() bool {
	_, died := i.exitedByItself()
	return !died && i.pid() != 0
}

// end sends a signal and waits for the end. It returns the exit code, -1 after a killing signal.
func (i *instance) end(sig syscall.Signal) (code int) {
	i.mu.Lock()
	r := i.run
	i.mu.Unlock()
	if r == nil {
		return 0
	}
	_ = r.cmd.Process.Signal(sig)
	select {
	case <-r.done:
	case <-time.After(patience):
		i.t.Errorf("%s did not end within %s of %s", i.name, patience, sig)
		_ = r.cmd.Process.Kill()
		<-r.done
	}
	i.mu.Lock()
	i.run = nil
	i.mu.Unlock()
	return r.cmd.ProcessState.ExitCode()
}

// signal sends a signal that does not end the process.
func (i *instance) signal(sig syscall.Signal) {
	i.t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	must.OK(i.t, i.run.cmd.Process.Signal(sig))
}

// kill ends the process as a crash does, by SIGKILL.
func (i *instance) kill() { i.end(syscall.SIGKILL) }

// stop ends the process by SIGTERM and checks that it exits with 0.
func (i *instance) stop() {
	i.t.Helper()
	if !i.alive() && i.url() != "" {
		i.t.Errorf("%s had ended by itself:\n%s", i.name, i.lastLines(30))
	}
	if code := i.end(syscall.SIGTERM); code != 0 {
		i.t.Errorf("%s exited with %d after SIGTERM:\n%s", i.name, code, i.lastLines(30))
	}
}

// logContains reports whether the process's log contains a text.
func (i *instance) logContains(text string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.ContainsFunc(i.logs, func(line string) bool { return strings.Contains(line, text) })
}

func (i *instance) lastLines(n int) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return strings.Join(i.logs[max(0, len(i.logs)-n):], "\n")
}

// cleanup ends the process and prints the end of its log if the test failed.
func (i *instance) cleanup() {
	i.kill()
	i.checkLogText()
	if i.t.Failed() {
		i.t.Logf("the log of %s ends:\n%s", i.name, i.lastLines(60))
	}
}

// checkLogText checks that the log has no sign of a race, a panic or a hole.
func (i *instance) checkLogText() {
	i.t.Helper()
	for _, fault := range []string{"WARNING: DATA RACE", "panicked", "the log has a hole", "panic:", "fatal error:",
		"runtime error"} {
		if i.logContains(fault) {
			i.t.Errorf("the log of %s contains %q", i.name, fault)
		}
	}
}

// lineCount counts the lines of its log.
func (i *instance) lineCount() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.logs)
}

// exitedByItself reports whether a started process ended without a call of end.
func (i *instance) exitedByItself() (state string, died bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.run == nil {
		return "", false
	}
	select {
	case <-i.run.done:
		return i.run.cmd.ProcessState.String(), true
	default:
		return "", false
	}
}

// within waits until a condition holds, or fails the test. It looks less often the longer it waits: each look costs the processors
// that it waits for a request, a statement, or a client of the broker.
func within(t testing.TB, condition string, holds func(ctx context.Context) (bool, string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for began := time.Now(); ; {
		ok, state := holds(ctx)
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within %s: %s (%s)", patience, condition, state)
		case <-time.After(max(10*time.Millisecond, min(time.Since(began)/16, 100*time.Millisecond))):
		}
	}
}

// becomesTrue reports whether a condition holds within a limit.
func becomesTrue(w *deployment, limit time.Duration, holds func(ctx context.Context) bool) bool {
	return becomesTrueEvery(w, 50*time.Millisecond, limit, holds)
}

// becomesTrueEvery is becomesTrue with a pause between two looks at the condition.
func becomesTrueEvery(w *deployment, pause, limit time.Duration, holds func(ctx context.Context) bool) bool {
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	for !holds(ctx) {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
	return true
}

// pid is the process id, 0 while the process does not run.
func (i *instance) pid() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.run == nil {
		return 0
	}
	return i.run.cmd.Process.Pid
}
