// Package sdk runs the tests of the SDKs in other languages, each in the runner of its language.
package sdk

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	read(t, "python", "testdata", "operations.json")
	command(t, "python", []string{"PYTHONPATH=src", "PYTHONDONTWRITEBYTECODE=1"}, python(t), "-W", "error::ResourceWarning", "-m",
		"unittest")
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
	command(t, work, nil, filepath.Join(bin, "pip"), "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target",
		filepath.Join(work, "installed"), built[0])
	command(t, t.TempDir(), []string{"PYTHONPATH=" + filepath.Join(work, "installed")}, filepath.Join(bin, "python"), "-W", "error", "-c",
		"import meterplex.middleware, meterplex.llm")
}

// node returns Node 20 or later.
func node(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("node")
	if err == nil {
		err = exec.Command(path, "-e", "process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)").Run()
	}
	if err != nil {
		t.Skipf("SKIPPED, the TypeScript SDK was not tested: it needs Node 20 or later: %v", err)
	}
	return path
}

func TestTypeScript(t *testing.T) {
	read(t, "typescript", "testdata", "operations.json")
	files, err := filepath.Glob(filepath.Join("typescript", "test", "*.test.mjs"))
	must.OK(t, err)
	if len(files) < 7 {
		t.Fatalf("only %d files of tests", len(files))
	}
	// Two processes: to start Node costs more than most files, and those of the queue take half of the time.
	groups := map[string][]string{}
	for _, file := range files {
		name := "others"
		if filepath.Base(file) == "queue.test.mjs" {
			name = "queue"
		}
		groups[name] = append(groups[name], "./test/"+filepath.Base(file))
	}
	args := []string{node(t), "--test-reporter=tap", "--input-type=module", "-e",
		`for (const file of process.argv.slice(1)) await import(file)`}
	var env []string
	if testing.Short() {
		env = append(env, "METERPLEX_TEST_SHORT=1")
	}
	for name, group := range groups {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command(t, "typescript", env, slices.Concat(args, group)...)
		})
	}
}

// TestTypeScriptPackage checks the types of the TypeScript SDK with tsc, and imports its package as applications do.
func TestTypeScriptPackage(t *testing.T) {
	tier.AtSize(t)
	text, err := os.ReadFile(filepath.Join("typescript", "package.json"))
	must.OK(t, err)
	tools := filepath.Join(download.CacheDir(), fmt.Sprintf("sdk-typescript-%.8x", sha256.Sum256(text)))
	if _, err := os.Stat(filepath.Join(tools, "whole")); err != nil {
		must.OK(t, errors.Join(os.MkdirAll(tools, 0o755), os.WriteFile(filepath.Join(tools, "package.json"), text, 0o600)))
		install := exec.CommandContext(t.Context(), "npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save",
			"--silent")
		install.Dir = tools
		if out, err := install.CombinedOutput(); err != nil {
			t.Skipf("SKIPPED, the types of the TypeScript SDK were not checked: its tools cannot be installed here: %v\n%s", err, out)
		}
		must.OK(t, os.WriteFile(filepath.Join(tools, "whole"), nil, 0o600))
	}
	work, err := os.MkdirTemp(tools, "work-") // below the tools: tsc finds the types of Node
	must.OK(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(work) })
	must.OK(t, os.CopyFS(work, os.DirFS("typescript")))
	command(t, work, nil, filepath.Join(tools, "node_modules", ".bin", "tsc"), "-p", ".")
	command(t, work, nil, "npm", "pack", "--silent")
	packed, err := filepath.Glob(filepath.Join(work, "meterplex-*.tgz"))
	must.OK(t, err)
	if len(packed) != 1 {
		t.Fatalf("packed %v, expected one archive", packed)
	}
	application := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(application, "package.json"), []byte("{}"), 0o600))
	command(t, application, nil, "npm", "install", "--offline", "--no-audit", "--no-fund", "--silent", packed[0])
	command(t, application, nil, node(t), "--input-type=module", "-e",
		`import { createRequire } from "node:module"; import { Meterplex } from "meterplex"
		if (createRequire(import.meta.url)("meterplex").Meterplex !== Meterplex) throw new Error("two classes")
		await new Meterplex({ url: "http://127.0.0.1:9", key: "k", dir: "queue" }).close({ deadlineMs: 1 })`)
}
