// Package sdk runs the tests of the SDKs in other languages, each in the runner of its language.
package sdk

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/meterplex/meterplex/infra/local/download"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// command runs a program in a folder of an SDK; a failure ends the test with the output.
func command(t *testing.T, folder string, env []string, args ...string) {
	t.Helper()
	run := exec.CommandContext(t.Context(), args[0], args[1:]...)
	run.Dir, run.Env = folder, append(os.Environ(), env...)
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%.8000s", args, err, out)
	}
}

// read reads the files that a test depends on, so that go test runs it again after they change.
func read(t *testing.T, folders ...string) {
	t.Helper()
	for _, folder := range folders {
		must.OK(t, filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				_, err = os.ReadFile(path)
			}
			return err
		}))
	}
}

// python returns Python 3.10 or later.
func python(t *testing.T) string {
	t.Helper()
	const version = "import sys; sys.exit(sys.version_info < (3, 10))"
	path, err := exec.LookPath("python3")
	if err == nil {
		err = exec.Command(path, "-c", version).Run()
	}
	if err != nil {
		t.Skipf("SKIPPED, the Python SDK was not tested: it needs python3 3.10 or later: %v", err)
	}
	return path
}

func TestPython(t *testing.T) {
	read(t, "python", "testdata")
	command(t, "python", []string{"PYTHONPATH=src", "PYTHONDONTWRITEBYTECODE=1"}, python(t), "-W", "error::ResourceWarning", "-m", "unittest")
}

// TestPythonPackage checks the types of the Python SDK with mypy, and builds its package.
func TestPythonPackage(t *testing.T) {
	tier.AtSize(t)
	const pins = "requirements.txt"
	text, err := os.ReadFile(filepath.Join("python", "tests", pins))
	must.OK(t, err)
	tools := filepath.Join(download.CacheDir(), fmt.Sprintf("sdk-python-%.8x", sha256.Sum256(text)))
	bin := filepath.Join(tools, "bin")
	if _, err := os.Stat(filepath.Join(tools, "whole")); err != nil {
		command(t, "python", nil, python(t), "-m", "venv", "--clear", tools)
		if out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "pip"), "install", "--quiet", "--disable-pip-version-check",
			"-r", filepath.Join("python", "tests", pins)).CombinedOutput(); err != nil {
			t.Skipf("SKIPPED, the types of the Python SDK were not checked: its tools cannot be installed here: %v\n%s", err, out)
		}
		must.OK(t, os.WriteFile(filepath.Join(tools, "whole"), nil, 0o600))
	}
	work := t.TempDir()
	must.OK(t, os.CopyFS(work, os.DirFS("python")))
	command(t, work, nil, filepath.Join(bin, "mypy"))
	command(t, work, nil, filepath.Join(bin, "python"), "-m", "build", "--no-isolation")
	built, err := filepath.Glob(filepath.Join(work, "dist", "meterplex-*"))
	must.OK(t, err)
	if len(built) != 2 {
		t.Fatalf("built %v, expected a wheel and an archive of the source", built)
	}
	command(t, work, nil, filepath.Join(bin, "pip"), "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", filepath.Join(work, "installed"), built[0])
	command(t, t.TempDir(), []string{"PYTHONPATH=" + filepath.Join(work, "installed")}, filepath.Join(bin, "python"), "-W", "error", "-c", "import meterplex.middleware, meterplex.llm")
}
