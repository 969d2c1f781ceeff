package http_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	nethttp "net/http"
	"testing"
	"time"

	"github.com/meterplex/meterplex/commands/repair"
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

func foldDoubled(e *events.Envelope, v events.Validated) (usage.Key, usage.Delta, error) {
	key, d, err := usage.FoldV1(e, v)
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

func rebuildsBy(store repair.RebuildStore, folds models.Folds) *repair.Rebuilds {
	r := &repair.Rebuilds{Store: store, Now: time.Now, NewID: newID}
	for _, p := range models.List(folds, newID) {
		r.Projections = append(r.Projections, repair.Projection{Name: p.Name, Consumer: p.Consumer.Name, Newest: p.Newest(),
			ByPeriod: p.ByPeriod})
	}
	return r
}

// withDoublingFold lets usage rebuilds use the fold with the planted difference.
func withDoublingFold(s *http.Server) {
	s.Rebuilds = rebuildsBy(s.Rebuilds.Store, doublingFolds())
	s.Reads = models.NewReads(s.Reads.Rebuilds.DB, s.Reads.Entitlements.Grants, doublingFolds(), time.Now, 0)
}

// rebuilding runs the rebuild workers until the test ends.
func (w *testService) rebuilding(change ...func(*rebuild.Rebuilder)) (stop func()) {
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
	for _, c := range change {
		c(b)
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
		w.ingest(p, batch(event(fmt.Sprint("s", i), map[string]any{"feature": "storage", "amount": 10 + i}),
			event(fmt.Sprint("c", i), nil)))
	}
	w.fold()
	return w, a, b
}

func TestARebuildFromItsStartToItsRollback(t *testing.T) {
	w, a, b := newRebuildWorld(t)
	id := w.rebuilt("usage_aggregates", nil)
	change := func(step string) call {
		return call{"POST", "/api/v1/rebuilds/" + id + "/" + step, bootstrap, nil, `{"reason":"again"}`}
	}
	w.refused(w.do(call{"POST", "/api/v1/projections/usage_aggregates/rebuilds", bootstrap, nil, `{"reason":"again"}`}), 409,
		"rebuild_in_progress")
	d := w.get("/rebuilds/" + id + "/diff")
	w.same("the difference", fmt.Sprint(len(d["data"].([]any)), len(d["asOfPositions"].([]any)), " ",
		valuesOf(d["totals"].(map[string]any), "live", "rebuilt", "delta", "keys"),
		" ", valuesOf(d["conservation"].(map[string]any), "holds", "counted")), "2 32 36 69 33 4 true 6")
	w.same("all of a tenant", len(w.get("/rebuilds/" + id + "/diff?all=true&tenantId=" + b.id)["data"].([]any)), 2)
	for _, form := range []call{{header: map[string]string{"Accept": "text/csv"}}, {path: "&format=csv"}} {
		csv := w.do(call{method: "GET", path: "/api/v1/rebuilds/" + id + "/diff?all=true" + form.path, key: bootstrap, header: form.header})
		rows := rowsOf(t, csv.body)
		w.same("as CSV", fmt.Sprint(len(rows), " ", rows[0][0], len(rows[1]), csv.header.Get("Content-Type")[:8]), "5 tenantId11text/csv")
	}
	path := "/rebuilds/" + id + "/diff/events?feature=storage&periodKey=lifetime&limit=1&tenantId=" + a.id
	e := w.get(path)
	w.same("the events", valuesOf(e["data"].([]any)[0].(map[string]any), "eventId", "delta")+valuesOf(e, "explained", "unexplained",
		"note"),
		"s0 1022 0 <nil>")
	next := w.get(path + "&cursor=" + e["nextCursor"].(string))
	w.same("the next ones", fmt.Sprint(next["data"].([]any)[0].(map[string]any)["eventId"], next["nextCursor"]), "s2<nil>")
	w.same("readers before a promotion see", w.figure(a), "22")
	promoted := w.decide(id, "promote")
	w.same("promoted", fmt.Sprint(promoted["state"], " ", promoted["canRollBackUntil"] != nil, " ", w.figure(a), " ", w.figure(b)),
		"PROMOTED true 44 22")
	w.refused(w.do(change("promote")), 409, "rebuild_promoted")
	w.refused(w.do(change("abandon")), 409, "rebuild_promoted")
	w.same("rolled back", fmt.Sprint(w.decide(id, "rollback")["state"], w.figure(a)), "ROLLED_BACK22")
	w.refused(w.do(change("rollback")), 409, "rebuild_not_promoted")
	w.same("promoted again", fmt.Sprint(w.decide(id, "promote")["state"], w.figure(a)), "PROMOTED44")
	usage := w.get("/projections")["data"].([]any)[2].(map[string]any)
	w.same("the projection", valuesOf(usage, "foldVersion", "generation", "lagEvents")+
		fmt.Sprint(usage["lastRebuild"].(map[string]any)["id"]),
		twice+" 2 0"+id)
	w.decide(id, "rollback")
	w.decide(id, "abandon")
	w.refused(w.do(call{method: "GET", path: "/api/v1/rebuilds/" + id + "/diff", key: bootstrap}), 409, "rebuild_not_ready")
}

func TestP5_VerifyFindsDriftAndRepairsIt(t *testing.T) {
	w, a, _ := newRebuildWorld(t)
	verify := call{"POST", "/api/v1/projections/entitlement_reads/verify", bootstrap, map[string]string{"Prefer": "wait=30"}, nil}
	defer w.rebuilding()()
	w.same("clean", valuesOf(w.want(200, verify), "differs", "repaired", "state"), "0 false ABANDONED")
	w.exec(`UPDATE entitlement_usage SET used = used + 5 WHERE tenant_id = $1 AND feature = 'storage'`, a.id)
	found := w.want(200, verify)
	for _, shown := range []map[string]any{found, w.get("/rebuilds/" + found["rebuildId"].(string))} {
		drift := shown["drift"].([]any)
		w.same("drifted", fmt.Sprint(shown["differs"], " ", len(drift), " ", drift[0].(map[string]any)["delta"]), "1 1 -5")
	}
	verify.body = `{"repair":true}`
	w.refused(w.do(verify), 400, "reason_required")
	verify.body = `{"repair":true,"reason":"drift"}`
	repaired := w.want(200, verify)
	w.same("repaired", valuesOf(repaired, "repaired", "state"), "true PROMOTED")
	repair := "/rebuilds/" + repaired["rebuildId"].(string)
	w.same("a rollback of the repair is possible until", w.get(repair)["canRollBackUntil"], nil)
	w.refused(w.do(call{"POST", "/api/v1" + repair + "/rollback", bootstrap, nil, `{"reason":"r"}`}), 409, "rebuild_is_repair")
	verify.body = nil
	w.same("after the repair", w.want(200, verify)["differs"], 0)
	verify.header = nil
	later := w.do(verify)
	w.same("without a wait", later.status, 202)
	w.holds("its location", later.header.Get("Location"), "/api/v1/rebuilds/")
}

// TestProgressIsStreamed watches a rebuild from before its start to its end.
func TestProgressIsStreamed(t *testing.T) {
	w, _, _ := newRebuildWorld(t)
	w.startServer(func(s *nethttp.Server) { s.ReadTimeout = 200 * time.Millisecond })
	path := "/api/v1/rebuilds/" + w.want(202, call{"POST", "/api/v1/projections/usage_aggregates/rebuilds", bootstrap, nil,
		`{"reason":"r"}`})["id"].(string) + "/events"
	w.same("HEAD", w.do(call{method: "HEAD", path: path, key: bootstrap}).status, 200)
	progress := w.stream(t.Context(), path, map[string]string{"Authorization": "Bearer " + bootstrap})
	defer progress.body.Close()
	var seen []string
	last := struct {
		State    string
		Progress struct{ EventsDone, EventsTotal int64 }
	}{}
	for data, ok := progress.next(); ok; data, ok = progress.next() {
		w.must(json.Unmarshal([]byte(data), &last))
		if seen = append(seen, last.State); len(seen) == 1 {
			time.Sleep(300 * time.Millisecond) // longer than the read timeout
			defer w.rebuilding()()
		}
	}
	if len(seen) < 3 || seen[0] != "FOLDING" && seen[0] != "CATCHING_UP" || last.State != "READY" ||
		last.Progress.EventsDone != last.Progress.EventsTotal || last.Progress.EventsTotal == 0 {
		t.Errorf("%v %+v", seen, last)
	}
}

func TestBadRequestsAboutRebuilds(t *testing.T) {
	w, _, _ := newRebuildWorld(t)
	id := w.rebuilt("usage_aggregates", nil)
	w.refuses(t, badInputs(bootstrap, badRebuilds, "{rebuild}", id)...)
	cursor := w.get("/rebuilds/" + id + "/diff?all=true&limit=1")["nextCursor"].(string)
	w.refused(w.do(call{method: "GET", path: "/api/v1/rebuilds/" + id + "/diff?limit=1&cursor=" + cursor, key: bootstrap}), 400,
		"cursor_invalid")
	w.get("/rebuilds/" + id + "/diff?all=true&limit=1&cursor=" + cursor)
}
