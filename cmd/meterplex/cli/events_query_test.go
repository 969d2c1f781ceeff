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
		if lines := strings.Count(out, "\n"); code != app.ExitYes || lines != want || !strings.Contains(errs, fmt.Sprintf("There are more than %d events", want)) {
			t.Errorf("--limit %s: exit code %d, %d events\n%s", limit, code, lines, errs)
		}
	}
	few := newFakeService(t)
	few.catalog["/api/v1/events"] = json.RawMessage(`{"data":[{"position":"3-1"}],"nextCursor":null}`)
	if code, out, errs := newConsole(t, few).run("events", "query", "-o", "json"); code != app.ExitYes || out != "[\n  {\n    \"position\": \"3-1\"\n  }\n]\n" || errs != "" {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}
