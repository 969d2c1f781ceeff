package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
)

// buildExample builds a program of the folder examples.
func buildExample(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s", "-o", path, ".")
	build.Dir, build.Env = filepath.Join("../../examples", name), buildEnv() // a module of its own
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the example: %v\n%s", err, out)
	}
	return path
}

// losesFirstAnswers forwards requests to a service. The service executes each request, and the first answer to each path and method is
// lost.
func losesFirstAnswers(t *testing.T, to string) (address string, lost func(request string) bool) {
	t.Helper()
	target, err := url.Parse(to)
	must.OK(t, err)
	var known sync.Map
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ModifyResponse: func(answer *http.Response) error {
			if _, again := known.LoadOrStore(answer.Request.Method+" "+answer.Request.URL.Path, true); !again {
				return http.ErrAbortHandler
			}
			return nil
		},
		// the connection ends without an answer
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	})
	t.Cleanup(proxy.Close)
	return proxy.URL, func(request string) bool { _, found := known.Load(request); return found }
}

// examples/llm-budget keeps a tenant within its HARD limit of tokens, and charges each answer once, also if answers of the service are
// lost.
func TestExampleLLMBudget(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	at := w.serve("")
	program := buildExample(t, "llm-budget")
	w.ask(w.operator, http.MethodPut, at, "/api/v1/features/tokens", object{"name": "Tokens", "type": "QUOTA", "unit": "token"}, nil,
		http.StatusCreated)
	w.ask(w.operator, http.MethodPut, at, "/api/v1/plans/all", object{"name": "All", "entitlements": []object{
		{"feature": "tokens", "limit": 1000, "limitBehavior": "HARD", "resetPeriod": "MONTHLY"}}}, nil, http.StatusCreated)
	x := w.createTenants(at, 1)[0]
	key := w.keyOf(at, x, "entitlements:reserve")
	proxy, lost := losesFirstAnswers(t, at.url())
	for _, c := range []struct {
		args     string
		to       string
		code     int
		out, err string // parts of what it prints
		account  string // used, held and openReservations after it
	}{
		{"-id one -estimate 500 -tokens 412", at.url(), 0, "Your prompt has 5 words.", "held 500, used 412, released 88, remaining 588",
			"412 0 0"},
		{"-id one -estimate 500 -tokens 412", at.url(), 1, "", "reservation_ended: The reservation one is COMMITTED", "412 0 0"},
		{"-id two -estimate 500 -tokens 100", proxy, 0, "words.", "held 500, used 100, released 400, remaining 488", "512 0 0"},
		{"-id three -estimate 400 -fail", proxy, 1, "", "the model failed", "512 0 0"},
		{"-id four -estimate 489", at.url(), 1, "", "quota_exceeded: The limit of tokens does not allow this amount: 488 of 1000 remain",
			"512 0 0"},
		{"-id five -estimate 488 -tokens 700", proxy, 0, "words.", "held 488, used 700, released 0, remaining 0", "1212 0 0"},
		{"-id six -estimate 1", proxy, 1, "", "quota_exceeded: The limit of tokens does not allow this amount: 0 of 1000 remain",
			"1212 0 0"},
	} {
		code, out, errs := runExample(w, program, c.to, key, append(strings.Fields(c.args), "Why is the sky blue?")...)
		if code != c.code || !strings.Contains(out, c.out) || c.out == "" && out != "" || !strings.Contains(errs, c.err) {
			t.Errorf("%s: exit code %d\n%s%s", c.args, code, out, errs)
		}
		if got := unitsOf(w, at, x, "tokens"); got != c.account {
			t.Errorf("%s: the account has %s, want %s", c.args, got, c.account)
		}
	}
	for _, request := range []string{"POST ", "POST /two/commit", "DELETE /three", "POST /five/commit"} {
		method, path, _ := strings.Cut(request, " ")
		if !lost(method + " /api/v1/entitlements/tokens/reservations" + path) {
			t.Errorf("no answer to %s was lost", request)
		}
	}
}

// runExample runs a program with a service's address and a key, and returns its exit code and its output.
func runExample(w *deployment, path, url, key string, args ...string) (code int, out, errs string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	var printed, complained strings.Builder
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "METERPLEX_URL=" + url, "METERPLEX_KEY=" + key}
	cmd.Stdout, cmd.Stderr = &printed, &complained
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		w.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), printed.String(), complained.String()
}

// unitsOf returns used, held and openReservations of a tenant's feature, in this period.
func unitsOf(w *deployment, at *instance, x *tenant, feature string) string {
	w.t.Helper()
	var page struct {
		Data []struct{ Used, Held, OpenReservations int64 }
	}
	w.ask(w.operator, http.MethodGet, at, "/api/v1/quota/accounts?tenantId="+x.id+"&feature="+feature, nil, &page, http.StatusOK)
	if len(page.Data) != 1 {
		w.t.Fatalf("%d accounts", len(page.Data))
	}
	a := page.Data[0]
	return fmt.Sprint(a.Used, a.Held, a.OpenReservations)
}
