package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

const overviewAnswer = `{"at":"2026-05-01T12:00:00Z","instance":{"id":"i-1","perSecond":{"accepted":950.3},` +
	`"freshness":[{"consumer":"c","p50Seconds":0.006,"p99Seconds":0.031}]},` +
	`"installation":{"outbox":{"recorded":100,"unpublished":7,"oldestSeconds":3.25},"consumers":[{"name":"c","positions":40,` +
	`"seconds":0.2}],"identity":{"holds":false,"missing":2,"ageSeconds":12}},` +
	`"attention":[{"kind":"push_failed","subject":null,"count":3,"since":null,"path":"/api/v1/pushes?state=FAILED"}],` +
	`"history":{"from":"2026-05-01T11:45:00Z"}}`

func TestTheOverviewIsPrinted(t *testing.T) {
	p := newFakeService(t)
	p.catalog["/api/v1/system/overview"] = json.RawMessage(overviewAnswer)
	code, out, errs := newConsole(t, p).run("system", "overview")
	if code != app.ExitYes {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	for _, want := range []string{"0.031", "push_failed", "/api/v1/pushes?state=FAILED"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing:\n%s", want, out)
		}
	}
	for _, want := range []string{"instance i-1: 950.3 accepted", "7 of 100 events unpublished, the oldest for 3.2 s",
		"does NOT hold, as of 12 s ago: 2 events are missing"} {
		if !strings.Contains(errs, want) {
			t.Errorf("%q is missing:\n%s", want, errs)
		}
	}
	if code, out, errs := newConsole(t, p).run("system", "overview", "-o", "json"); code != app.ExitYes ||
		!strings.Contains(out, `"unpublished"`) {
		t.Errorf("as JSON: exit code %d\n%s%s", code, out, errs)
	}
}

// A watch prints each event, and ends with the error of a revoked key.
func TestAWatchOfTheOverviewEndsWithItsKey(t *testing.T) {
	streams := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if streams++; streams > 1 {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"code":"unauthenticated","detail":"revoked"}`))
			return
		}
		if r.Header.Get("Accept") != "text/event-stream" {
			t.Errorf("Accept: %q", r.Header.Get("Accept"))
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			_, _ = fmt.Fprintf(w, "event: overview\ndata: %s\n\n", overviewAnswer)
		}
	}))
	defer s.Close()
	p := &fakeService{t: t}
	p.url = s.URL
	code, out, errs := newConsole(t, p).run("system", "overview", "--watch", "-o", "json")
	if code == app.ExitYes || strings.Count(out, `"unpublished":7`) != 3 || strings.Contains(out, "history") ||
		!strings.Contains(errs, "unauthenticated") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}
