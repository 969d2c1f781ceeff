package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/sdk/conformance"
)

var (
	sdkResults = flag.String("sdk-results", "", "write the results of TestSDKs, by case and language, to this file")
	sdkRates   = flag.String("sdk-rates", "", "run TestSDKRates, and write its table to this file")
)

// installedSDKs builds the program of each SDK whose language is installed. Go always is.
func installedSDKs(t *testing.T) (all []conformance.Language) {
	t.Helper()
	folder, err := filepath.Abs(filepath.Join("..", "..", "sdk"))
	must.OK(t, err)
	path := filepath.Join(t.TempDir(), "conformance")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", filepath.Join(folder, "go"), "-ldflags=-s", "-o", path, "./conformance")
	build.Env = buildEnv()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the program of the Go SDK: %v\n%s", err, out)
	}
	all = append(all, conformance.Language{Name: "go", Command: []string{path}})
	for _, l := range []struct{ name, needs, tool, check, program string }{
		{"typescript", "Node 20 or later", "node", "process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)",
			"typescript/conformance.mjs"},
		{"python", "Python 3.10 or later", "python3", "import sys; sys.exit(sys.version_info < (3, 10))", "python/conformance.py"},
	} {
		option := map[string]string{"node": "-e", "python3": "-c"}[l.tool]
		if out, err := exec.CommandContext(t.Context(), l.tool, option, l.check).CombinedOutput(); err != nil {
			t.Logf("SKIPPED: the %s SDK needs %s: %v %s", l.name, l.needs, err, out)
			continue
		}
		all = append(all, conformance.Language{Name: l.name,
			Command: []string{l.tool, filepath.Join(folder, filepath.FromSlash(l.program))}})
	}
	return all
}

// newSDKSuite starts a service for the SDKs' programs.
func newSDKSuite(t *testing.T) (*deployment, *instance, *conformance.Suite) {
	t.Helper()
	w := newDeployment(t)
	w.pipe = "postgres" // the pipe does not matter here
	languages := installedSDKs(t)
	at := w.serve("")
	return w, at, &conformance.Suite{Languages: languages, Testdata: filepath.Join("..", "..", "sdk", "testdata"),
		Service: conformance.Service{URL: at.url(), OperatorKey: w.operator}}
}

// Each SDK keeps the promises of the table, over failures between it and the service and of its own process; a queue of one language is
// emptied by the others; and an application that is killed at random moments loses no recorded event. The short form runs the
// essential cases.
func TestSDKs(t *testing.T) {
	t.Parallel()
	_, _, suite := newSDKSuite(t)
	t.Run("cases", func(t *testing.T) {
		suite.Run(t, func(c conformance.Case, _ string) bool {
			return !testing.Short() || c.Essential
		})
	})
	t.Run("crossings", func(t *testing.T) { suite.Crossings(t, testing.Short()) })
	seed, killed := tier.Seed(t), suite.Languages
	if testing.Short() {
		killed = killed[:1]
	}
	for _, l := range killed {
		t.Run("kills/"+l.Name, func(t *testing.T) { suite.Kills(t, l, tier.Draws(t, 20, 1+1000/len(killed)), seed) })
	}
	if *sdkResults != "" {
		text := "# Results of the conformance cases\nWritten by `go test ./test/e2e -run '^TestSDKs$' -timeout 60m -sdk-results FILE`. " +
			"– means: not run, or not for this language.\n\n"
		must.OK(t, os.WriteFile(*sdkResults, []byte(text+suite.Table(t)), 0o644))
	}
}

// TestSDKRates measures the SDKs on purpose: go test ./test/e2e -run TestSDKRates -sdk-rates FILE.
func TestSDKRates(t *testing.T) {
	if *sdkRates == "" {
		t.Skip("it runs with -sdk-rates FILE only")
	}
	w, at, suite := newSDKSuite(t)
	const events = 200_000
	table := suite.Rates(t, events, map[string]func(testing.TB, string, string) float64{
		"meterplex usage import, four connections": func(t testing.TB, _, key string) float64 {
			return importRate(t, w, at, key, events, 4)
		},
		"meterplex usage import, one connection": func(t testing.TB, _, key string) float64 {
			return importRate(t, w, at, key, events, 1)
		},
	})
	text := fmt.Sprintf("# Rates of the SDKs\nWritten by `go test ./test/e2e -run '^TestSDKRates$' -sdk-rates FILE`: %d events of 100 "+
		"bytes, one service and its database on the same machine of %d processors.\n"+
		"`record` has 64 concurrent callers, waits for fsync, and no service answers; sending follows a restart, one connection, "+
		"in order.\n\n", events, runtime.NumCPU())
	must.OK(t, os.WriteFile(*sdkRates, []byte(text+table), 0o644))
	t.Log("\n" + table)
}

// importRate is the rate at which meterplex usage import sends events, with its start and its look at the file.
func importRate(t testing.TB, w *deployment, at *instance, key string, events, connections int) float64 {
	t.Helper()
	var rows bytes.Buffer
	rows.WriteString("id,amount,at\n")
	for i := range events {
		fmt.Fprintf(&rows, "row-%d,1,%s\n", i, time.Now().UTC().Format(time.RFC3339Nano))
	}
	file := filepath.Join(t.TempDir(), "rows.csv")
	must.OK(t, os.WriteFile(file, rows.Bytes(), 0o600))
	path, err := binary()
	must.OK(t, err)
	cmd := exec.CommandContext(t.Context(), path, "usage", "import", file, "--map", "sdk_calls=amount", "--time-column", "at",
		"--id-column", "id",
		"--concurrency", fmt.Sprint(connections), "--batch", "1000")
	cmd.Env = []string{"HOME=" + t.TempDir(), "METERPLEX_URL=" + at.url(), "METERPLEX_KEY=" + key}
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return float64(events) / time.Since(began).Seconds()
}
