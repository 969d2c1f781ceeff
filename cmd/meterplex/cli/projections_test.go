package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

// answers is a fake service for the projection commands: a list of responses by method
// and path, returned in order; the last one is repeated.
type answers struct {
	mu   sync.Mutex
	list map[string][]string
	seen []string
}

func (s *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := r.Method + " " + strings.TrimPrefix(r.URL.Path, "/api/v1")
	if r.URL.RawQuery != "" && name == "GET /projections" {
		refuse(w, http.StatusBadRequest, "unknown_parameter", r.URL.RawQuery)
		return
	}
	s.seen = append(s.seen, name)
	left := s.list[name]
	if len(left) == 0 {
		refuse(w, http.StatusNotFound, "rebuild_not_found", "Rebuild not found")
		return
	}
	if len(left) > 1 {
		s.list[name] = left[1:]
	}
	code, body, _ := strings.Cut(left[0], " ")
	if code != "200" && code != "202" {
		status := http.StatusConflict
		_, _ = fmt.Sscan(code, &status)
		refuse(w, status, body, "no")
		return
	}
	if code == "202" {
		w.WriteHeader(http.StatusAccepted)
	}
	_, _ = w.Write([]byte(body))
}

func (s *answers) asked(name string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.seen {
		if one == name {
			n++
		}
	}
	return n
}

func newAnswers(t *testing.T, list map[string][]string) (*console, *answers) {
	s := &answers{list: list}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return newConsole(t, &fakeService{url: server.URL}), s
}

const (
	rebuildID = "0199f0a0-0000-7000-8000-000000000001"
	// A figure that a float64 cannot represent.
	rowThatDiffers = `{"tenantId":"t","feature":"calls","periodKey":"2026-05","subscriptionId":"s","live":90071992547409930001,` +
		`"rebuilt":90071992547409930004,"delta":3,"eventCount":2,"liveEventCount":2}`
	sameDiff = `{"projection":"usage_aggregates","data":[],"nextCursor":null,"asOfPositions":["1-2"],"totals":{"live":9,` +
		`"rebuilt":9,"delta":0,"keys":4,"differing":0},"conservation":{"holds":true}}`
	otherDiff = `{"projection":"usage_aggregates","data":[` + rowThatDiffers +
		`],"nextCursor":null,"asOfPositions":["1-2"],"totals":{"live":9,"rebuilt":12,"delta":3,"keys":4,"differing":1},` +
		`"conservation":{"holds":true}}`
	closedDiff = `{"projection":"usage_aggregates","data":[` + rowThatDiffers +
		`],"nextCursor":null,"asOfPositions":["1-2"],"totals":{"live":9,"rebuilt":12,"delta":3,"keys":4,"differing":2,"differingClosed":1},` +
		`"conservation":{"holds":true}}`
)

func rebuildIn(state string, done int) string {
	return fmt.Sprintf(
		`{"id":%q,"projection":"usage_aggregates","state":%q,"failure":"sour","differs":null,"progress":{"eventsDone":%d,"eventsTotal":100,`+
			`"eventsPerSecond":50,"etaSeconds":2,"converges":true}}`, rebuildID, state, done)
}

func TestRebuildIsWaitedFor(t *testing.T) {
	list := func(end string) map[string][]string {
		return map[string][]string{
			"POST /projections/usage_aggregates/rebuilds": {"202 " + rebuildIn("FOLDING", 0)},
			"GET /rebuilds/" + rebuildID:                  {"200 " + rebuildIn("FOLDING", 10), "200 " + rebuildIn(end, 100)},
		}
	}
	for _, c := range []struct {
		end, args string
		code      int
		out, err  string
	}{
		{"READY", "--reason r", app.ExitYes, "READY", "projections diff " + rebuildID},
		{"FAILED", "--reason r", app.ExitNo, "FAILED", "sour"},
		{"ABANDONED", "--reason r", app.ExitNo, "ABANDONED", "ABANDONED"},
		{"READY", "--reason r --no-wait", app.ExitYes, "0 of 100 events", ""},
		{"READY", "--reason r --progress=json", app.ExitYes, `"eventsDone":10`, ""},
		{"READY", "", app.ExitUnknown, "", "--reason"},
	} {
		console, seen := newAnswers(t, list(c.end))
		code, out, errs := console.run(append([]string{"projections", "rebuild", "usage_aggregates"}, strings.Fields(c.args)...)...)
		if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errs, c.err) {
			t.Errorf("%s %s: exit code %d\n%s%s", c.end, c.args, code, out, errs)
		}
		if strings.Contains(c.args, "json") && (strings.Count(out, "\n") != 2 || !json.Valid([]byte(strings.Split(out, "\n")[1]))) {
			t.Errorf("lines of JSON: %s", out)
		}
		if waited := seen.asked("GET /rebuilds/" + rebuildID); (waited == 0) != (strings.Contains(c.args, "no-wait") ||
			c.code == app.ExitUnknown) {
			t.Errorf("%s: looked %d times", c.args, waited)
		}
	}
}

// TestRebuildPrintsEachNoteOnce: each note of a rebuild is printed once: that it has no
// worker, and later that it does not converge.
func TestRebuildPrintsEachNoteOnce(t *testing.T) {
	noted := strings.Replace(rebuildIn("FOLDING", 0), `"converges":true`, `"converges":true,"note":"nobody is there"`, 1)
	slow := strings.Replace(rebuildIn("FOLDING", 10), `"converges":true`, `"converges":false,"note":"it is too slow"`, 1)
	console, _ := newAnswers(t, map[string][]string{
		"POST /projections/usage_aggregates/rebuilds": {"202 " + noted},
		"GET /rebuilds/" + rebuildID: {"200 " + noted, "200 " + noted, "200 " + slow, "200 " + slow,
			"200 " + rebuildIn("READY", 100)},
	})
	code, _, errs := console.run("projections", "rebuild", "usage_aggregates", "--reason", "r")
	if code != app.ExitYes || strings.Count(errs, "nobody is there") != 1 || strings.Count(errs, "it is too slow") != 1 {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}

func TestDifferenceDecidesTheExitCode(t *testing.T) {
	path := "GET /rebuilds/" + rebuildID + "/diff"
	for _, c := range []struct {
		answer, flags string
		code          int
		out, err      string
	}{
		{"200 " + sameDiff, "--exit-code", app.ExitYes, "tenantId", "No difference"},
		{"200 " + otherDiff, "--exit-code", app.ExitNo, "90071992547409930004", "from 9 to 12 (+3)"},
		{"200 " + otherDiff, "", app.ExitYes, "90071992547409930004", "1 of 4 keys differ"},
		{"200 " + closedDiff, "", app.ExitYes, "calls", "1 of them is of a closed period: a promotion changes no frozen figure"},
		{"200 " + closedDiff, "-o json", app.ExitYes, `"differingClosed": 1`, ""},
		{"200 " + otherDiff, "--exit-code -o json", app.ExitNo, `"rebuilt": 90071992547409930004`, ""},
		{"200 " + otherDiff, "--exit-code -o csv", app.ExitNo, "t,calls,2026-05,s,90071992547409930001,90071992547409930004,3,2", ""},
		{"409 rebuild_not_ready", "--exit-code", app.ExitUnknown, "", "rebuild_not_ready"},
		{"404 rebuild_not_found", "--exit-code", app.ExitUnknown, "", "rebuild_not_found"},
		{"200 {}", "--exit-code", app.ExitUnknown, "", "lacks the totals"},
		{"200 " + strings.Replace(sameDiff, `"holds":true`, `"holds":false,"verdicts":5,"counted":4`, 1), "", app.ExitYes, "",
			"CAUTION: 5 validated events"},
	} {
		console, _ := newAnswers(t, map[string][]string{path: {c.answer}})
		code, out, errs := console.run(append([]string{"projections", "diff", rebuildID}, strings.Fields(c.flags)...)...)
		if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errs, c.err) {
			t.Errorf("%s %s: exit code %d\n%s%s", c.answer, c.flags, code, out, errs)
		}
	}
	page := func(next string) string {
		return "200 " + strings.Replace(otherDiff, `"nextCursor":null`, `"nextCursor":`+next, 1)
	}
	console, seen := newAnswers(t, map[string][]string{path: {page(`"c1"`), page(`"c2"`), page("null")}})
	if _, out, _ := console.run("projections", "diff", rebuildID, "-o", "ndjson"); strings.Count(out, "\n") != 3 || seen.asked(path) != 3 {
		t.Errorf("%d pages: %s", seen.asked(path), out)
	}
}

func TestPromoteNeedsConfirmationIfFiguresChange(t *testing.T) {
	diff, promote := "GET /rebuilds/"+rebuildID+"/diff", "POST /rebuilds/"+rebuildID+"/promote"
	for _, c := range []struct {
		diff, flags string
		code, acts  int
		err         string
	}{
		{"200 " + otherDiff, "--reason r", app.ExitUnknown, 0, "--yes"},
		{"200 " + otherDiff, "--reason r --yes", app.ExitYes, 1, ""},
		{"200 " + sameDiff, "--reason r", app.ExitYes, 1, ""},
		{"200 " + strings.Replace(otherDiff, "usage_aggregates", "entitlement_reads", 1), "--reason r", app.ExitYes, 1, ""},
		{"409 rebuild_not_ready", "--reason r", app.ExitNo, 0, "rebuild_not_ready"},
		{"200 " + otherDiff, "--yes", app.ExitUnknown, 0, "--reason"},
	} {
		console, seen := newAnswers(t, map[string][]string{diff: {c.diff}, promote: {"202 " + rebuildIn("PROMOTED", 100)}})
		code, out, errs := console.run(append([]string{"projections", "promote", rebuildID}, strings.Fields(c.flags)...)...)
		if code != c.code || seen.asked(promote) != c.acts || !strings.Contains(errs, c.err) ||
			c.acts == 1 && !strings.Contains(out, "PROMOTED") {
			t.Errorf("%s %s: exit code %d, %d promotions\n%s%s", c.diff, c.flags, code, seen.asked(promote), out, errs)
		}
	}
}

func TestVerifyReportsARefusalAsUndetermined(t *testing.T) {
	verify, status := "POST /projections/usage_aggregates/verify", "GET /rebuilds/"+rebuildID
	outcome := func(state, differs, drift string) string {
		return fmt.Sprintf(`{"rebuildId":%q,"id":%q,"state":%q,"differs":%s,"drift":[%s],"repaired":false}`, rebuildID, rebuildID, state,
			differs, drift)
	}
	for _, c := range []struct {
		list     map[string][]string
		flags    string
		code     int
		out, err string
	}{
		{map[string][]string{verify: {"200 " + outcome("ABANDONED", "0", "")}}, "", app.ExitYes, "", "agrees with the log"},
		{map[string][]string{verify: {"200 " + outcome("ABANDONED", "1", rowThatDiffers)}}, "", app.ExitNo, "90071992547409930004",
			"--repair"},
		{map[string][]string{verify: {"200 " + outcome("PROMOTED", "1", rowThatDiffers)}}, "--repair --reason r", app.ExitNo, "calls",
			"repairs the rows"},
		{map[string][]string{verify: {"202 " + outcome("FOLDING", "null", "")},
			status: {"200 " + outcome("FOLDING", "null", ""), "200 " + outcome("ABANDONED", "1", rowThatDiffers)}}, "", app.ExitNo, "calls",
			""},
		{map[string][]string{verify: {"202 " + outcome("FOLDING", "null", "")}, status: {"200 " + outcome("FAILED", "null", "")}}, "",
			app.ExitUnknown, "", "FAILED"},
		{map[string][]string{verify: {"409 rebuild_in_progress"}}, "", app.ExitUnknown, "", "rebuild_in_progress"},
		{map[string][]string{}, "", app.ExitUnknown, "", "rebuild_not_found"},
		{map[string][]string{}, "--repair", app.ExitUnknown, "", "--reason"},
	} {
		console, _ := newAnswers(t, c.list)
		code, out, errs := console.run(append([]string{"projections", "verify", "usage_aggregates"}, strings.Fields(c.flags)...)...)
		if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errs, c.err) {
			t.Errorf("%v: exit code %d\n%s%s", c.list, code, out, errs)
		}
	}
}

func TestKeysOfADifference(t *testing.T) {
	path := "GET /rebuilds/" + rebuildID + "/diff/events"
	list := map[string][]string{
		path: {`200 {"data":[{"eventId":"e1","position":"1-2","verdictPosition":"1-3","live":1,"rebuilt":2,"delta":1}],"nextCursor":null,` +
			`"delta":4,"explained":1,"unexplained":3,"liveFold":"a/v1","rebuiltFold":"a/v2","note":"drifted"}`}}
	for _, args := range [][]string{{"projections", "events", rebuildID, "t/calls/2026-05"}, {"projections", "diff", rebuildID, "--events",
		"t/calls/2026-05/s"}} {
		console, _ := newAnswers(t, list)
		if code, out, errs := console.run(args...); code != app.ExitYes || !strings.Contains(out, "e1") ||
			!strings.Contains(errs, "leave 3") || !strings.Contains(errs, "drifted") {
			t.Errorf("%v: exit code %d\n%s%s", args, code, out, errs)
		}
	}
	console, _ := newAnswers(t, list)
	if code, _, errs := console.run("projections", "events", rebuildID, "calls"); code != app.ExitUnknown ||
		!strings.Contains(errs, "TENANT/FEATURE/PERIOD") {
		t.Errorf("exit code %d, %s", code, errs)
	}
}

func TestProjectionsAreListed(t *testing.T) {
	list := map[string][]string{"GET /projections": {
		`200 {"data":[{"name":"usage_aggregates","generation":2,"foldVersion":"usage_aggregates/v1","lagEvents":0,` +
			`"lastRebuild":{"id":"` + rebuildID + `","state":"READY"}}],"nextCursor":null}`}}
	console, _ := newAnswers(t, list)
	if code, out, _ := console.run("projections", "list"); code != app.ExitYes || !strings.Contains(out, "READY "+rebuildID) {
		t.Errorf("exit code %d\n%s", code, out)
	}
	if code, out, _ := console.run("projections", "status", "usage_aggregates"); code != app.ExitYes ||
		!strings.Contains(out, "foldVersion") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	if code, _, _ := console.run("projections", "status", "nothing"); code != app.ExitNo {
		t.Errorf("exit code %d", code)
	}
}
