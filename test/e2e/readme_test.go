package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// step is a command of a transcript with its expected output.
type step struct {
	command string
	want    []string
}

// transcript reads the first console block after a heading of a document; "" means its beginning.
func transcript(t testing.TB, path, heading string) []step {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository(), path))
	must.OK(t, err)
	_, rest, ok := strings.Cut("\n"+string(text), "\n"+heading)
	_, block, opened := strings.Cut(rest, "```console\n")
	block, _, ended := strings.Cut(block, "\n```")
	if !ok || !opened || !ended {
		t.Fatalf("%s has no transcript after %q", path, heading)
	}
	return stepsOf("console", strings.Split(block, "\n"))
}

// matches compares a line with the document's line; "…" matches any text, and a run of
// spaces counts as one.
func matches(want, got string) bool {
	fold := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	pattern := strings.ReplaceAll(regexp.QuoteMeta(fold(want)), "…", ".*")
	return regexp.MustCompile("^" + pattern + "$").MatchString(fold(got))
}

func TestReadmeTranscript(t *testing.T) {
	t.Parallel()
	w := newDeployment(t)
	at := w.serve("")
	runTranscript(w, at, t.TempDir(), transcript(t, "docs/tutorials/first-tenant.md", ""))

	steps := slices.Concat(demoKey(), transcript(t, "README.md", ""), transcript(t, "README.md", "## May this customer do it?"))
	runTranscript(w, at, t.TempDir(), steps)
}

// demoKey returns the commands that set METERPLEX_KEY to a key with the rights and limits of the demo's, which make run prints.
func demoKey() []step {
	return []step{
		{command: "meterplex plans put demo --name Demo --entitlement api_calls=1000000,HARD,MONTHLY >/dev/null"},
		{command: "TENANT=$(meterplex tenants create 'Demo Inc.' --class small | awk '/^id/ {print $2}')"},
		{command: "meterplex subscriptions create --tenant $TENANT --plan demo >/dev/null"},
		{command: "export METERPLEX_KEY=$(meterplex keys create --tenant $TENANT --name demo" +
			" --scope usage:write,entitlements:read,entitlements:reserve 2>/dev/null" +
			" | awk '/^secret/ {print $2}')"},
	}
}

func TestImportTranscript(t *testing.T) { runDocument(t, "docs/how-to/import-a-file.md", "") }

func TestLimitsTranscript(t *testing.T) {
	runDocument(t, "docs/how-to/hold-amounts.md", "", "## Reservations")
}

func TestCorrectionsTranscript(t *testing.T) { runDocument(t, "docs/how-to/correct-usage.md", "") }

func TestPricesTranscript(t *testing.T) { runDocument(t, "docs/tutorials/first-invoice.md", "") }

func TestBudgetTranscript(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // the pipe does not matter here
	dir := t.TempDir()
	must.OK(t, os.Symlink(buildExample(t, "llm-budget"), filepath.Join(dir, "llm-budget")))
	runTranscript(w, w.serve(""), dir, transcript(t, "docs/tutorials/llm-budget.md", ""))
}

// runDocument runs transcripts of a document, one after the other.
func runDocument(t *testing.T, path string, headings ...string) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // the pipe does not matter here
	var steps []step
	for _, heading := range headings {
		steps = append(steps, transcript(t, path, heading)...)
	}
	runTranscript(w, w.serve(""), t.TempDir(), steps)
}

// The proof of docs/how-to/prove-an-invoice-line.md is of the period that the transcript of docs/how-to/close-a-period.md closed.
func TestPeriodsTranscript(t *testing.T) {
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // the pipe does not matter here
	at := w.serve("")
	steps := transcript(t, "docs/how-to/close-a-period.md", "")
	if _, err := exec.LookPath("jq"); err != nil {
		t.Log("docs/how-to/prove-an-invoice-line.md: the proof needs jq")
	} else {
		blocks := docBlocks(t)
		at := slices.IndexFunc(blocks, func(b docBlock) bool {
			return strings.HasPrefix(b.name(), "docs/how-to/prove-an-invoice-line.md $ meterplex periods export")
		})
		export, computed, said := blocks[at].steps[0], blocks[at].steps[1], blocks[at].steps[2]
		equal := `test "$(` + computed.command + ` | cut -d' ' -f1)" = "$(` + said.command + `)" && echo equal`
		steps = append(steps, export, step{command: equal, want: []string{"equal"}})
	}
	runTranscript(w, at, t.TempDir(), steps)
}

// runTranscript runs a transcript in a folder, in one shell, and compares its output.
func runTranscript(w *deployment, at *instance, dir string, steps []step, env ...string) {
	w.t.Helper()
	const mark = "--- step "
	var script strings.Builder
	for i, s := range steps {
		fmt.Fprintf(&script, "%s\necho; echo '%s%d'\n", s.command, mark, i)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	shell := exec.CommandContext(ctx, "sh", "-c", "exec 2>&1\n"+script.String())
	shell.Dir, shell.WaitDelay = dir, 10*time.Second
	built, err := binary()
	must.OK(w.t, err)
	path := w.t.TempDir()
	must.OK(w.t, os.Symlink(built, filepath.Join(path, "meterplex")))
	shell.Env = append([]string{"PATH=" + path + ":" + os.Getenv("PATH"), "METERPLEX_URL=" + at.url(), "METERPLEX_ADMIN_URL=" + at.health(),
		"METERPLEX_KEY=" + w.operator, "HOME=" + dir}, env...)
	out, err := shell.CombinedOutput()
	if err != nil {
		w.t.Fatalf("%v, %v\n%s", err, ctx.Err(), out)
	}
	rest := string(out)
	for i, s := range steps {
		var printed string
		printed, rest, _ = strings.Cut(rest, fmt.Sprintf("%s%d\n", mark, i))
		got := strings.FieldsFunc(printed, func(r rune) bool { return r == '\n' })
		if len(got) != len(s.want) {
			w.t.Errorf("$ %s\nprinted %d lines, the document has %d:\n%s", s.command, len(got), len(s.want), printed)
			continue
		}
		for n := range got {
			if !matches(s.want[n], got[n]) {
				w.t.Errorf("$ %s\nprinted      %q\nthe document %q", s.command, got[n], s.want[n])
			}
		}
	}
}
