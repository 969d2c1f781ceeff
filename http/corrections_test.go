package http_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/meterplex/meterplex/projections/validate"
)

// correction returns a correction of usage of api_calls, made at the present time.
func correction(id, ref string, amount int) map[string]any {
	return event(id, map[string]any{"type": "correction", "correctionRef": ref, "amount": amount})
}

// retraction returns a retraction of usage of api_calls, made at the present time.
func retraction(id, ref string) map[string]any {
	return event(id, map[string]any{"type": "retraction", "correctionRef": ref, "amount": nil})
}

// accept sends events, all of which must be accepted, and returns their positions.
func (w *testService) accept(a *account, list ...any) (positions []string) {
	w.Helper()
	for _, v := range verdicts(w.ingest(a, batch(list...))) {
		if v["status"] != "accepted" {
			w.Fatalf("%v", v)
		}
		positions = append(positions, v["position"].(string))
	}
	return positions
}

// callsFigure returns the amount and the count of api_calls in the present month.
func (w *testService) callsFigure(a *account) string {
	w.Helper()
	list := w.want(200, call{method: "GET", path: "/api/v1/usage/aggregates?feature=api_calls", key: a.reader})["data"].([]any)
	if len(list) != 1 {
		w.Fatalf("figures %v", list)
	}
	return valuesOf(list[0].(map[string]any), "amount", "eventCount")
}

func (w *testService) receiptOf(a *account, id string) map[string]any {
	w.Helper()
	return w.want(200, call{method: "GET", path: "/api/v1/usage/events/" + id, key: a.reader})
}

func TestP3_ACorrectionReplacesTheAmountOfItsTarget(t *testing.T) {
	w, a := newServiceWithAccount(t)
	at := w.accept(a, event("u", map[string]any{"amount": 10}), event("other", map[string]any{"amount": 5}))
	if r := w.receiptOf(a, "u"); r["effectiveAmount"] != nil || len(r["corrections"].([]any)) != 0 || r["corrects"] != nil {
		t.Errorf("before its verdict: %v", r)
	}
	at = append(at, w.accept(a, correction("c1", "u", 7))...)
	w.fold()
	w.same("10 and 5, corrected to 7 and 5,", w.callsFigure(a), "12 2")
	at = append(at, w.accept(a, correction("c2", "u", 12))...) // a target that has its verdict
	w.fold()
	w.same("corrected to 12 and 5", w.callsFigure(a), "17 2")
	r := w.receiptOf(a, "u")
	if got := valuesOf(r, "effectiveAmount", "corrects", "status"); got != "12 <nil> AGGREGATED" ||
		fmt.Sprint(r["validated"].(map[string]any)["amount"]) != "10" {
		t.Errorf("the receipt says %s", got)
	}
	list := r["corrections"].([]any)
	if len(list) != 2 {
		t.Fatalf("corrections %v", list)
	}
	for i, want := range []string{"c1 CORRECTION 10 7 -3 AGGREGATED " + at[2], "c2 CORRECTION 7 12 5 AGGREGATED " + at[3]} {
		c := list[i].(map[string]any)
		own := w.receiptOf(a, c["eventId"].(string))
		if got := valuesOf(c, "eventId", "kind", "before", "after", "delta", "status", "position"); got != want ||
			c["verdictPosition"] != own["validated"].(map[string]any)["position"] || c["at"] != own["validated"].(map[string]any)["at"] {
			t.Errorf("correction %d is %s, %v, instead of %s", i, got, c, want)
		}
		corrects, _ := own["corrects"].(map[string]any)
		if got := valuesOf(corrects, "eventId", "position", "kind", "before", "after"); got != fmt.Sprint("u ", at[0], " CORRECTION ",
			c["before"], " ", c["after"]) || own["effectiveAmount"] != nil {
			t.Errorf("the receipt of %v: %s, %v", c["eventId"], got, own)
		}
	}
	graph := w.want(200, call{method: "GET", path: "/api/v1/events/" + w.receiptOf(a,
		"c2")["recorded"].(map[string]any)["logEventId"].(string) + "/lineage", key: a.key})
	if text := fmt.Sprint(graph["nodes"]); !strings.Contains(text, "event corrected c2 api_calls of u to 12") ||
		!strings.Contains(text, "event validated c2 api_calls 5 in") {
		t.Errorf("the lineage is %s", text)
	}
	w.listed(a, "c2 correction 12 u AGGREGATED", "c1 correction 7 u AGGREGATED", "other usage 5 <nil> AGGREGATED",
		"u usage 10 <nil> AGGREGATED")
	w.explained(a, "u usage 10 1 10", "other usage 5 1 15", "c1 correction -3 0 12", "c2 correction 5 0 17")
}

func TestP3_ARetractionTakesItsTargetBackForEver(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.accept(a, event("u", map[string]any{"amount": 10}), event("other", nil), correction("c", "u", 4), retraction("r", "u"))
	w.fold()
	w.same("1 and what is retracted", w.callsFigure(a), "1 1")
	r := w.receiptOf(a, "u")
	if list := r["corrections"].([]any); len(list) != 2 || fmt.Sprint(r["effectiveAmount"]) != "0" ||
		valuesOf(list[1].(map[string]any), "eventId", "kind", "before", "after", "delta") != "r RETRACTION 4 0 -4" {
		t.Errorf("the receipt %v", r)
	}
	w.listed(a, "r retraction 0 u AGGREGATED", "c correction 4 u AGGREGATED", "other usage 1 <nil> AGGREGATED",
		"u usage 10 <nil> AGGREGATED")
	w.explained(a, "u usage 10 1 10", "other usage 1 1 11", "c correction -6 0 5", "r retraction -4 -1 1")
	before := w.stored()
	for _, again := range []map[string]any{correction("c2", "u", 1), retraction("r2", "u")} {
		w.same("the answer", w.verdictOn(a, again), "rejected correction_target_retracted /events/0/correctionRef")
	}
	w.same("stored", w.stored(), before)
}

// listed compares the list of usage, newest first.
func (w *testService) listed(a *account, want ...string) {
	w.Helper()
	var got []string
	for _, u := range w.want(200, call{method: "GET", path: "/api/v1/usage/events", key: a.reader})["data"].([]any) {
		got = append(got, valuesOf(u.(map[string]any), "eventId", "type", "amount", "correctionRef", "status"))
	}
	w.same("the list", fmt.Sprint(got), fmt.Sprint(want))
}

// explained compares the events behind the figure of api_calls, which must add up to it.
func (w *testService) explained(a *account, want ...string) {
	w.Helper()
	var got []string
	answer := w.want(200, call{method: "GET", path: "/api/v1/usage/aggregates/explain?feature=api_calls&period=" + now()[:7],
		key: a.reader})
	for _, u := range answer["data"].([]any) {
		got = append(got, valuesOf(u.(map[string]any), "eventId", "kind", "amount", "count", "runningTotal"))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || answer["adds"] != true {
		w.Errorf("explained by\n%s\ninstead of\n%s\nwhich adds up: %v", strings.Join(got, "\n"), strings.Join(want, "\n"), answer["adds"])
	}
}

// verdictOn sends an event, and returns the verdict.
func (w *testService) verdictOn(a *account, event map[string]any) string {
	w.Helper()
	return valuesOf(verdicts(w.ingest(a, batch(event)))[0], "status", "code", "pointer")
}

func TestP4_ARefusedCorrectionIsNotStored(t *testing.T) {
	w, a := newServiceWithAccount(t)
	b := w.newAccount("B")
	w.accept(a, event("u", map[string]any{"amount": 10}), event("s", map[string]any{"feature": "storage"}), correction("c", "u", 9),
		event("gone", nil), retraction("r", "gone"))
	w.accept(b, event("theirs", nil))
	w.fold()
	before := w.stored()
	for name, refused := range map[string]struct {
		event         map[string]any
		code, pointer string
	}{
		"no target":              {correction("x", "nothing", 1), "correction_target_unknown", "/correctionRef"},
		"a target of B":          {correction("x", "theirs", 1), "correction_target_unknown", "/correctionRef"},
		"another feature":        {correction("x", "s", 1), "correction_ref_invalid", "/correctionRef"},
		"a correction as target": {correction("x", "c", 1), "correction_ref_invalid", "/correctionRef"},
		"itself":                 {correction("x", "x", 1), "correction_ref_invalid", "/correctionRef"},
		"a retracted target":     {correction("x", "gone", 1), "correction_target_retracted", "/correctionRef"},
		"a reference of usage":   {event("x", map[string]any{"correctionRef": "u"}), "correction_ref_invalid", "/correctionRef"},
	} {
		w.same(name, w.verdictOn(a, refused.event), "rejected "+refused.code+" /events/0"+refused.pointer)
		if w.stored() != before {
			t.Fatalf("%s is stored", name)
		}
	}
}

func TestP3_TheTargetMayBeEarlierInTheSameBatch(t *testing.T) {
	w, a := newServiceWithAccount(t)
	sent := batch(correction("early", "u", 1), event("u", map[string]any{"amount": 10}), correction("zero", "u", 0),
		correction("c", "u", 3),
		retraction("r", "u"), correction("late", "u", 5), event("v", nil))
	want := []string{"rejected correction_target_unknown /events/0/correctionRef", "accepted <nil> <nil>", "accepted <nil> <nil>",
		"accepted <nil> <nil>", "accepted <nil> <nil>",
		"rejected correction_target_retracted /events/5/correctionRef", "accepted <nil> <nil>"}
	for i, v := range verdicts(w.ingest(a, sent)) {
		w.same(fmt.Sprint("event ", i), valuesOf(v, "status", "code", "pointer"), want[i])
	}
	w.fold()
	w.same("the figure", w.callsFigure(a), "1 1")
	want[0] = want[5] // its target is known now
	for i, v := range verdicts(w.ingest(a, sent)) {
		if got := valuesOf(v, "status", "code", "pointer"); got != strings.NewReplacer("accepted", "duplicate", "/5/",
			fmt.Sprintf("/%d/", i)).Replace(want[i]) {
			t.Errorf("event %d sent again: %s", i, got)
		}
	}
	w.explained(a, "u usage 10 1 10", "zero correction -10 0 0", "c correction 3 0 3", "r retraction -3 -1 0", "v usage 1 1 1")
}

// P8: 16 clients correct one event at once through two instances, while verdicts are taken, of an open and of a closed period. Each
// correction
// begins with the amount that the one before it left, and behind a retraction there is none.
func TestP8_SixteenClientsCorrectOneEvent(t *testing.T) {
	w := newTestService(t)
	instances := []*testService{w, w.secondInstance()}
	w.catalogue()
	for _, closed := range []bool{false, true} {
		a, path, of := w.newAccount(fmt.Sprint(closed)), "", event("u", map[string]any{"amount": 100})
		if closed {
			of = old("u", 100)
		}
		w.accept(a, of)
		if w.fold(); closed {
			path = w.closed(a)
		}
		for _, retracting := range []bool{false, true} {
			var all sync.WaitGroup
			var open atomic.Int32
			for c := range 16 {
				one := correction(fmt.Sprintf("%v-%d", retracting, c), "u", 10*c+1)
				if retracting && c%4 == 1 {
					one = retraction(fmt.Sprintf("%v-%d", retracting, c), "u")
				}
				open.Add(1)
				all.Go(func() {
					defer open.Add(-1)
					for n := range instances { // a repetition through the other one
						instances[(c+n)%2].want(202, call{"POST", "/api/v1/usage/events", a.writer, nil, batch(one)})
					}
				})
			}
			for n := 0; open.Load() > 0; n++ {
				instances[n%2].feed(validate.Consumer(newID, new(validate.HistoryReader)))
			}
			all.Wait()
			w.fold()
			list, amount := w.receiptOf(a, "u")["corrections"].([]any), json.Number("100")
			for n, one := range list {
				m := one.(map[string]any)
				if m["before"] != amount || (m["kind"] == "RETRACTION") != (retracting && n == len(list)-1) {
					t.Errorf("correction %d of %d begins with another amount than %s: %v", n, len(list), amount, m)
				}
				amount = m["after"].(json.Number)
			}
			if !retracting && len(list) != 16 {
				t.Errorf("%d corrections", len(list))
			}
			count := map[bool]int{true: 0, false: 1}[retracting]
			if want := fmt.Sprint(amount, " ", count); closed {
				w.same("the line", w.lines(path, "frozen", "net", "netEventCount", "unreconciled"), []string{"100 " + want + " 0"})
			} else {
				w.same("the figure", w.callsFigure(a), want)
			}
		}
	}
}
