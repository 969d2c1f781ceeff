package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

func TestClientSendsTheSameEventAgain(t *testing.T) {
	p := newFakeService(t)
	c := newConsole(t, p)
	p.after = func(n int) bool { return n == 0 }
	code, out, errs := c.run("usage", "send", "api_calls", "1", "-o", "ndjson")
	if code != app.ExitYes || !strings.Contains(out, `"status":"duplicate"`) || len(p.known) != 1 {
		t.Errorf("exit code %d, %d events are known, want one\n%s%s", code, len(p.known), out, errs)
	}
}

func TestClientPostsUnderOneIdempotencyKey(t *testing.T) {
	var keys []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		if len(keys) == 1 {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, `{"id":"x"}`)
	}))
	defer s.Close()
	code, _, errs := newConsole(t, &fakeService{url: s.URL}).run("tenants", "create", "Acme")
	if code != app.ExitYes || len(keys) != 2 || keys[0] == "" || keys[0] != keys[1] {
		t.Errorf("exit code %d, keys %q\n%s", code, keys, errs)
	}
}

// TestRemovalsAreRepeatedUnderOneIdempotencyKey: the service answers a repeat without it with 404.
func TestRemovalsAreRepeatedUnderOneIdempotencyKey(t *testing.T) {
	for _, args := range []string{"webhooks remove w1 --tenant t1", "thresholds remove h1 --tenant t1", "keys revoke k1 --operator",
		"tenants billing t1 --remove -o json", "entitlements release a r1"} {
		done, sent := "", 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			key := r.Header.Get("Idempotency-Key")
			switch sent++; {
			case sent == 1:
				done = key
				panic(http.ErrAbortHandler)
			case key == "" || key != done:
				refuse(w, http.StatusNotFound, "not_found", "It is gone")
			default:
				fmt.Fprint(w, `{"id":"x"}`)
			}
		}))
		code, _, errs := newConsole(t, &fakeService{url: s.URL}).run(strings.Fields(args)...)
		if s.Close(); code != app.ExitYes || sent != 2 {
			t.Errorf("%s: exit code %d after %d requests\n%s", args, code, sent, errs)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for status, want := range map[int]int{
		200: app.ExitYes, 400: app.ExitUnknown, 401: app.ExitUnknown, 403: app.ExitUnknown, 404: app.ExitNo, 409: app.ExitNo,
		422: app.ExitNo, 500: app.ExitUnknown, 503: app.ExitUnknown,
	} {
		var asked atomic.Int32
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			if status == 200 {
				fmt.Fprint(w, `{"id":"x"}`)
				return
			}
			refuse(w, status, "some_code", "Some detail\x1b[2J")
		}))
		code, out, errs := newConsole(t, &fakeService{url: s.URL}).run("--retry-for", "1ms", "tenants", "show", "x")
		s.Close()
		if code != want || asked.Load() == 0 || (status != 200 && (out != "" || !strings.Contains(errs, "some_code: Some detail\uFFFD"))) {
			t.Errorf("%d: exit code %d\n%s%q", status, code, out, errs)
		}
	}
	// Port 1 has no listener, and the system does not assign it during the test.
	code, out, errs := newConsole(t, &fakeService{url: "http://127.0.0.1:1"}).run("--retry-for", "1ms", "tenants", "list", "-o", "json")
	if code != app.ExitUnknown || out != "" || !strings.Contains(errs, "hint: is the service running there?") {
		t.Errorf("nobody there: exit code %d\n%s%s", code, out, errs)
	}
}

func TestProblemText(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(400)
		fmt.Fprint(w,
			`{"code":"validation_failed","detail":"Two members are wrong","errors":[{"pointer":"/name","code":"name_invalid","detail":"is empty"}]}`)
	}))
	defer s.Close()
	_, _, errs := newConsole(t, &fakeService{url: s.URL}).run("tenants", "create", "x")
	if want := "meterplex: validation_failed: Two members are wrong\n  /name: name_invalid: is empty\n"; errs != want {
		t.Errorf("%q", errs)
	}
}

func TestListFollowsPages(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get("cursor") {
		case "":
			fmt.Fprint(w, `{"data":[{"id":"1","name":"=a,\"b\""},{"id":"2","name":null}],"nextCursor":"n"}`)
		case "n":
			fmt.Fprint(w, `{"data":[{"id":"3","name":"c\u001b","limit":9007199254740993}],"nextCursor":null}`)
		}
	}))
	defer s.Close()
	for format, want := range map[string]string{
		"csv": "id,name,class,mode,status,createdAt,externalIds\n1,\"'=a,\"\"b\"\"\",,,,,\n2,,,,,,\n3,c\x1b,,,,,\n",
		"ndjson": "{\"id\":\"1\",\"name\":\"=a,\\\"b\\\"\"}\n{\"id\":\"2\",\"name\":null}\n{\"id\":\"3\",\"name\":\"c\\u001b\"," +
			"\"limit\":9007199254740993}\n",
		"table": "id  name    class  mode  status  createdAt  externalIds\n1   =a,\"b\"  -      -     -       -          -\n2   -      " +
			" -      -     -       -          -\n3   c\uFFFD      -      -     -       -          -\n",
	} {
		if code, out, errs := newConsole(t, &fakeService{url: s.URL}).run("tenants", "list", "-o", format); code != app.ExitYes ||
			out != want {
			t.Errorf("%s: exit code %d\n%q\n%q\n%s", format, code, out, want, errs)
		}
	}
	if _, out, _ := newConsole(t, &fakeService{url: s.URL}).run("tenants", "list", "-o", "ndjson", "--limit", "1"); strings.Count(out,
		"\n") != 1 {
		t.Errorf("--limit 1 gives %q", out)
	}
}

// The health check of an image knows no address but the settings, as doctor may, and the certificate of the instance is not for 127.0.0.1.
// No key is sent.
func TestSystemReadyAsksTheInstanceOfThisMachine(t *testing.T) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || r.Header.Get("Authorization") != "" {
			t.Errorf("requested %s with the key %q", r.URL, r.Header.Get("Authorization"))
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"status":"ready","version":"v1","dependencies":{}}`)
	})
	plain, secured := httptest.NewServer(answer), httptest.NewTLSServer(answer)
	defer plain.Close()
	defer secured.Close()
	port := func(s *httptest.Server) string { return s.URL[strings.LastIndex(s.URL, ":"):] }
	for _, settings := range []map[string]string{
		{"METERPLEX_HTTP_ADDR": port(plain)},
		{"METERPLEX_HTTP_ADDR": ":1", "METERPLEX_ADMIN_ADDR": "0.0.0.0" + port(plain)},
		{"METERPLEX_ADMIN_ADDR": "127.0.0.1" + port(secured), "METERPLEX_HTTP_TLS_CERT": "cert.pem", "METERPLEX_HTTP_TLS_KEY": "key.pem"},
	} {
		c := newConsole(t, &fakeService{url: "http://127.0.0.1:1"})
		c.setEnv(settings)
		if code, out, errs := c.run("system", "ready", "--here", "--retry-for", "0s"); code != app.ExitYes ||
			!strings.Contains(out, "ready") {
			t.Errorf("%v: exit code %d\n%s%s", settings, code, out, errs)
		}
		if _, out, errs := c.run("doctor", "-o", "ndjson"); !strings.Contains(out, "no answer at http://127.0.0.1:1") {
			t.Errorf("doctor does not ask METERPLEX_URL:\n%s%s", out, errs)
		}
		c = newConsole(t, nil)
		c.setEnv(settings)
		if _, out, errs := c.run("doctor", "-o", "ndjson"); !strings.Contains(out, "ready, version v1") {
			t.Errorf("doctor with %v:\n%s%s", settings, out, errs)
		}
	}
}

// An instance that is not ready answers no; an unreachable one does not answer.
func TestSystemReadySetsTheExitCode(t *testing.T) {
	answers := map[int]string{http.StatusOK: `{"status":"ready","version":"v1","dependencies":{"database":"ok"}}`,
		http.StatusServiceUnavailable: `{"status":503,"title":"Not ready","code":"not_ready","detail":"These dependencies do not ` +
			`answer: database"}`,
		http.StatusTeapot: `{}`}
	for status, want := range map[int]int{http.StatusOK: app.ExitYes, http.StatusServiceUnavailable: app.ExitNo,
		http.StatusTeapot: app.ExitUnknown} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/readyz" {
				t.Errorf("requested %s", r.URL)
			}
			w.Header().Set("Content-Type", map[bool]string{true: "application/json",
				false: "application/problem+json"}[status == http.StatusOK])
			w.WriteHeader(status)
			_, _ = w.Write([]byte(answers[status]))
		}))
		code, out, errs := newConsole(t, &fakeService{url: s.URL}).run("system", "ready", "--retry-for", "1ms")
		if s.Close(); code != want || !strings.Contains(out+errs, "database") && want != app.ExitUnknown {
			t.Errorf("%d: exit code %d\n%s%s", status, code, out, errs)
		}
	}
	if code, _, errs := newConsole(t, &fakeService{url: "http://127.0.0.1:1"}).run("system", "ready", "--retry-for",
		"1ms"); code != app.ExitUnknown {
		t.Errorf("unreachable: exit code %d\n%s", code, errs)
	}
}
