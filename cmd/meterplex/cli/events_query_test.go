package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

// endlessLog serves a log that has no end.
func endlessLog(t *testing.T) *fakeService {
	p := &fakeService{t: t}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		var rows []string
		for n := range limit {
			rows = append(rows, fmt.Sprintf(`{"position":"3-%d","eventType":"a<b"}`, from+n+1))
		}
		fmt.Fprintf(w, `{"data":[%s],"nextCursor":"%d"}`, strings.Join(rows, ","), from+limit)
	}))
	t.Cleanup(s.Close)
	p.url = s.URL
	return p
}

// Without --limit, events query lists 100 events and says that there are more.
func TestP12_EventsQueryIsBounded(t *testing.T) {
	p := endlessLog(t)
	for limit, want := range map[string]int{"": 100, "7": 7, "1500": 1500} {
		args := []string{"events", "query", "-o", "ndjson"}
		if limit != "" {
			args = append(args, "--limit", limit)
		}
		code, out, errs := newConsole(t, p).run(args...)
		if lines := strings.Count(out, "\n"); code != app.ExitYes || lines != want ||
			!strings.Contains(errs, fmt.Sprintf("There are more than %d events", want)) {
			t.Errorf("--limit %s: exit code %d, %d events\n%s", limit, code, lines, errs)
		}
	}
	few := newFakeService(t)
	few.catalog["/api/v1/events"] = json.RawMessage(`{"data":[{"position":"3-1"}],"nextCursor":null}`)
	if code, out, errs := newConsole(t, few).run("events", "query", "-o", "json"); code != app.ExitYes ||
		out != "[\n  {\n    \"position\": \"3-1\"\n  }\n]\n" || errs != "" {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}

// The table of events shows who caused each, and why; a program's format has the members of the API alone.
func TestTheTableOfEventsShowsWhoAndWhy(t *testing.T) {
	p := newFakeService(t)
	p.catalog["/api/v1/events"] = json.RawMessage(`{"data":[
		{"position":"3-1","actor":{"type":"api_key","id":"d6d9413f-adb2-5a45-b24a-4a07e159524b","via":"console"},"payload":{"reason":"agreed by mail"}},
		{"position":"3-2","actor":{"type":"api_key","id":"k-1"},"payload":{}}, {"position":"3-3","actor":{"type":"api_key"},"payload":{}}],"nextCursor":null}`)
	_, table, _ := newConsole(t, p).run("events", "query")
	for _, want := range []string{"  by ", "  bootstrap operator key via console  agreed by mail  ", "  api_key/k-1  ", "  api_key  "} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	if _, out, _ := newConsole(t, p).run("events", "query", "-o", "csv"); !strings.HasPrefix(out,
		"position,recordedAt,eventType,tenantId,eventId,payload\n") {
		t.Error(out)
	}
}
