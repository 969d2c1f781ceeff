package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestBenchReportsInvalidFlags(t *testing.T) {
	for args, want := range map[string]string{
		"bench all --only B77":                                 "known are B1, B2",
		"bench all --only B13 --history 19999":                 "--history is 20000 or more",
		"bench all --only B4 --setting x":                      "it is no NAME=VALUE",
		"bench all --only B4 --setting METERPLEX_TRACE_RATO=1": "METERPLEX_TRACE_RATO: there is no such setting",
		"bench all --only B4 --setting DATABASE_URL=postgres:": "DATABASE_URL: the benchmark sets it",
		"bench all --only B4 --setting METERPLEX_ROLES=a,b":    "METERPLEX_ROLES: the benchmark sets it",
		"bench all --only B4 --setting METERPLEX_HTTP_ADDR":    "METERPLEX_HTTP_ADDR: it is no NAME=VALUE",
		"bench ingest --batch 1001":                            "--batch is 1 to 1000",
		"bench ingest --duration 2h":                           "--duration is up to 1h",
		"bench flow --clients 0":                               "--clients is 1",
		"bench check --batch 101":                              "--batch is 1 to 100",
		"bench ingest --whale 50":                              "--tenants 2 or more",
		"bench ingest":                                         "--feature",
		"bench ingest --tenants 2 --feature f":                 "operator key",
		"bench rebuild --workers 33":                           "--workers is 0 to 32",
		"bench ingest --rate -1":                               "--rate",
		"bench check --server http://127.0.0.1:1 --feature f":  "is the service running there?",
	} {
		code, _, errs := runCommand(t, newFakeService(t, 0), strings.TrimPrefix(args, "bench "))
		if code != 2 || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, want %q in\n%s", args, code, want, errs)
		}
	}
}

// runCommand runs a command with a tenant's key of a service.
func runCommand(t *testing.T, service, args string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	env := map[string]string{"METERPLEX_URL": service, "METERPLEX_KEY": "mp_live_test"}
	a := &app{ctx: t.Context(), stdout: &out, stderr: &errs, env: func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}, now: time.Now}
	code = a.run(strings.Fields(args))
	return code, out.String(), errs.String()
}

// newFakeService is a fake service that accepts usage and answers checks, and refuses
// requests after the first most.
func newFakeService(t *testing.T, most int64) string {
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		var body struct{ Events []json.RawMessage }
		_ = json.Unmarshal(raw, &body)
		switch {
		case n.Add(1) > most:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/entitlements/f/check"):
			_, _ = io.WriteString(w, `{"allowed":true}`)
		case r.Method == http.MethodPost:
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprintf(w, `{"accepted":%d,"duplicates":0,"events":[{"position":"3-%d"}]}`, len(body.Events), n.Load())
		default: // the aggregates
			_, _ = io.WriteString(w, `{"data":[]}`)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestBenchMeasuresARunningService(t *testing.T) {
	const short = " --feature f --duration 200ms --warm-up 50ms -o json"
	for args, least := range map[string]int{
		"bench ingest --batch 10 --rate 1000": 200, "bench flow --batch 5 --rate 500": 100, "bench flow --clients 2": 100,
		"bench check --rate 100": 20, "bench check": 1,
	} {
		code, out, errs := runCommand(t, newFakeService(t, 1<<40), strings.TrimPrefix(args, "bench ")+short)
		var o struct {
			Loop      string
			Count     int
			RequestMs struct{ P99 float64 }
			FreshMs   *struct{ Of int }
		}
		if err := json.Unmarshal([]byte(out), &o); err != nil || code != 0 || o.Count < least || o.RequestMs.P99 == 0 {
			t.Errorf("%s: exit code %d, %v\n%s%s", args, code, err, out, errs)
		}
		if open := strings.Contains(args, "--rate"); open != (o.Loop == "open") ||
			(open && strings.Contains(args, "flow")) != (o.FreshMs != nil) {
			t.Errorf("%s: %s", args, out)
		}
	}
	code, out, errs := runCommand(t, newFakeService(t, 30), "ingest --rate 500 --batch 1"+short)
	if code != 1 || !strings.Contains(errs, "refused") || strings.Contains(out, `"refusedRequests": 0`) {
		t.Errorf("refused: exit code %d\n%s%s", code, out, errs)
	}
}
