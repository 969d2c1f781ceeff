package e2e

import (
	"bufio"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/meterplex/meterplex/infra/local"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// On a fresh machine this binary runs its tests without PostgreSQL, with a service that is already built.
var (
	fresh = flag.Bool("fresh", false, "hide each installed PostgreSQL, and run meterplex verify at the end of each test")
	built = flag.String("built", "", "path of the service, built already")
)

// exitVisible is the exit code if an installed PostgreSQL cannot be hidden.
const exitVisible = 77

// freshTests is the short suite: the first command of the README with its curls, ingest
// and verdicts, and kills under load with figures that meterplex verify checks. The tour runs
// itself on a fresh machine.
func freshTests() []string {
	return []string{"TestFirstCommandOfTheReadme", "TestReadmeTranscript", "TestP1_KillAfterCommitBeforeAnswer"}
}

// TestAFreshMachine runs the short suite in a process that sees no installed PostgreSQL,
// so that the service and the tests fetch one.
func TestAFreshMachine(t *testing.T) {
	tier.AtSize(t)
	if *fresh {
		t.Skip("already in the process of TestAFreshMachine")
	}
	t.Parallel()
	if visible := runFresh(t, freshTests()...); visible != "" {
		t.Skipf("PostgreSQL is installed here and cannot be hidden: %s", visible)
	}
}

// runFresh runs tests in a process that sees no installed PostgreSQL. It returns the reason if
// an installed one cannot be hidden.
func runFresh(t *testing.T, names ...string) (visible string) {
	t.Helper()
	path, err := binary()
	must.OK(t, err)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.count=1", "-test.parallel=3", "-fresh", "-built="+path,
		"-test.run=^("+strings.Join(names, "|")+")$")
	if end, ok := t.Deadline(); ok {
		cmd.Args = append(cmd.Args, "-test.timeout="+time.Until(end).String())
	}
	cmd.SysProcAttr = ownMounts()
	out, err := cmd.CombinedOutput()
	if unseen := len(local.InstalledPostgres(t.Context())) == 0; !unseen && (cmd.ProcessState == nil ||
		cmd.ProcessState.ExitCode() == exitVisible) {
		return fmt.Sprintf("%v %s", err, out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range names {
		if !strings.Contains(string(out), "--- PASS: "+name+" ") {
			t.Errorf("%s did not pass:\n%s", name, out)
		}
	}
	return ""
}

// onFreshMachine skips a test that is for a fresh machine alone.
func onFreshMachine(t *testing.T) {
	t.Helper()
	if !*fresh {
		t.Skip("run by TestAFreshMachine")
	}
}

// The demo of make run works with embedded servers, and a shell runs the curls that it prints.
func TestFirstCommandOfTheReadme(t *testing.T) {
	tier.AtSize(t)
	onFreshMachine(t)
	t.Parallel()
	path, err := binary()
	must.OK(t, err)
	dir := filepath.Join(openDir(t), "data")
	cmd := exec.CommandContext(t.Context(), path, "demo")
	cmd.SysProcAttr = childAttributes()
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "METERPLEX_DATA_DIR=" + dir,
		"METERPLEX_HTTP_ADDR=127.0.0.1:0"}
	cmd.Env = append(cmd.Env, "METERPLEX_CACHE_DIR="+os.Getenv("METERPLEX_CACHE_DIR"))
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	var script, all []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		all = append(all, lines.Text())
		if len(script) > 0 || strings.HasPrefix(lines.Text(), "KEY=") {
			script = append(script, lines.Text())
		}
		if strings.HasSuffix(lines.Text(), "; echo") {
			break
		}
	}
	if len(script) == 0 {
		t.Fatalf("%v: no commands in the output\n%s\n%s", cmd.Wait(), strings.Join(all, "\n"), errs.String())
	}
	answer, err := exec.CommandContext(t.Context(), "sh", "-eu", "-c", strings.Join(script, "\n")).CombinedOutput()
	if err != nil || !strings.Contains(string(answer), `"status":"accepted"`) ||
		!strings.Contains(string(answer), `"feature":"api_calls"`) {
		t.Errorf("%v: the printed commands answer\n%s", err, answer)
	}
	checkSignInLink(t, all)
	for _, figure := range []string{"18059974 in 8819 events", "245896 in 8819 events"} {
		if !strings.Contains(strings.Join(all, "\n"), figure) {
			t.Errorf("%s is missing from the output:\n%s", figure, strings.Join(all, "\n"))
		}
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil || !strings.Contains(errs.String(), "Stopped.") {
		t.Errorf("%v:\n%s", err, errs.String())
	}
}

// checkSignInLink opens the link that the demo prints, and sends the form of its page: that signs in, once.
func checkSignInLink(t *testing.T, printed []string) {
	t.Helper()
	i := slices.IndexFunc(printed, func(line string) bool { return strings.Contains(line, "Sign in once") })
	if i < 0 {
		t.Fatalf("no link to the console in the output\n%s", strings.Join(printed, "\n"))
	}
	link := strings.Fields(printed[i])[3]
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	for _, c := range []struct {
		method, cookie string
		status         int
	}{{"GET", "", 200}, {"POST", "__Host-meterplex=", 303}, {"POST", "", 404}} {
		request, err := http.NewRequestWithContext(t.Context(), c.method, link, nil)
		must.OK(t, err)
		got, err := client.Do(request)
		must.OK(t, err)
		_ = got.Body.Close()
		if cookie := got.Header.Get("Set-Cookie"); got.StatusCode != c.status || (cookie != "") != (c.cookie != "") ||
			!strings.HasPrefix(cookie,
				c.cookie) {
			t.Errorf("%s %s gives %d, %q", c.method, link, got.StatusCode, cookie)
		}
	}
}

// openDir returns a temporary folder that the database's user may traverse.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "meterplex-e2e-")
	must.OK(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	must.OK(t, os.Chmod(dir, 0o755))
	return dir
}

// hideInFreshProcess hides each installed PostgreSQL from the process of
// runFresh, and ends that process if it cannot.
func hideInFreshProcess() {
	if !*fresh {
		return
	}
	if err := hidePostgres(); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(exitVisible)
	}
}
