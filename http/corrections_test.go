package http_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
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
	if got := w.callsFigure(a); got != "12 2" {
		t.Errorf("10 and 5, corrected to 7 and 5, are %s", got)
	}
	at = append(at, w.accept(a, correction("c2", "u", 12))...) // a target that has its verdict
	w.fold()
	if got := w.callsFigure(a); got != "17 2" {
		t.Errorf("corrected to 12 and 5: %s", got)
	}
	r := w.receiptOf(a, "u")
	if got := valuesOf(r, "effectiveAmount", "corrects", "status"); got != "12 <nil> AGGREGATED" || fmt.Sprint(r["validated"].(map[string]any)["amount"]) != "10" {
		t.Errorf("the receipt says %s", got)
	}
	list := r["corrections"].([]any)
	if len(list) != 2 {
		t.Fatalf("corrections %v", list)
	}
	for i, want := range []string{"c1 CORRECTION 10 7 -3 AGGREGATED " + at[2], "c2 CORRECTION 7 12 5 AGGREGATED " + at[3]} {
		c := list[i].(map[string]any)
		own := w.receiptOf(a, c["eventId"].(string))
		if got := valuesOf(c, "eventId", "kind", "before", "after", "delta", "status", "position"); got != want || c["verdictPosition"] != own["validated"].(map[string]any)["position"] || c["at"] != own["validated"].(map[string]any)["at"] {
			t.Errorf("correction %d is %s, %v, instead of %s", i, got, c, want)
		}
		corrects, _ := own["corrects"].(map[string]any)
		if got := valuesOf(corrects, "eventId", "position", "kind", "before", "after"); got != fmt.Sprint("u ", at[0], " CORRECTION ", c["before"], " ", c["after"]) || own["effectiveAmount"] != nil {
			t.Errorf("the receipt of %v: %s, %v", c["eventId"], got, own)
		}
	}
	graph := w.want(200, call{method: "GET", path: "/api/v1/events/" + w.receiptOf(a, "c2")["recorded"].(map[string]any)["logEventId"].(string) + "/lineage", key: a.key})
	if text := fmt.Sprint(graph["nodes"]); !strings.Contains(text, "event corrected c2 api_calls of u to 12") || !strings.Contains(text, "event validated c2 api_calls 5 in") {
		t.Errorf("the lineage is %s", text)
	}
	w.listed(a, "c2 correction 12 u AGGREGATED", "c1 correction 7 u AGGREGATED", "other usage 5 <nil> AGGREGATED", "u usage 10 <nil> AGGREGATED")
	w.explained(a, "u usage 10 1 10", "other usage 5 1 15", "c1 correction -3 0 12", "c2 correction 5 0 17")
}

func TestP3_ARetractionTakesItsTargetBackForEver(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.accept(a, event("u", map[string]any{"amount": 10}), event("other", nil), correction("c", "u", 4), retraction("r", "u"))
	w.fold()
	if got := w.callsFigure(a); got != "1 1" {
		t.Errorf("1 and what is retracted are %s", got)
	}
	r := w.receiptOf(a, "u")
	if list := r["corrections"].([]any); len(list) != 2 || fmt.Sprint(r["effectiveAmount"]) != "0" ||
		valuesOf(list[1].(map[string]any), "eventId", "kind", "before", "after", "delta") != "r RETRACTION 4 0 -4" {
		t.Errorf("the receipt %v", r)
	}
	w.listed(a, "r retraction 0 u AGGREGATED", "c correction 4 u AGGREGATED", "other usage 1 <nil> AGGREGATED", "u usage 10 <nil> AGGREGATED")
	w.explained(a, "u usage 10 1 10", "other usage 1 1 11", "c correction -6 0 5", "r retraction -4 -1 1")
	before := w.stored()
	for _, again := range []map[string]any{correction("c2", "u", 1), retraction("r2", "u")} {
		if got := w.verdictOn(a, again); got != "rejected correction_target_retracted /events/0/correctionRef" {
			t.Errorf("%v: %s", again, got)
		}
	}
	if w.stored() != before {
		t.Errorf("%d rows are stored", w.stored()-before)
	}
}

// listed compares the list of usage, newest first.
func (w *testService) listed(a *account, want ...string) {
	w.Helper()
	var got []string
	for _, u := range w.want(200, call{method: "GET", path: "/api/v1/usage/events", key: a.reader})["data"].([]any) {
		got = append(got, valuesOf(u.(map[string]any), "eventId", "type", "amount", "correctionRef", "status"))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.Errorf("the list is\n%s\ninstead of\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// explained compares the events behind the figure of api_calls, which must add up to it.
func (w *testService) explained(a *account, want ...string) {
	w.Helper()
	var got []string
	answer := w.want(200, call{method: "GET", path: "/api/v1/usage/aggregates/explain?feature=api_calls&period=" + now()[:7], key: a.reader})
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
	w.accept(a, event("u", map[string]any{"amount": 10}), event("s", map[string]any{"feature": "storage"}), correction("c", "u", 9), event("gone", nil), retraction("r", "gone"))
	w.accept(b, event("theirs", nil))
	w.fold()
	before := w.stored()
	other := func(e map[string]any, member string, value any) map[string]any {
		if e[member] = value; value == nil {
			delete(e, member)
		}
		return e
	}
	for name, refused := range map[string]struct {
		event         map[string]any
		code, pointer string
	}{
		"no target":                 {correction("x", "nothing", 1), "correction_target_unknown", "/correctionRef"},
		"a target of B":             {correction("x", "theirs", 1), "correction_target_unknown", "/correctionRef"},
		"a retraction of nothing":   {retraction("x", "nothing"), "correction_target_unknown", "/correctionRef"},
		"another feature":           {correction("x", "s", 1), "correction_ref_invalid", "/correctionRef"},
		"a correction as target":    {correction("x", "c", 1), "correction_ref_invalid", "/correctionRef"},
		"a retraction as target":    {retraction("x", "r"), "correction_ref_invalid", "/correctionRef"},
		"itself":                    {correction("x", "x", 1), "correction_ref_invalid", "/correctionRef"},
		"a retracted target":        {correction("x", "gone", 1), "correction_target_retracted", "/correctionRef"},
		"retracted twice":           {retraction("x", "gone"), "correction_target_retracted", "/correctionRef"},
		"no reference":              {other(correction("x", "u", 1), "correctionRef", nil), "member_missing", "/correctionRef"},
		"a reference that is no id": {other(correction("x", "u", 1), "correctionRef", "with space"), "correction_ref_invalid", "/correctionRef"},
		"a reference of usage":      {event("x", map[string]any{"correctionRef": "u"}), "correction_ref_invalid", "/correctionRef"},
		"no amount":                 {other(correction("x", "u", 1), "amount", nil), "member_missing", "/amount"},
		"an amount below 0":         {correction("x", "u", -1), "amount_invalid", "/amount"},
		"a retraction of an amount": {other(retraction("x", "u"), "amount", 1), "amount_invalid", "/amount"},
		"another type":              {other(correction("x", "u", 1), "type", "credit"), "type_invalid", "/type"},
	} {
		if got := w.verdictOn(a, refused.event); got != "rejected "+refused.code+" /events/0"+refused.pointer {
			t.Errorf("%s: %s", name, got)
		}
		if w.stored() != before {
			t.Fatalf("%s is stored", name)
		}
	}
}

func TestP3_TheTargetMayBeEarlierInTheSameBatch(t *testing.T) {
	w, a := newServiceWithAccount(t)
	sent := batch(correction("early", "u", 1), event("u", map[string]any{"amount": 10}), correction("zero", "u", 0), correction("c", "u", 3), retraction("r", "u"), correction("late", "u", 5), event("v", nil))
	want := []string{"rejected correction_target_unknown /events/0/correctionRef", "accepted <nil> <nil>", "accepted <nil> <nil>", "accepted <nil> <nil>", "accepted <nil> <nil>",
		"rejected correction_target_retracted /events/5/correctionRef", "accepted <nil> <nil>"}
	for i, v := range verdicts(w.ingest(a, sent)) {
		if got := valuesOf(v, "status", "code", "pointer"); got != want[i] {
			t.Errorf("event %d: %s instead of %s", i, got, want[i])
		}
	}
	w.fold()
	if got := w.callsFigure(a); got != "1 1" {
		t.Errorf("the figure is %s", got)
	}
	want[0] = want[5] // its target is known now
	for i, v := range verdicts(w.ingest(a, sent)) {
		if got := valuesOf(v, "status", "code", "pointer"); got != strings.NewReplacer("accepted", "duplicate", "/5/", fmt.Sprintf("/%d/", i)).Replace(want[i]) {
			t.Errorf("event %d sent again: %s", i, got)
		}
	}
	w.explained(a, "u usage 10 1 10", "zero correction -10 0 0", "c correction 3 0 3", "r retraction -3 -1 0", "v usage 1 1 1")
}

func TestP3_CloudEventsCorrectAndRetract(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.accept(a, event("s", map[string]any{"amount": 10}), event("b", map[string]any{"amount": 20}))
	structured := func(id, data string) call {
		return call{header: map[string]string{"Content-Type": "application/cloudevents+json"},
			body: fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/gateway","type":"com.example.usage","subject":"api_calls","time":%q,"data":%s}`, id, now(), data)}
	}
	binary := func(id, data string) call {
		return call{header: map[string]string{"ce-specversion": "1.0", "ce-id": id, "ce-source": "/gateway", "ce-type": "api_calls", "ce-time": now()}, body: data}
	}
	for _, sent := range []struct {
		call   call
		status int
		want   string
	}{
		{structured("s1", `{"type":"correction","correctionRef":"s","amount":4}`), 202, "accepted"},
		{binary("b1", `{"type":"correction","correctionRef":"b","amount":5}`), 202, "accepted"},
		{structured("s2", `{"type":"retraction","correctionRef":"s"}`), 202, "accepted"},
		{binary("b2", `{"type":"retraction","correctionRef":"b"}`), 202, "accepted"},
		{structured("s3", `{"type":"retraction","correctionRef":"s"}`), 422, "correction_target_retracted <nil>"},
		{binary("b3", `{"type":"correction","correctionRef":"b","amount":1}`), 422, "correction_target_retracted <nil>"},
		{structured("s4", `{"type":"correction","correctionRef":"nothing","amount":1}`), 422, "correction_target_unknown <nil>"},
		{structured("s5", `{"type":"credit","correctionRef":"s","amount":1}`), 422, "type_invalid /data/type"},
		{binary("b4", `{"type":"correction","amount":1}`), 422, "member_missing /correctionRef"},
	} {
		w.fold()
		if sent.call.key = a.writer; w.outcome(sent.status, sent.call) != sent.want {
			t.Errorf("%v: not %s", sent.call.body, sent.want)
		}
	}
	w.fold()
	if got := w.callsFigure(a); got != "0 0" {
		t.Errorf("the figure is %s", got)
	}
}

// A correction of usage that does not count waits as a dead letter, and counts once both are retried.
func TestP4_ACorrectionOfWhatDoesNotCountIsADeadLetter(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.rejectionsAt(a, "gone", 1, time.Now().Add(time.Minute)) // the plan has the feature by then
	rejected := w.letters("?stage=VALIDATION")[0]
	w.accept(a, event("c", map[string]any{"type": "correction", "feature": "gone", "correctionRef": rejected["eventId"], "amount": 4}))
	w.fold()
	r := w.receiptOf(a, "c")
	if no, _ := r["rejected"].(map[string]any); r["status"] != "REJECTED" || no["code"] != "correction_target_not_counted" || r["corrects"] != nil {
		t.Fatalf("the receipt %v", r)
	}
	w.want(201, call{"PUT", "/api/v1/features/gone", bootstrap, nil, `{"name":"G","type":"METERED"}`})
	w.want(200, call{"PUT", "/api/v1/plans/basic", bootstrap, nil, `{"name":"Basic","entitlements":[{"feature":"gone","limit":null,"resetPeriod":"MONTHLY"}]}`})
	w.applyPlan(a)
	w.fold()
	for _, id := range []any{rejected["id"], r["rejected"].(map[string]any)["deadLetterId"]} {
		w.want(202, call{"POST", fmt.Sprintf("/api/v1/dead-letters/%v/retry", id), bootstrap, nil, `{"reason":"the feature is back"}`})
		w.execute()
	}
	if r = w.receiptOf(a, fmt.Sprint(rejected["eventId"])); r["status"] != "AGGREGATED" || fmt.Sprint(r["effectiveAmount"]) != "4" || len(r["corrections"].([]any)) != 1 {
		t.Errorf("the receipt of the target %v", r)
	}
	if r = w.receiptOf(a, "c"); r["status"] != "AGGREGATED" || r["corrects"] == nil || len(r["retries"].([]any)) != 1 {
		t.Errorf("the receipt of the correction %v", r)
	}
}

// A refused correction on usage.commands is one dead letter of stage INGESTION, also if its message is delivered again.
func TestP2_ARefusedCorrectionOnUsageCommandsIsOneDeadLetter(t *testing.T) {
	w, a := newServiceWithAccount(t)
	server := w.server()
	reader := &commands.UsageCommands{Tenants: server.Reader, Ingest: server.Ingest}
	body, err := json.Marshal(batch(event("u", map[string]any{"amount": 10}), correction("c", "u", 7), correction("x", "nothing", 1), retraction("y", "c")))
	w.must(err)
	for range 2 {
		w.must(reader.Process(t.Context(), []events.Record{{Topic: events.TopicUsageCommands, Offset: 7, Key: []byte(a.id), Value: body}}))
	}
	w.fold()
	if got := w.callsFigure(a); got != "7 1" {
		t.Errorf("the figure is %s", got)
	}
	found := map[string]bool{}
	for _, d := range w.letters("?stage=INGESTION") {
		found[valuesOf(d, "eventId", "code", "status")] = true
	}
	if len(found) != 2 || !found["x correction_target_unknown FAILED"] || !found["y correction_ref_invalid FAILED"] {
		t.Errorf("dead letters %v", found)
	}
}
