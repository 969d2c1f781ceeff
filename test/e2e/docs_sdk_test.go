package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

func TestSendUsagePage(t *testing.T) { runPageOfSDKs(t, "docs/how-to/send-usage.md", "1 counted") }

func TestAskLimitsPage(t *testing.T) {
	runPageOfSDKs(t, "docs/how-to/check-entitlements.md", "allowed")
}

// program matches a program of a page: its language and its text.
var program = regexp.MustCompile("(?s)```(go|js|python)\n(.*?)\n```")

// runPageOfSDKs runs the programs of a page, each in a project of its language, and the transcript, with the key of a tenant.
func runPageOfSDKs(t *testing.T, page, prints string) {
	tier.AtSize(t) // sdk/conformance runs more of each SDK in the short form
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres" // the pipe does not matter here
	text, err := os.ReadFile(filepath.Join("..", "..", page))
	must.OK(t, err)
	sdks, err := filepath.Abs("../../sdk")
	must.OK(t, err)
	dir := t.TempDir()
	write := func(name, text string) {
		must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	steps := slices.Concat([]step{{command: "meterplex features put api_calls --name Calls --type QUOTA >/dev/null"}}, demoKey())
	programs := program.FindAllStringSubmatch(string(text), -1)
	if len(programs) != 3 {
		t.Fatalf("%s has %d programs", page, len(programs))
	}
	for _, p := range programs {
		run, tool := "", p[1]
		switch p[1] {
		case "go":
			write("main.go", p[2])
			write("go.mod", "module example\n\ngo 1.24\n\nrequire github.com/meterplex/meterplex/sdk/go v0.1.0\n\nreplace "+
				"github.com/meterplex/meterplex/sdk/go => "+sdks+"/go\n")
			run = "go run ."
		case "js":
			write("main.mjs", p[2])
			must.OK(t, os.MkdirAll(filepath.Join(dir, "node_modules"), 0o700))
			must.OK(t, os.Symlink(filepath.Join(sdks, "typescript"), filepath.Join(dir, "node_modules", "meterplex")))
			run, tool = "node main.mjs", "node"
		case "python":
			write("main.py", p[2])
			run, tool = "PYTHONPATH="+sdks+"/python/src python3 main.py", "python3"
		}
		if _, err := exec.LookPath(tool); err != nil {
			t.Logf("SKIPPED: the program in %s of %s: %v", p[1], page, err)
			continue
		}
		steps = append(steps, step{command: run, want: []string{prints}})
	}
	steps = slices.Concat(steps, transcript(t, page, "## Without an SDK: HTTP\n"))
	runTranscript(w, w.serve(""), dir, steps, "GOFLAGS="+strings.Join(strings.Fields(os.Getenv("GOFLAGS")+" -mod=mod"), " "),
		"GOCACHE="+goCache(t))
}

// goCache returns the compiler's cache: the transcripts run with a HOME of their own.
func goCache(t *testing.T) string {
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOCACHE").Output()
	must.OK(t, err)
	return strings.TrimSpace(string(out))
}
