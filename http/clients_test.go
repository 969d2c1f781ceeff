package http_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/infra/local/download"
	"github.com/meterplex/meterplex/internal/tier"
)

// Generators of Go clients.
const (
	oapiCodegen = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2"
	ogen        = "github.com/ogen-go/ogen/cmd/ogen@v1.25.0"
)

// clientTools is a folder with the tools of one language, and the files of testdata/clients.
type clientTools struct {
	testing.TB
	dir string
	env []string
}

// newClientTools installs tools once for each content of the file that pins them. A tool that cannot be
// installed skips the test: the machine lacks it, or has no access to its registry.
func newClientTools(t *testing.T, w *testService, key, pins string, install ...[]string) *clientTools {
	t.Helper()
	if _, err := exec.LookPath(install[0][0]); err != nil {
		t.Skip(err)
	}
	text, err := os.ReadFile(filepath.Join("testdata", "clients", pins))
	w.must(err)
	c := &clientTools{t, filepath.Join(download.CacheDir(), fmt.Sprintf("clients-%.8x", sha256.Sum256(append(text, oapiCodegen+ogen...)))),
		append(os.Environ(), "METERPLEX_URL="+w.url, "METERPLEX_KEY="+key)}
	c.env = append(c.env, "GOBIN="+c.dir, "PATH="+filepath.Join(c.dir, "py", "bin")+string(os.PathListSeparator)+os.Getenv("PATH"))
	if _, err := os.Stat(filepath.Join(c.dir, "whole")); err != nil {
		w.must(errors.Join(os.RemoveAll(c.dir), os.MkdirAll(c.dir, 0o755), os.WriteFile(filepath.Join(c.dir, pins), text, 0o600)))
		for _, args := range install {
			if out, err := c.try(args...); err != nil {
				t.Skipf("%s cannot be installed here: %v\n%s", args[0], err, out)
			}
		}
		w.must(os.WriteFile(filepath.Join(c.dir, "whole"), nil, 0o600))
	}
	w.must(os.CopyFS(c.work(), os.DirFS(filepath.Join("testdata", "clients"))))
	w.must(os.WriteFile(filepath.Join(c.work(), "openapi.json"), w.do(call{method: "GET", path: "/openapi.json"}).body, 0o600))
	return c
}

// work is a folder of this test, below the tools, so that Node finds its modules.
func (c *clientTools) work() string { return filepath.Join(c.dir, fmt.Sprint("work-", os.Getpid())) }

func (c *clientTools) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(c.Context(), 15*time.Minute)
	defer cancel()
	run := exec.CommandContext(ctx, args[0], args[1:]...)
	if run.Dir, run.Env = c.work(), c.env; !exists(run.Dir) {
		run.Dir = c.dir
	}
	out, err := run.CombinedOutput()
	return string(out), err
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// must runs a command, whose output must hold a text.
func (c *clientTools) must(want string, args ...string) {
	c.Helper()
	if out, err := c.try(args...); err != nil || !strings.Contains(out, want) {
		c.Fatalf("%v: %v\n%.4000s", args, err, out)
	}
}

// TestToolsOfTheDescriptionWork: clients that are generated from the OpenAPI document compile and pass a
// round trip, and the linter of the document and the accessibility checker of its
// page report nothing. A language whose tools are missing is skipped; the faults that the tools found have faster tests of their own.
func TestToolsOfTheDescriptionWork(t *testing.T) {
	tier.AtSize(t)
	w, a := newServiceWithAccount(t)
	npm := []string{"npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"}
	tools := func(t *testing.T, pins string, install ...[]string) *clientTools {
		c := newClientTools(t, w, a.key, pins, install...)
		t.Cleanup(func() { _ = os.RemoveAll(c.work()) })
		return c
	}
	t.Run("Go", func(t *testing.T) {
		c := tools(t, "go.mod", []string{"go", "install", oapiCodegen}, []string{"go", "install", ogen}, []string{"go", "mod", "download"})
		w.must(os.MkdirAll(filepath.Join(c.work(), "api"), 0o755))
		c.must("", filepath.Join(c.dir, "oapi-codegen"), "-generate", "types,client", "-package", "api", "-o", "api/api.gen.go",
			"openapi.json")
		c.must("round trip", "go", "run", ".")
	})
	t.Run("Go by ogen", func(t *testing.T) {
		c := tools(t, "go.mod", []string{"go", "install", oapiCodegen}, []string{"go", "install", ogen}, []string{"go", "mod", "download"})
		c.must("", filepath.Join(c.dir, "ogen"), "-target", "ogen/api", "-package", "api", "-clean", "openapi.json")
		c.must("round trip", "go", "run", "./ogen")
	})
	t.Run("Python", func(t *testing.T) {
		c := tools(t, "requirements.txt", []string{"python3", "-m", "venv", "py"}, []string{"py/bin/pip", "install", "--quiet",
			"--disable-pip-version-check", "-r", "requirements.txt"})
		c.must("", filepath.Join(c.dir, "py", "bin", "openapi-python-client"), "generate", "--path", "openapi.json", "--output-path",
			"api_client", "--meta", "none")
		c.must("round trip", filepath.Join(c.dir, "py", "bin", "python"), "round_trip.py")
	})
	t.Run("TypeScript", func(t *testing.T) {
		c := tools(t, "package.json", npm)
		bin := filepath.Join(c.dir, "node_modules", ".bin")
		c.must("", filepath.Join(bin, "openapi-typescript"), "openapi.json", "-o", "api.d.ts")
		c.must("", filepath.Join(bin, "openapi-ts"), "-i", "openapi.json", "-o", "hey", "-c", "@hey-api/client-fetch")
		c.must("", filepath.Join(bin, "tsc"))
		c.must("round trip", "node", "out/round_trip.js")
		c.must("round trip", "node", "out/hey_api.js")
	})
	t.Run("spectral", func(t *testing.T) {
		c := tools(t, "package.json", npm)
		// openapi-python-client raises TypeError for every body of an operation that also has a list with items.
		w.must(os.WriteFile(filepath.Join(c.work(), ".spectral.yaml"), []byte(`{extends: ["spectral:oas"], rules: {array-items: off}}`),
			0o600))
		c.must("No results", filepath.Join(c.dir, "node_modules", ".bin", "spectral"), "lint", "openapi.json", "-F", "hint")
	})
	t.Run("axe", func(t *testing.T) {
		browser, err := exec.LookPath("chromium")
		if err != nil {
			t.Skip(err)
		}
		c := tools(t, "package.json", npm)
		c.env = append(c.env, "BROWSER="+browser)
		c.must("no violation", "node", "axe.js")
	})
}
