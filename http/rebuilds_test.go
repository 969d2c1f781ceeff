package http_test

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"log/slog"
	nethttp "net/http"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/rebuild"
	"github.com/meterplex/meterplex/projections/usage"
)

// twice is a fold with a planted difference: storage counts twice.
const twice = projections.ProjectionUsage + "/twice"

func foldDoubled(e *events.Envelope) (usage.Key, usage.Delta, error) {
	key, d, err := usage.FoldV1(e)
	if key.Feature == "storage" {
		d.Amount *= 2
	}
	return key, d, err
}

// doublingFolds returns the folds of a release whose newest usage fold has the planted
// difference.
func doublingFolds() models.Folds {
	folds := models.DefaultFolds()
	folds.Usage = folds.Usage.With(twice, foldDoubled)
	return folds
}

func rebuildsBy(store commands.RebuildStore, folds models.Folds) *commands.Rebuilds {
	r := &commands.Rebuilds{Store: store, Now: time.Now, NewID: newID}
	for _, p := range models.List(folds, newID) {
		r.Projections = append(r.Projections, commands.Projection{Name: p.Name, Consumer: p.Consumer.Name, Newest: p.Newest(), ByPeriod: p.ByPeriod})
	}
	return r
}

// withDoublingFold lets usage rebuilds use the fold with the planted difference.
func withDoublingFold(s *http.Server) {
	s.Rebuilds = rebuildsBy(s.Rebuilds.Store, doublingFolds())
	s.Reads = models.NewReads(s.Reads.Rebuilds.DB, s.Reads.Entitlements.Grants, doublingFolds(), time.Now, 0)
}

// rebuilding runs the rebuild workers until the test ends.
func (w *testService) rebuilding() (stop func()) {
	w.Helper()
	reads := models.NewReads(query.DB{Pool: w.pool}, nil, doublingFolds(), time.Now, 0)
	decide := rebuildsBy(w.rebuildStore(), models.DefaultFolds())
	b := &rebuild.Rebuilder{
		Pool: w.pool, Log: w.log, NewID: newID, Logger: slog.New(slog.DiscardHandler), Instance: "test", Every: time.Millisecond,
		Projections: models.List(doublingFolds(), newID),
		Verify: func(ctx context.Context, r domain.Rebuild) error {
			differs, sample, err := reads.Rebuilds.Drift(ctx, r)
			if err == nil {
				err = reads.Rebuilds.SaveReport(ctx, r.ID, sample)
			}
			if err != nil {
				return err
			}
			return decide.FinishVerify(ctx, r.ID, differs)
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = b.Run(ctx) }()
	return func() { cancel(); <-done }
}

// rebuilt returns the id of a rebuild that is READY.
func (w *testService) rebuilt(projection string, more map[string]any) string {
	w.Helper()
	defer w.rebuilding()()
	body := map[string]any{"reason": "test"}
	for k, v := range more {
		body[k] = v
	}
	made := w.do(call{"POST", "/api/v1/projections/" + projection + "/rebuilds", bootstrap, nil, body})
	var r struct{ ID, State string }
	w.must(json.Unmarshal(made.body, &r))
	if made.status != 202 || made.header.Get("Location") != "/api/v1/rebuilds/"+r.ID || r.State == "" {
		w.Fatalf("%d %v %s", made.status, made.header, made.body)
	}
	w.awaitState(r.ID, "READY")
	return r.ID
}

func (w *testService) awaitState(id, state string) map[string]any {
	w.Helper()
	for {
		got := w.want(200, call{method: "GET", path: "/api/v1/rebuilds/" + id, key: bootstrap})
		if got["state"] == state {
			return got
		}
		if got["state"] == "FAILED" {
			w.Fatalf("%v", got)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (w *testService) get(path string) map[string]any {
	w.Helper()
	return w.want(200, call{method: "GET", path: "/api/v1" + path, key: bootstrap})
}

func (w *testService) decide(id, step string) map[string]any {
	w.Helper()
	return w.want(202, call{"POST", "/api/v1/rebuilds/" + id + "/" + step, bootstrap, nil, `{"reason":"test"}`})
}

// figure is a tenant's total of storage as readers see it.
func (w *testService) figure(p *account) string {
	w.Helper()
	data := w.want(200, call{method: "GET", path: "/api/v1/usage/aggregates?feature=storage", key: p.key})["data"].([]any)
	return data[0].(map[string]any)["amount"].(json.Number).String()
}

func newRebuildWorld(t *testing.T) (*testService, *account, *account) {
	w, a := newServiceWithAccount(t, withDoublingFold)
	b := w.newAccount("B")
	for i, p := range []*account{a, b, a} {
		w.ingest(p, batch(event(fmt.Sprint("s", i), map[string]any{"feature": "storage", "amount": 10 + i}), event(fmt.Sprint("c", i), nil)))
	}
	w.fold()
	return w, a, b
}

func TestARebuildFromItsStartToItsRollback(t *testing.T) {
	w, a, b := newRebuildWorld(t)
	id := w.rebuilt("usage_aggregates", nil)
	w.refused(w.do(call{"POST", "/api/v1/projections/usage_aggregates/rebuilds", bootstrap, nil, `{"reason":"again"}`}), 409, "rebuild_in_progress")
	d := w.get("/rebuilds/" + id + "/diff")
	rows, totals, kept := d["data"].([]any), d["totals"].(map[string]any), d["conservation"].(map[string]any)
	if len(rows) != 2 || totals["live"].(json.Number) != "36" || totals["rebuilt"].(json.Number) != "69" || totals["delta"].(json.Number) != "33" ||
		totals["keys"].(json.Number) != "4" || kept["holds"] != true || kept["counted"].(json.Number) != "6" || len(d["asOfPositions"].([]any)) != 32 {
		t.Errorf("%v", d)
	}
	all := w.get("/rebuilds/" + id + "/diff?all=true&tenantId=" + b.id)
	if len(all["data"].([]any)) != 2 {
		t.Errorf("%v", all)
	}
	e := w.get("/rebuilds/" + id + "/diff/events?feature=storage&periodKey=lifetime&limit=1&tenantId=" + a.id)
	first := e["data"].([]any)[0].(map[string]any)
	if first["eventId"] != "s0" || first["delta"].(json.Number) != "10" || e["explained"].(json.Number) != "22" || e["unexplained"].(json.Number) != "0" || e["nextCursor"] == nil || e["note"] != nil {
		t.Errorf("%v", e)
	}
	next := w.get("/rebuilds/" + id + "/diff/events?feature=storage&periodKey=lifetime&limit=1&tenantId=" + a.id + "&cursor=" + e["nextCursor"].(string))
	if next["data"].([]any)[0].(map[string]any)["eventId"] != "s2" || next["nextCursor"] != nil {
		t.Errorf("%v", next)
	}
	if w.figure(a) != "22" {
		t.Error("readers see a rebuild that nobody promoted")
	}
	if got := w.decide(id, "promote"); got["state"] != "PROMOTED" || got["canRollBackUntil"] == nil || w.figure(a) != "44" || w.figure(b) != "22" {
		t.Errorf("promoted: %v, %s", got, w.figure(a))
	}
	w.refused(w.do(call{"POST", "/api/v1/rebuilds/" + id + "/promote", bootstrap, nil, `{"reason":"again"}`}), 409, "rebuild_promoted")
	w.refused(w.do(call{"POST", "/api/v1/rebuilds/" + id + "/abandon", bootstrap, nil, `{"reason":"no"}`}), 409, "rebuild_promoted")
	if got := w.decide(id, "rollback"); got["state"] != "ROLLED_BACK" || w.figure(a) != "22" {
		t.Errorf("rolled back: %v", got)
	}
	w.refused(w.do(call{"POST", "/api/v1/rebuilds/" + id + "/rollback", bootstrap, nil, `{"reason":"again"}`}), 409, "rebuild_not_promoted")
	if got := w.decide(id, "promote"); got["state"] != "PROMOTED" || w.figure(a) != "44" {
		t.Errorf("promoted again: %v", got)
	}
	all = w.get("/projections")
	usage := all["data"].([]any)[2].(map[string]any)
	if usage["foldVersion"] != twice || usage["generation"].(json.Number) != "2" || usage["lagEvents"].(json.Number) != "0" || usage["lastRebuild"].(map[string]any)["id"] != id {
		t.Errorf("%v", usage)
	}
	w.decide(id, "rollback")
	w.decide(id, "abandon")
	w.refused(w.do(call{method: "GET", path: "/api/v1/rebuilds/" + id + "/diff", key: bootstrap}), 409, "rebuild_not_ready")
}

func TestDifferenceAsCSVIsWhole(t *testing.T) {
	w, _, _ := newRebuildWorld(t)
	id := w.rebuilt("usage_aggregates", nil)
	for _, c := range []call{
		{method: "GET", path: "/api/v1/rebuilds/" + id + "/diff?all=true", key: bootstrap, header: map[string]string{"Accept": "text/csv"}},
		{method: "GET", path: "/api/v1/rebuilds/" + id + "/diff?all=true&format=csv", key: bootstrap},
	} {
		a := w.do(c)
		rows, err := csv.NewReader(strings.NewReader(string(a.body))).ReadAll()
		if err != nil || a.status != 200 || !strings.HasPrefix(a.header.Get("Content-Type"), "text/csv") || len(rows) != 5 || rows[0][0] != "tenantId" || len(rows[1]) != 11 {
			t.Errorf("%v %d %v %s", err, a.status, a.header, a.body)
		}
	}
}

func TestP5_VerifyFindsDriftAndRepairsIt(t *testing.T) {
	w, a, _ := newRebuildWorld(t)
	wait := map[string]string{"Prefer": "wait=30"}
	verify := call{"POST", "/api/v1/projections/entitlement_reads/verify", bootstrap, wait, nil}
	defer w.rebuilding()()
	clean := w.want(200, verify)
	if clean["differs"].(json.Number) != "0" || clean["repaired"] != false || clean["state"] != "ABANDONED" {
		t.Errorf("clean: %v", clean)
	}
	_, err := w.pool.Exec(t.Context(), `UPDATE entitlement_usage SET used = used + 5 WHERE tenant_id = $1 AND feature = 'storage'`, a.id)
	w.must(err)
	found := w.want(200, verify)
	drift := found["drift"].([]any)
	if found["differs"].(json.Number) != "1" || len(drift) != 1 || drift[0].(map[string]any)["delta"].(json.Number) != "-5" {
		t.Errorf("drifted: %v", found)
	}
	kept := w.get("/rebuilds/" + found["rebuildId"].(string))
	if len(kept["drift"].([]any)) != 1 || kept["differs"].(json.Number) != "1" {
		t.Errorf("kept: %v", kept)
	}
	verify.body = `{"repair":true}`
	w.refused(w.do(verify), 400, "reason_required")
	verify.body = `{"repair":true,"reason":"drift"}`
	repaired := w.want(200, verify)
	if repaired["repaired"] != true || repaired["state"] != "PROMOTED" {
		t.Errorf("repaired: %v", repaired)
	}
	repair := "/rebuilds/" + repaired["rebuildId"].(string)
	if until := w.get(repair)["canRollBackUntil"]; until != nil {
		t.Errorf("the repair can be rolled back until %v", until)
	}
	w.refused(w.do(call{"POST", "/api/v1" + repair + "/rollback", bootstrap, nil, `{"reason":"r"}`}), 409, "rebuild_is_repair")
	verify.body = nil
	if got := w.want(200, verify); got["differs"].(json.Number) != "0" {
		t.Errorf("after the repair: %v", got)
	}
	verify.header = nil
	later := w.do(verify)
	if later.status != 202 || !strings.HasPrefix(later.header.Get("Location"), "/api/v1/rebuilds/") {
		t.Errorf("%d %v %s", later.status, later.header, later.body)
	}
}

// TestProgressIsStreamed watches a rebuild from before its start to its end.
func TestProgressIsStreamed(t *testing.T) {
	w, _, _ := newRebuildWorld(t)
	w.startServer(func(s *nethttp.Server) { s.ReadTimeout = 200 * time.Millisecond })
	id := w.want(202, call{"POST", "/api/v1/projections/usage_aggregates/rebuilds", bootstrap, nil, `{"reason":"r"}`})["id"].(string)
	if a := w.do(call{method: "HEAD", path: "/api/v1/rebuilds/" + id + "/events", key: bootstrap}); a.status != 200 {
		t.Errorf("HEAD: %d", a.status)
	}
	request, err := nethttp.NewRequestWithContext(t.Context(), "GET", w.url+"/api/v1/rebuilds/"+id+"/events", nil)
	w.must(err)
	request.Header.Set("Authorization", "Bearer "+bootstrap)
	response, err := w.client.Do(request)
	w.must(err)
	defer response.Body.Close()
	if response.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%v", response.Header)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	name, seen, last := "", []string{}, struct {
		State    string
		Progress struct{ EventsDone, EventsTotal int64 }
	}{}
	var stop func()
	for lines.Scan() {
		line := lines.Text()
		if after, ok := strings.CutPrefix(line, "event: "); ok {
			name = after
		}
		if after, ok := strings.CutPrefix(line, "data: "); ok {
			w.must(json.Unmarshal([]byte(after), &last))
			if seen = append(seen, name+" "+last.State); len(seen) == 1 {
				time.Sleep(300 * time.Millisecond) // longer than the read timeout
				stop = w.rebuilding()
				defer stop()
			}
		}
	}
	if len(seen) < 3 || seen[0] != "progress FOLDING" && seen[0] != "progress CATCHING_UP" || seen[len(seen)-1] != "done READY" || last.Progress.EventsDone != last.Progress.EventsTotal || last.Progress.EventsTotal == 0 {
		t.Errorf("%v %+v", seen, last)
	}
}

// badRebuilds are requests that must be refused.
func badRebuilds(id string) []badInput {
	const start = "POST /projections/usage_aggregates/rebuilds"
	one, nobody, key := "/rebuilds/"+id, "/rebuilds/"+newID().String(), "tenantId="+newID().String()+"&feature=storage&periodKey=2026-05"
	return []badInput{
		{"POST /projections/nothing/§", 404, "projection_not_found", `{"reason":"r"}`, []string{"rebuilds", "verify"}},
		{start, 400, "member_missing", `{}`, nil},
		{start, 400, "reason_required", `{"reason":" "}`, nil},
		{start, 400, "reason_invalid", `{"reason":"` + strings.Repeat("r", 501) + `"}`, nil},
		{start, 400, "period_key_invalid", `{"reason":"r","periodKey":"2026-13"}`, nil},
		{"POST /projections/entitlement_reads/rebuilds", 400, "scope_invalid", `{"reason":"r","periodKey":"2026-05"}`, nil},
		{start, 400, "workers_invalid", `{"reason":"r","workers":§}`, []string{"0", "33"}},
		{start, 404, "tenant_not_found", `{"reason":"r","tenantId":"§"}`, []string{"x", newID().String()}},
		{"POST " + one + "/promote", 400, "member_missing", `{}`, nil},
		{"POST " + nobody + "/§", 404, "rebuild_not_found", `{"reason":"r"}`, []string{"promote", "abandon", "rollback"}},
		{"GET " + nobody + "§", 404, "rebuild_not_found", "", []string{"", "/events", "/diff", "/diff?format=csv", "/diff/events?" + key}},
		{"GET /rebuilds/x", 404, "rebuild_not_found", "", nil},
		{"GET " + one + "/diff?§", 400, "parameter_invalid", "", []string{"all=yes", "format=csv&limit=5", "limit=1001"}},
		{"GET " + one + "/diff/events?tenantId=x&periodKey=2026-05", 400, "parameter_missing", "", nil},
		{"GET " + one + "/diff/events?subscriptionId=x&" + key, 400, "parameter_invalid", "", nil},
	}
}

func TestBadRequestsAboutRebuilds(t *testing.T) {
	w, _, _ := newRebuildWorld(t)
	id := w.rebuilt("usage_aggregates", nil)
	w.refuses(t, bootstrap, badRebuilds(id)...)
	cursor := w.get("/rebuilds/" + id + "/diff?all=true&limit=1")["nextCursor"].(string)
	w.refused(w.do(call{method: "GET", path: "/api/v1/rebuilds/" + id + "/diff?limit=1&cursor=" + cursor, key: bootstrap}), 400, "cursor_invalid")
	w.get("/rebuilds/" + id + "/diff?all=true&limit=1&cursor=" + cursor)
}
