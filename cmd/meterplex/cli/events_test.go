package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/projections/audit"
)

// fakeLogService is a fake service that returns a log by partition and position, and
// sometimes breaks the connection.
type fakeLogService struct {
	*fakeService
	mu     sync.Mutex
	log    []string
	breaks int // how many responses break off, in the middle of a line
	asked  int
}

func newFakeLogService(t *testing.T, n int) *fakeLogService {
	p := &fakeLogService{fakeService: &fakeService{t: t}}
	p.Add(n)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/events/export", p.export)
	mux.HandleFunc("GET /api/v1/events/stream", p.stream)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	p.url = s.URL
	return p
}

// Add records events in two partitions.
func (p *fakeLogService) Add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	numbers := map[int]int{}
	var parts [2][]string
	for _, line := range p.log {
		part := p.position(line).Partition
		parts[part], numbers[int(part)] = append(parts[part], line), numbers[int(part)]+1
	}
	for range n {
		part := rand.N(2)
		numbers[part]++
		parts[part] = append(parts[part],
			fmt.Sprintf(`{"position":"%d-%d","recordedAt":"2026-05-01T00:00:00Z","eventType":"t","payload":{"pad":%q}}`, part,
				numbers[part], strings.Repeat("x", rand.N(3000))))
	}
	p.log = append(parts[0], parts[1]...)
}

func (p *fakeLogService) position(line string) events.Position {
	var e struct{ Position events.Position }
	must.OK(p.t, json.Unmarshal([]byte(line), &e))
	return e.Position
}

// rest returns the lines after a frontier.
func (p *fakeLogService) rest(after string) (rest []string) {
	var frontier audit.Frontier
	if after != "" {
		var err error
		if frontier, err = audit.ParseFrontier(after); err != nil {
			p.t.Errorf("after %q: %v", after, err)
		}
	}
	for _, line := range p.log {
		if at := p.position(line); at.Number > frontier[at.Partition] {
			rest = append(rest, line)
		}
	}
	return rest
}

// breaksOff reports whether a response breaks off at a line, with left lines to go: at a
// random line, but so that all breaks happen before the end.
func (p *fakeLogService) breaksOff(left int) bool {
	if p.breaks == 0 || rand.N(5) > 0 && left > p.breaks {
		return false
	}
	p.breaks--
	return true
}

func (p *fakeLogService) export(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	rest := p.rest(r.URL.Query().Get("after"))
	for n, line := range rest {
		if p.breaksOff(len(rest) - n) {
			fmt.Fprint(w, line[:rand.N(len(line))])
			panic(http.ErrAbortHandler)
		}
		fmt.Fprintln(w, line)
	}
}

// stream sends the rest of the log, and breaks off or ends.
func (p *fakeLogService) stream(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, "retry: 1000\n\n")
	var frontier audit.Frontier
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		frontier, _ = audit.ParseFrontier(last)
	}
	rest := p.rest(r.Header.Get("Last-Event-ID"))
	for n, line := range rest {
		at := p.position(line)
		frontier[at.Partition] = at.Number
		text := fmt.Sprintf("id: %s\ndata: %s\n\n", frontier, line)
		if p.breaksOff(len(rest) - n) {
			fmt.Fprint(w, text[:rand.N(len(text))])
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, text)
	}
}

// TestExportsResumeAfterABrokenConnection: despite broken connections, an export holds each line of
// the log exactly once.
func TestExportsResumeAfterABrokenConnection(t *testing.T) {
	p := newFakeLogService(t, 50)
	p.breaks = 5
	code, out, errs := newConsole(t, p.fakeService).run("events", "export", "--retry-for", "60s")
	if want := strings.Join(p.log, "\n") + "\n"; code != app.ExitYes || out != want || p.asked != 6 ||
		!strings.Contains(errs, "50 events") {
		t.Errorf("exit code %d after %d requests, %d bytes instead of %d\n%s", code, p.asked, len(out), len(want), errs)
	}
}

// TestExportsToAFileAreResumed: an export resumes from a file cut at any byte, and
// includes events recorded since.
func TestExportsToAFileAreResumed(t *testing.T) {
	p := newFakeLogService(t, 20)
	whole := strings.Join(p.log, "\n") + "\n"
	p.Add(10)
	file := filepath.Join(t.TempDir(), "log.ndjson")
	for range 30 {
		must.OK(t, os.WriteFile(file, []byte(whole[:rand.N(len(whole)+1)]), 0o600))
		code, out, errs := newConsole(t, p.fakeService).run("events", "export", "--resume", file)
		got, err := os.ReadFile(file)
		must.OK(t, err)
		seen := map[string]int{}
		for line := range strings.Lines(string(got)) {
			seen[strings.TrimSpace(line)]++
		}
		for _, line := range p.log {
			if seen[line] != 1 || len(seen) != len(p.log) {
				t.Fatalf("exit code %d, %d lines, one is there %d times\n%s%s", code, len(seen), seen[line], out, errs)
			}
		}
	}
	must.OK(t, os.WriteFile(file, []byte("{\"a\":1}\n"), 0o600))
	if code, _, errs := newConsole(t, p.fakeService).run("events", "export", "--resume", file); code != app.ExitUnknown ||
		!strings.Contains(errs, "holds no export") {
		t.Errorf("another file: exit code %d\n%s", code, errs)
	}
	if code, _, _ := newConsole(t, p.fakeService).run("events", "export", "--resume", file, "--after", "1-1"); code != app.ExitUnknown {
		t.Errorf("two places: exit code %d", code)
	}
}

func TestTailsResumeAfterABrokenConnection(t *testing.T) {
	p := newFakeLogService(t, 50)
	p.breaks = 5
	code, out, errs := newConsole(t, p.fakeService).run("events", "tail", "-o", "ndjson", "--retry-for", "60s")
	if want := strings.Join(p.log, "\n") + "\n"; code != app.ExitYes || out != want || p.asked != 6 {
		t.Errorf("exit code %d after %d requests, %d bytes instead of %d\n%s", code, p.asked, len(out), len(want), errs)
	}
}

func TestLineagesAreTrees(t *testing.T) {
	p := newFakeService(t)
	p.catalog["/api/v1/events/17-2/lineage"] = json.RawMessage(`{"root":"b","nodes":[
		{"eventId":"a","position":"17-1","summary":"one","recordedAt":"T1"},{"eventId":"b","position":"17-2","summary":"two","recordedAt":"T2"},
		{"eventId":"c","position":"17-3","summary":"three","recordedAt":"T3"},{"eventId":"d","position":"17-4","summary":"four\u001b[2J","recordedAt":"T4"},
		{"eventId":"e","position":"17-5","summary":"five","recordedAt":"T5"}],
		"edges":[{"from":"a","to":"b"},{"from":"b","to":"c"},{"from":"c","to":"d"},{"from":"b","to":"e"}],"completeUpTo":"17-9","truncated":false}`)
	code, out, errs := newConsole(t, p).run("events", "lineage", "17-2")
	want := "17-1  one  T1\n└─ 17-2  two  T2  <- this\n   └─ 17-3  three  T3\n      └─ 17-4  four\uFFFD[2J  T4\n   └─ 17-5  five  T5\n"
	if code != app.ExitYes || out != want {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	if code, out, _ := newConsole(t, p).run("events", "lineage", "17-2", "-o", "json"); code != app.ExitYes ||
		!strings.Contains(out, `"completeUpTo": "17-9"`) {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

func TestExplanationsThatDoNotAddUpSetTheExitCode(t *testing.T) {
	for adds, want := range map[bool]int{true: app.ExitYes, false: app.ExitNo} {
		p := newFakeService(t)
		p.catalog["/api/v1/usage/aggregates/explain"] = json.RawMessage(
			fmt.Sprintf(`{"total":5,"eventCount":1,"adds":%v,"asOfPosition":"3-4",
			"data":[{"eventId":"e","position":"3-1","amount":5,"count":1,"runningTotal":5}],"nextCursor":null,"rejected":[{"eventId":"r","code":"feature_not_found"}]}`, adds))
		code, out, errs := newConsole(t, p).run("usage", "explain", "--feature", "a", "--period", "2026-05", "--as-of-position", "3-4",
			"-o", "ndjson")
		if code != want || !strings.Contains(out, `"runningTotal":5`) ||
			!strings.Contains(errs, "The figure is 5 of 1 events, as of position 3-4") {
			t.Errorf("adds %v: exit code %d\n%s%s", adds, code, out, errs)
		}
		if len(p.requests) != 1 || !strings.Contains(p.requests[0], "asOfPosition=3-4&feature=a&limit=1000&period=2026-05") {
			t.Errorf("%q", p.requests)
		}
		if _, out, _ := newConsole(t, p).run("usage", "explain", "--feature", "a", "--period", "2026-05", "--rejected", "-o",
			"csv"); !strings.Contains(out, "feature_not_found") || strings.Contains(out, "3-1") {
			t.Errorf("rejected: %s", out)
		}
	}
}

// With --rejected one page of the events is read, which does not prove that all of them add up.
func TestALongFigureIsNotProvenByItsRejections(t *testing.T) {
	p := newFakeService(t)
	p.catalog["/api/v1/usage/aggregates/explain"] = json.RawMessage(
		`{"total":5,"eventCount":2000,"adds":true,"asOfPosition":"3-4","data":[],"nextCursor":"c","rejected":[],"rejectedMore":true}`)
	code, _, errs := newConsole(t, p).run("usage", "explain", "--feature", "a", "--period", "2026-05", "--rejected")
	if code != app.ExitYes || len(p.requests) != 1 || !strings.Contains(errs, "without --rejected all of them are read") ||
		!strings.Contains(errs, "There may be more") {
		t.Errorf("exit code %d, %q\n%s", code, p.requests, errs)
	}
}

// A page without events does not end the list, and not before --limit.
func TestAnExplanationGoesOnAfterAPageWithoutEvents(t *testing.T) {
	page := func(data, next string) string {
		return `{"total":5,"eventCount":1,"adds":true,"asOfPosition":"3-4","data":[` + data + `],"nextCursor":` + next + `}`
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, map[string]string{
			"": page("", `"b"`), "b": page(`{"eventId":"e","position":"3-1","amount":5,"count":1,"runningTotal":5}`, `"c"`),
			"c": page("", "null"),
		}[r.URL.Query().Get("cursor")])
	}))
	t.Cleanup(s.Close)
	for _, limit := range []string{"0", "2"} {
		code, out, errs := newConsole(t, &fakeService{t: t, url: s.URL}).run("usage", "explain", "--feature", "a", "--period", "2026-05",
			"--limit", limit, "-o", "ndjson")
		if code != app.ExitYes || !strings.Contains(out, `"eventId":"e"`) || !strings.Contains(errs, "the events add up to it") {
			t.Errorf("--limit %s: exit code %d\n%s%s", limit, code, out, errs)
		}
	}
}
