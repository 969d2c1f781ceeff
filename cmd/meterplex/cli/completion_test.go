package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/internal/must"
)

func TestBashCompletes(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash on this machine")
	}
	_, script, _ := newConsole(t, nil).run("completion", "bash")
	file := filepath.Join(t.TempDir(), "meterplex.bash")
	must.OK(t, os.WriteFile(file, []byte(script), 0o600))
	for line, want := range map[string]string{
		"ten":                 "tenants",
		"usage i":             "import",
		"-o json usage i":     "import",
		"usage import --shi":  "--shift-to-now",
		"usage import --outp": "--output",
		"dead-letters r":      "retry",
		"completion f":        "fish",
		"nonsense usage sen":  "send",
	} {
		words := append([]string{"meterplex"}, strings.Split(line, " ")...)
		args := append([]string{"-c", `source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _meterplex; echo "${COMPREPLY[@]}"`, file},
			words...)
		out, err := exec.Command(bash, args...).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%q gives %q, %v; want %q", line, got, err, want)
		}
	}
}

// TestCompletionNamesEveryCommand: the scripts of the other shells contain the same words.
func TestCompletionNamesEveryCommand(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		code, script, errs := newConsole(t, nil).run("completion", shell)
		if code != app.ExitYes {
			t.Fatalf("exit code %d\n%s", code, errs)
		}
		for _, want := range []string{"'usage import'", "'dead-letters retry'", "--shift-to-now", "--entitlement", "'config print'"} {
			if !strings.Contains(script, want) {
				t.Errorf("%s: %s is missing", shell, want)
			}
		}
	}
}
