package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/infra/local/download"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// schemathesisChecks are the checks of each answer: conformance to the description, and
// refusal of the requests that the description forbids.
const schemathesisChecks = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance," +
	"response_schema_conformance,negative_data_rejection,unsupported_method,missing_required_header"

// schemathesisExamples is the number of requests for each operation: about three minutes.
const schemathesisExamples = "50"

// TestTheServiceMatchesItsOpenAPIDocument runs schemathesis, which derives valid and invalid
// requests and those at every bound from the description, with a tenant's key and an operator's.
func TestTheServiceMatchesItsOpenAPIDocument(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	tool := schemathesis(t)
	w := newDeployment(t)
	w.pipe = "postgres"
	at := w.serve("")
	x := described(w, at)
	// The tenant's key first: operators may suspend its tenant.
	for _, caller := range []struct{ name, key, paths string }{
		{"tenant", x.key, "^/api/v1/(usage|entitlements|events)"}, {"operator", w.operator, "."},
	} {
		args := []string{"-m", "schemathesis.cli", "--config-file", x.config, "run", at.url() + "/openapi.json",
			"-H", "Authorization: Bearer " + caller.key, "--include-path-regex", caller.paths, "--checks", schemathesisChecks, "--phases",
			"examples,coverage,fuzzing",
			"--max-examples", schemathesisExamples, "--generation-deterministic", "--no-shrink", "--continue-on-failure", "--workers", "1",
			"--request-timeout", "120", "--warnings", "off", "--no-color"}
		out, err := runSchemathesis(t, tool, args)
		for tries := 1; err != nil && tries < 3 && bytes.Contains(out, []byte("No issues found")); tries++ {
			t.Logf("%s: schemathesis failed without an issue:\n%s", caller.name, out)
			out, err = runSchemathesis(t, tool, args)
		}
		tested, made := figure(out, `Tested: (\d+)`), figure(out, `(\d+) generated`)
		t.Logf("%s: %d operations, %d requests", caller.name, tested, made)
		if err != nil || tested < 10 || made < tested {
			t.Errorf("%s: %v\n%s", caller.name, err, out)
		}
	}
	for _, fault := range []string{"panicked", "code=internal"} {
		if at.logContains(fault) {
			t.Errorf("the log contains %q:\n%s", fault, at.lastLines(30))
		}
	}
}

// runSchemathesis runs the tool once. On a slow machine it may fail on its own generated data
// (Hypothesis's Flaky), which only its exit code shows.
func runSchemathesis(t *testing.T, tool string, args []string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tool, args...)
	cmd.Dir = t.TempDir() // the tool stores its findings there
	cmd.Env = append(os.Environ(), "NO_PROXY=127.0.0.1", "PYTHONPATH="+testdata(t), "SCHEMATHESIS_HOOKS=hooks", "PYTHONDONTWRITEBYTECODE=1")
	return cmd.CombinedOutput()
}

func figure(out []byte, pattern string) int {
	found := regexp.MustCompile(pattern).FindSubmatch(out)
	if found == nil {
		return 0
	}
	n, _ := strconv.Atoi(string(found[1]))
	return n
}

func testdata(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("testdata/schemathesis")
	must.OK(t, err)
	return dir
}

// schemathesis returns the Python of an environment with schemathesis, made once for each
// requirements.txt. Without Python or the packages the test is skipped.
func schemathesis(t *testing.T) (python string) {
	t.Helper()
	list := filepath.Join(testdata(t), "requirements.txt")
	text, err := os.ReadFile(list)
	must.OK(t, err)
	if out, err := exec.CommandContext(t.Context(), "python3", "-c",
		"import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: schemathesis needs Python 3.11 or later with venv and pip: %v %s", err, out)
	}
	dir := filepath.Join(download.CacheDir(), fmt.Sprintf("schemathesis-%x", sha256.Sum256(text)))[:len(download.CacheDir())+30]
	python, whole := filepath.Join(dir, "bin", "python"), filepath.Join(dir, "whole")
	if _, err := os.Stat(whole); err == nil {
		return python
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	_ = os.RemoveAll(dir)
	for _, args := range [][]string{
		{"python3", "-m", "venv", dir}, // the list holds all packages
		{python, "-m", "pip", "install", "--no-deps", "--no-compile", "--quiet", "--disable-pip-version-check", "--no-input", "--retries",
			"1",
			"-r", list},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("SKIPPED: schemathesis cannot be installed here: %v\n%s", errors.Join(err, ctx.Err()), out)
		}
	}
	must.OK(t, os.WriteFile(whole, nil, 0o600))
	return python
}

// schemathesisRules: a followed stream has no end; an invalid event is answered by its
// verdict, with 202; the tool takes a comparison without a body and with a header of another name for an
// invalid one; and 503 with code unavailable is the answer of a service that is too busy in time, which a slow
// machine may be.
const schemathesisRules = `
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "503"]
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 409, 413, 415, 422, 429, "5xx"]
[[operations]]
include-operation-id = "streamEvents"
parameters = { follow = "false" }
[[operations]]
include-operation-id = "ingestUsage"
checks.negative_data_rejection.enabled = false
[[operations]]
include-operation-id = "verifyProjection"
checks.negative_data_rejection.enabled = false
`

// describedTenant is a tenant with at least one resource of every kind.
type describedTenant struct{ key, config string }

// described creates a resource of every kind and configures their ids as path parameters: a
// random id would only be answered by 404.
func described(w *deployment, at *instance) describedTenant {
	w.t.Helper()
	w.catalogue(at)
	x := w.createTenants(at, 1)[0]
	batch := events("described", 20, features()[0])
	w.ingest(at, x, "accepted", batch...)
	batch[0].Amount++
	w.ingest(at, x, "conflict", batch[0])
	var made struct{ ID string }
	ids := map[string]string{"tenantId": x.id, "subscriptionId": x.subscription, "eventId": batch[0].EventID, "feature": batch[0].Feature,
		"lookupKey": batch[0].Feature, "key": "all", "name": "usage_aggregates"}
	post := func(path string, in any, want int) string {
		w.ask(w.operator, http.MethodPost, at, "/api/v1"+path, in, &made, want)
		return made.ID
	}
	ids["keyId"] = post("/tenants/"+x.id+"/api-keys", object{"name": "spare", "scopes": []string{"usage:read"}}, http.StatusCreated)
	ids["rebuildId"] = post("/projections/usage_aggregates/rebuilds", object{"reason": "to be described"}, http.StatusAccepted)
	ids["replayId"] = post("/replays/rewind", object{"to": "start", "reason": "to be described"}, http.StatusAccepted)
	within(w.t, "a dead letter and an event exist", func(ctx context.Context) (bool, string) {
		var letter, event string
		err := w.sql.QueryRow(ctx, `SELECT (SELECT id::text FROM dead_letter_events LIMIT 1), (SELECT event_id::text
			FROM event_log_rows WHERE
 tenant_id = $1 LIMIT 1)`, x.id).Scan(&letter, &event)
		ids["deadLetterId"], ids["event"] = letter, event
		return err == nil, fmt.Sprint(err)
	})
	var text strings.Builder
	text.WriteString("[parameters]\n")
	for name, id := range ids {
		fmt.Fprintf(&text, "\"path.%s\" = %q\n", name, id)
	}
	text.WriteString(schemathesisRules)
	config := filepath.Join(w.t.TempDir(), "schemathesis.toml")
	must.OK(w.t, os.WriteFile(config, []byte(text.String()), 0o600))
	return describedTenant{w.keyOf(at, x, "usage:write", "usage:read", "entitlements:read", "entitlements:reserve", "events:read"), config}
}
