package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

// TestARefusedEventIsLoud: the exit code is 1, and stderr has the number of refused events and the remedy of each code, once.
func TestARefusedEventIsLoud(t *testing.T) {
	p := newFakeService(t)
	p.tooOld = time.Now().Add(-time.Hour)
	c := newConsole(t, p)
	var in strings.Builder
	for n, at := range []time.Time{time.Now(), time.Now().Add(-2 * time.Hour), time.Now().Add(-3 * time.Hour)} {
		b, _ := json.Marshal(event{EventID: fmt.Sprint("e", n), Feature: "a", Amount: 1, Timestamp: at})
		in.Write(append(b, '\n'))
	}
	c.app.Stdin = strings.NewReader(in.String())
	code, _, errs := c.run("usage", "send")
	if code != app.ExitNo || !strings.Contains(errs, "2 of 3 events are NOT recorded") ||
		strings.Count(errs, "timestamp_too_old (2): Send the event with a key that has the scope usage:backfill") != 1 {
		t.Errorf("exit code %d\n%s", code, errs)
	}
	c.app.Stdin = strings.NewReader(strings.SplitAfter(in.String(), "\n")[0])
	if code, _, errs := c.run("usage", "send"); code != app.ExitYes || errs != "" {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}

// TestExplainDoesNotProveAFigureByACutList: the limit ends within the second page, and only all events prove the figure.
func TestExplainDoesNotProveAFigureByACutList(t *testing.T) {
	const events = 1300
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		var e struct {
			Total        json.Number       `json:"total"`
			EventCount   int64             `json:"eventCount"`
			Adds         bool              `json:"adds"`
			AsOfPosition string            `json:"asOfPosition"`
			Data         []json.RawMessage `json:"data"`
			NextCursor   *string           `json:"nextCursor"`
		}
		e.Total, e.EventCount, e.Adds, e.AsOfPosition = "1300", events, true, "3-1300"
		to := min(from+limit, events)
		for i := from; i < to; i++ {
			e.Data = append(e.Data, json.RawMessage(fmt.Sprintf(`{"position":"3-%d","amount":1,"count":1}`, i+1)))
		}
		if next := strconv.Itoa(to); to < events {
			e.NextCursor = &next
		}
		_ = json.NewEncoder(w).Encode(e)
	}))
	defer s.Close()
	c := newConsole(t, nil)
	c.setEnv(map[string]string{"METERPLEX_URL": s.URL})
	for limit, want := range map[int]int{0: events, 999: 999, 1000: 1000, 1200: 1200, 1299: 1299, events: events, 1301: events} {
		code, out, errs := c.run("usage", "explain", "--feature", "a", "--period", "2026-05", "-o", "ndjson", "--limit",
			strconv.Itoa(limit))
		proven, cut := strings.Contains(errs, "the events add up to it."),
			strings.Contains(errs, fmt.Sprintf("The first %d of 1300 events", want))
		if code != app.ExitYes || strings.Count(out, "\n") != want || proven != (want == events) || cut == proven {
			t.Errorf("--limit %d: exit code %d, %d rows\n%s", limit, code, strings.Count(out, "\n"), errs)
		}
	}
}

// TestAProducersIDLeadsToTheLogsEvent: events show expects the log's id, and receipts have it.
func TestAProducersIDLeadsToTheLogsEvent(t *testing.T) {
	for _, args := range []string{"events show order-1", "events lineage order-1"} {
		p := newFakeService(t)
		p.refuse = func(w http.ResponseWriter) { refuse(w, 404, "not_found", "Not found") }
		code, _, errs := newConsole(t, p).run(strings.Fields(args)...)
		if code != app.ExitNo || !strings.Contains(errs, "meterplex usage receipt order-1") || !strings.Contains(errs, "logEventId") {
			t.Errorf("%s: exit code %d\n%s", args, code, errs)
		}
		code, _, errs = newConsole(t, p).run(strings.Fields(strings.Replace(args, "order-1", "17-4711", 1))...)
		if code != app.ExitNo || strings.Contains(errs, "usage receipt") {
			t.Errorf("a position: exit code %d\n%s", code, errs)
		}
	}
}

// TestExpectedFlagsWork: --version, no arguments, and --port of serve.
func TestExpectedFlagsWork(t *testing.T) {
	c := newConsole(t, newFakeService(t))
	if code, out, errs := c.run("--version"); code != app.ExitYes || !strings.Contains(out, "commit") || errs != "" {
		t.Errorf("--version: exit code %d\n%s%s", code, out, errs)
	}
	if code, out, errs := c.run(); code != app.ExitUnknown || out != "" || !strings.Contains(errs, "meterplex demo") ||
		!strings.Contains(errs, "meterplex --help") {
		t.Errorf("no arguments: exit code %d\n%s%s", code, out, errs)
	}
	for _, args := range []string{"serve --port 9000", "serve --port=9000", "demo --port 9000"} {
		if code, _, errs := c.run(strings.Fields(args)...); code != app.ExitUnknown ||
			!strings.Contains(errs, "--http-addr 127.0.0.1:9000") {
			t.Errorf("%s: exit code %d\n%s", args, code, errs)
		}
	}
	c.setEnv(map[string]string{"METERPLEX_URL": "http://127.0.0.1:8080/api/v1"})
	if code, _, errs := c.run("tenants", "list"); code != app.ExitUnknown || !strings.Contains(errs, "METERPLEX_URL") ||
		!strings.Contains(errs, "give http://127.0.0.1:8080 alone") {
		t.Errorf("a path in METERPLEX_URL: exit code %d\n%s", code, errs)
	}
}
