package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// The contents of the trace.
const (
	traceFile   = "../demo/AzureLLMInferenceTrace_code.csv"
	traceEvents = 17_638
	traceInput  = 18_059_974
	traceOutput = 245_896
)

// cli runs the client commands of the binary.
type cli struct {
	w      *deployment
	env    []string
	stderr bytes.Buffer
}

// cli is the command line of the binary, with a key.
func (w *deployment) cli(at *instance, key string) *cli {
	w.t.Helper()
	return &cli{w: w, env: []string{"METERPLEX_URL=" + at.url(), "METERPLEX_KEY=" + key, "METERPLEX_DATA_DIR=" + w.t.TempDir(), "HOME=" + w.t.TempDir()}}
}

func (c *cli) command(ctx context.Context, args ...string) *exec.Cmd {
	c.w.t.Helper()
	path, err := binary()
	if err != nil {
		c.w.t.Fatal(err)
	}
	c.stderr.Reset()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Stderr, cmd.SysProcAttr = c.env, &c.stderr, childAttributes()
	return cmd
}

// importArgs returns the arguments that import the trace.
func importArgs(more ...string) []string {
	file, _ := filepath.Abs(traceFile)
	return append([]string{"usage", "import", file, "-o", "json", "--time-column", "TIMESTAMP", "--shift-to-now",
		"--map", "input_tokens=ContextTokens", "--map", "output_tokens=GeneratedTokens"}, more...)
}

type importSummary struct {
	Rows, Events, Accepted, Duplicates, Conflicts, Rejected, NotSent int
}

// run runs an import to its end.
func (c *cli) run(args ...string) (sum importSummary) {
	c.w.t.Helper()
	ctx, cancel := context.WithTimeout(c.w.t.Context(), patience)
	defer cancel()
	out, err := c.command(ctx, args...).Output()
	if err != nil {
		c.w.t.Fatalf("import: %v\n%s\n%s", err, out, c.stderr.String())
	}
	if err := json.Unmarshal(out, &sum); err != nil {
		c.w.t.Fatalf("import: %v: %s", err, out)
	}
	return sum
}

// checkTrace checks the sums of the two features in the aggregates.
func checkTrace(w *deployment, x *tenant) {
	w.t.Helper()
	for feature, amount := range map[string]int{"input_tokens": traceInput, "output_tokens": traceOutput} {
		const of = ` FROM usage_aggregates WHERE generation = 1 AND tenant_id = $1 AND feature = $2`
		sum, n := w.count(`SELECT sum(amount)::bigint`+of, x.id, feature), w.count(`SELECT sum(event_count)::bigint`+of, x.id, feature)
		if sum != amount || n != traceEvents/2 {
			w.t.Errorf("%s: %d in %d events, want %d in %d", feature, sum, n, amount, traceEvents/2)
		}
	}
}

// An hour of real traffic is imported, killed half way, imported to its end, and imported a second time: each event counts once.
func TestImportTheTrace(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	i := w.serve("")
	w.catalogue(i)
	x := w.createTenants(i, 1)[0]
	c := w.cli(i, x.key)
	killDuringImport(w, c, x)
	sum := c.run(importArgs()...)
	if sum.Events != traceEvents || sum.Accepted+sum.Duplicates != traceEvents || sum.Duplicates == 0 || sum.Accepted == 0 {
		t.Errorf("after the kill: %+v", sum)
	}
	w.drain()
	checkTrace(w, x)
	sum = c.run(importArgs("--wait", "1m")...)
	if sum.Duplicates != traceEvents || !strings.Contains(c.stderr.String(), "No new events") || !strings.Contains(c.stderr.String(), "All 17638 events are counted") {
		t.Errorf("second import: %+v, stderr %s", sum, c.stderr.String())
	}
	checkTrace(w, x)
	addToLedger(w, x)
	w.finish()
}

// killDuringImport kills an import when at least a third of it is in the log. Locked heads keep
// the import from recording more between the last count and the kill.
func killDuringImport(w *deployment, c *cli, x *tenant) {
	w.t.Helper()
	letGo := holdTransaction(w, `LOCK TABLE log_heads IN EXCLUSIVE MODE`)
	cmd := c.command(w.t.Context(), importArgs("--batch", "200", "--concurrency", "1")...)
	must.OK(w.t, cmd.Start())
	n := 0
	within(w.t, "half of the import is in the log", func(context.Context) (bool, string) {
		letGo()
		letGo = holdTransaction(w, `LOCK TABLE log_heads IN EXCLUSIVE MODE`)
		n = w.count(`SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND subject = 1`, x.id)
		return n > traceEvents/3, fmt.Sprint(n)
	})
	_ = cmd.Process.Signal(syscall.SIGKILL)
	_ = cmd.Wait()
	letGo()
	if cmd.ProcessState.Exited() || n >= traceEvents {
		w.t.Errorf("the import had ended before the kill (%d events)", n)
	}
	w.t.Logf("killed at %d events", n)
}

// addToLedger adds the imported events to the ledger from the log: their sums were
// checked against the totals of the file.
func addToLedger(w *deployment, x *tenant) {
	w.t.Helper()
	for id, r := range w.recorded(x) {
		f := x.ledger.record(event{EventID: id, Feature: r.feature, Amount: r.amount})
		f.accepted, f.position = 1, r.position
		x.ledger.ackedCount++
	}
}
