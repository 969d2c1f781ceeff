package cli

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/importer"
)

const tracePath = "../demo/AzureLLMInferenceTrace_code.csv"

// traceArgs returns the arguments that import the trace, followed by more.
func traceArgs(file string, more ...string) []string {
	return append([]string{
		"usage", "import", file, "-o", "json", "--time-column", "TIMESTAMP", "--name", "trace",
		"--map", "input_tokens=ContextTokens", "--map", "output_tokens=GeneratedTokens",
	}, more...)
}

func summaryOf(t *testing.T, stdout string) (s importer.Summary) {
	t.Helper()
	if err := json.Unmarshal([]byte(stdout), &s); err != nil {
		t.Fatalf("no summary on stdout: %v\n%s", err, stdout)
	}
	return s
}

// isTrace fails unless the fake service holds the whole trace exactly once.
func isTrace(t *testing.T, p *fakeService) {
	t.Helper()
	events, sums := p.totals()
	if events["input_tokens"] != 8819 || events["output_tokens"] != 8819 || len(events) != 2 ||
		sums["input_tokens"] != 18_059_974 || sums["output_tokens"] != 245_896 {
		t.Errorf("the service counts %v %v", events, sums)
	}
}

// TestImportTwiceCountsOnce, also without the state of the first import: the anchor of its times is found in the events.
func TestImportTwiceCountsOnce(t *testing.T) {
	p := newFakeService(t)
	c := newConsole(t, p)
	before := time.Now().Add(-time.Second)
	code, out, errs := c.run(traceArgs(tracePath, "--shift-to-now")...)
	if s := summaryOf(t, out); code != app.ExitYes || s.Accepted != 17_638 || s.Rows != 8819 || s.NotSent != 0 ||
		s.Features["input_tokens"].Amount != 18_059_974 || s.Anchor.Before(before) {
		t.Fatalf("exit code %d, %+v\n%s", code, s, errs)
	}
	isTrace(t, p)
	for _, c := range []*console{c, newConsole(t, p)} {
		code, out, errs = c.run(traceArgs(tracePath, "--shift-to-now", "--batch", "77")...)
		if s := summaryOf(t, out); code != app.ExitYes || s.Duplicates != 17_638 ||
			!strings.Contains(errs, "No new events: all 17638 were known.") {
			t.Errorf("exit code %d, %+v\n%s", code, s, errs)
		}
		isTrace(t, p)
	}
}

// TestImportResumesAfterAStop: the response to one batch is lost, then the service
// becomes unavailable; a second run of the import sends the rest.
func TestImportResumesAfterAStop(t *testing.T) {
	p := newFakeService(t)
	c := newConsole(t, p)
	p.after = func(n int) bool { return n == 2 }
	p.before = func(n int, w http.ResponseWriter) bool {
		if n < 9 {
			return false
		}
		refuse(w, http.StatusServiceUnavailable, "unavailable", "away")
		return true
	}
	code, out, errs := c.run(traceArgs(tracePath, "--shift-to-now", "--patience", "1ms")...)
	if code != app.ExitUnknown {
		t.Fatalf("exit code %d\n%s", code, errs)
	}
	if s := summaryOf(t, out); s.NotSent == 0 || s.NotSent == s.Events || s.Accepted+s.NotSent != s.Events {
		t.Errorf("the summary is %+v", s)
	}
	p.mu.Lock() // a request that the client gave up on may still be running
	p.before, p.after = nil, nil
	p.mu.Unlock()
	code, out, errs = c.run(traceArgs(tracePath, "--shift-to-now")...)
	if s := summaryOf(t, out); code != app.ExitYes || s.Accepted == 0 || s.Duplicates == 0 || s.Accepted+s.Duplicates != s.Events {
		t.Errorf("exit code %d, %+v\n%s", code, s, errs)
	}
	isTrace(t, p)
}

func TestImportStoresTheAnchorBeforeTheFirstEvent(t *testing.T) {
	p := newFakeService(t)
	c := newConsole(t, p)
	dir, _ := c.app.Env("METERPLEX_DATA_DIR")
	state := filepath.Join(dir, "imports", "trace.json")
	p.before = func(n int, w http.ResponseWriter) bool {
		var kept struct{ Anchor *time.Time }
		text, err := os.ReadFile(state)
		if err != nil || json.Unmarshal(text, &kept) != nil || kept.Anchor == nil {
			t.Errorf("at request %d the state is %s, %v", n, text, err)
		}
		return false
	}
	if code, _, errs := c.run(traceArgs(tracePath, "--shift-to-now")...); code != app.ExitYes {
		t.Fatalf("exit code %d\n%s", code, errs)
	}
}

func TestImportReportsConflictsAndRejections(t *testing.T) {
	p := newFakeService(t)
	c := newConsole(t, p)
	file := filepath.Join(t.TempDir(), "a.csv")
	text := "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,0\n2023-11-16 18:17:04,3,4\n"
	os.WriteFile(file, []byte(text), 0o600)
	p.tooOld = time.Date(2023, 11, 16, 18, 17, 4, 0, time.UTC)
	code, out, errs := c.run(traceArgs(file, "--backfill")...)
	if s := summaryOf(t, out); code != app.ExitNo || s.Accepted != 2 || s.RejectedByCode["timestamp_too_old"] != 1 ||
		s.SkippedZeroAmounts != 1 {
		t.Errorf("exit code %d, %+v", code, s)
	}
	if !strings.Contains(errs, "line 2, input_tokens: rejected: timestamp_too_old") || !strings.Contains(errs, "usage:backfill") {
		t.Errorf("it said\n%s", errs)
	}
	p.tooOld = time.Time{}
	for id, e := range p.known {
		e.Amount += 100
		p.known[id] = e
	}
	code, out, _ = c.run(traceArgs(file, "--backfill")...)
	if s := summaryOf(t, out); code != app.ExitNo || s.Accepted != 1 || s.Conflicts != 2 {
		t.Errorf("exit code %d, %+v", code, s)
	}
}

func TestImportSkipsBadRowsOnlyWhenAsked(t *testing.T) {
	p := newFakeService(t)
	c := newConsole(t, p)
	file := filepath.Join(t.TempDir(), "a.csv")
	rows := []string{
		"TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03,1,2", "2023-11-16 18:17:04,1.5,2", "soon,1,2",
		"2023-11-16 18:17:05,1", "2023-11-16 18:17:06,-1,2", "2023-11-16 18:17:07,5,6",
	}
	os.WriteFile(file, []byte(strings.Join(rows, "\r\n")), 0o600)
	code, out, errs := c.run(traceArgs(file, "--backfill")...)
	if code != app.ExitUnknown || out != "" || p.ingests != 0 {
		t.Errorf("exit code %d, %d requests\n%s", code, p.ingests, out)
	}
	for _, want := range []string{"line 3: ", "line 4: ", "line 5: ", "line 6: ", "4 of 6 rows"} {
		if !strings.Contains(errs, want) {
			t.Errorf("%q is not in\n%s", want, errs)
		}
	}
	code, out, _ = c.run(traceArgs(file, "--backfill", "--skip-bad")...)
	if s := summaryOf(t, out); code != app.ExitYes || s.Accepted != 4 || s.SkippedBadRows != 4 || s.Rows != 6 {
		t.Errorf("exit code %d, %+v", code, s)
	}
	os.WriteFile(file, []byte(strings.Join(append(rows[:1], rows[2:6]...), "\n")), 0o600)
	if code, out, errs := c.run(traceArgs(file, "--backfill", "--skip-bad")...); code != app.ExitUnknown || out != "" ||
		!strings.Contains(errs, "nothing sent: 4 of 4 rows are invalid") {
		t.Errorf("nothing left: exit code %d\n%s%s", code, out, errs)
	}
}

func TestImportOfOldTimesNamesTheOption(t *testing.T) {
	p := newFakeService(t)
	code, _, errs := newConsole(t, p).run(traceArgs(tracePath)...)
	if code != app.ExitUnknown || p.ingests != 0 || !strings.Contains(errs, "--shift-to-now") {
		t.Errorf("exit code %d, %d requests\n%s", code, p.ingests, errs)
	}
}
