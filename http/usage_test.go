package http_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"
)

func (w *testService) ingest(p *account, body any) map[string]any {
	w.Helper()
	answer := w.want(202, call{"POST", "/api/v1/usage/events", p.key, nil, body})
	for _, v := range verdicts(answer) {
		w.verdictInTable(v)
	}
	return answer
}

func verdicts(answer map[string]any) (list []map[string]any) {
	for _, v := range answer["events"].([]any) {
		list = append(list, v.(map[string]any))
	}
	return list
}

var positionForm = regexp.MustCompile(`^([0-9]|[12][0-9]|3[01])-[1-9][0-9]*$`)

func TestIngestAnswersEachEventInItsOrder(t *testing.T) {
	w, a := newServiceWithAccount(t)
	first := w.ingest(a, batch(event("evt_2", nil), event("evt_3", nil)))
	resent := verdicts(first)
	at := now()
	got := w.ingest(a, batch(
		event("evt_1", map[string]any{"timestamp": at}),
		event("evt_2", nil), // another timestamp: another payload
		event("evt_3", map[string]any{"amount": 2}),
		event("evt_4", map[string]any{"feature": "foobar"}),
		event("evt_1", map[string]any{"timestamp": at}),
		event("evt_5", map[string]any{"feature": "sso"}),
		map[string]any{"feature": "api_calls", "amount": 1, "timestamp": at},
		event("evt_6", map[string]any{"amuont": 1}),
	))
	for name, n := range map[string]string{"accepted": "1", "duplicates": "1", "conflicts": "2", "rejected": "4"} {
		if got[name].(json.Number).String() != n {
			t.Errorf("%s is %v instead of %s", name, got[name], n)
		}
	}
	want := []struct{ id, status, code, pointer string }{
		{"evt_1", "accepted", "", ""}, {"evt_2", "conflict", "payload_conflict", ""}, {"evt_3", "conflict", "payload_conflict", ""},
		{"evt_4", "rejected", "feature_not_found", "/feature"}, {"evt_1", "duplicate", "", ""},
		{"evt_5", "rejected", "not_entitled", "/feature"},
		{"", "rejected", "member_missing", "/events/6/eventId"}, {"evt_6", "rejected", "unknown_member", "/events/7/amuont"},
	}
	list := verdicts(got)
	if len(list) != len(want) {
		t.Fatalf("%d verdicts", len(list))
	}
	for i, v := range list {
		id, _ := v["eventId"].(string)
		code, _ := v["code"].(string)
		pointer, _ := v["pointer"].(string)
		position, _ := v["position"].(string)
		if v["index"].(json.Number).String() != fmt.Sprint(i) || id != want[i].id || v["status"] != want[i].status ||
			code != want[i].code ||
			!strings.HasSuffix(pointer, want[i].pointer) {
			t.Errorf("event %d: %v instead of %v", i, v, want[i])
		}
		if placed := v["status"] != "rejected"; placed != positionForm.MatchString(position) || (code != "") != (v["reason"] != nil) {
			t.Errorf("event %d: %v", i, v)
		}
		if _, there := v["eventId"]; !there {
			t.Errorf("event %d has no member eventId", i)
		}
	}
	if list[2]["position"] != resent[1]["position"] || list[4]["position"] != list[0]["position"] {
		t.Errorf("positions of what was there first: %v", list)
	}
	if list[3]["reason"] != `Feature "foobar" not found in the active subscription` ||
		list[1]["reason"] != "eventId was first used with another payload" {
		t.Errorf("reasons: %v", list)
	}
}

func TestIngestTakesCloudEventsAndCompression(t *testing.T) {
	w, a := newServiceWithAccount(t)
	cloud := func(id string) map[string]any {
		return map[string]any{"specversion": "1.0", "id": id, "source": "/gateway", "type": "api_calls", "time": now(),
			"data": map[string]any{"amount": 3}}
	}
	first, _ := json.Marshal(batch(event("z1", nil)))
	second, _ := json.Marshal(batch(event("z2", nil)))
	for name, c := range map[string]call{
		"structured": {header: map[string]string{"Content-Type": "application/cloudevents+json; charset=UTF-8"}, body: cloud("c1")},
		"batch":      {header: map[string]string{"Content-Type": "application/cloudevents-batch+json"}, body: []any{cloud("c2")}},
		"binary": {header: map[string]string{"ce-specversion": "1.0", "ce-id": "c3", "ce-source": "/gateway", "ce-type": "api_calls",
			"ce-time": now()}, body: `{"amount":3}`},
		"binary+json": {header: map[string]string{"ce-specversion": "1.0", "ce-id": "c4", "ce-source": "/gateway", "ce-type": "api_calls",
			"ce-time": now(), "Content-Type": "application/vnd.us+json"}, body: `{"amount":3}`},
		"binary, no type": {header: map[string]string{"ce-specversion": "1.0", "ce-id": "c5", "ce-source": "/gateway",
			"ce-type": "api_calls",
			"ce-time": now(), "Content-Type": ""}, body: `{"amount":3}`},
		"gzip":   {header: map[string]string{"Content-Encoding": "gzip"}, body: zipped(first)},
		"zstd":   {header: map[string]string{"Content-Encoding": "zstd"}, body: packed(second)},
		"replay": {header: map[string]string{"Meterplex-Replay": "offline"}, body: batch(event("r1", nil))},
	} {
		c.method, c.path, c.key = "POST", "/api/v1/usage/events", a.writer
		w.same(name, w.want(202, c)["accepted"].(json.Number).String(), "1")
	}
	var replayed int
	w.must(w.pool.QueryRow(t.Context(),
		`SELECT count(*) FROM event_log_rows WHERE replay = 'offline' AND dedupe_key = 'u/r1'`).Scan(&replayed))
	w.same("events that are marked as sent after an outage", replayed, 1)
}

// outcome sends one event in any form and returns its status, or its code and the pointer.
func (w *testService) outcome(status int, c call) string {
	w.Helper()
	c.method, c.path = "POST", "/api/v1/usage/events"
	got := w.want(status, c)
	if status != 202 {
		pointer := any(nil)
		for _, fault := range got["errors"].([]any) {
			pointer = fault.(map[string]any)["pointer"]
		}
		return fmt.Sprint(got["code"], " ", pointer)
	}
	v := verdicts(got)[0]
	if v["code"] != nil {
		return valuesOf(v, "code", "pointer")
	}
	return fmt.Sprint(v["status"])
}

// Clients of CloudEvents read the status alone: 202 is an event that is recorded.
func TestASingleCloudEventIsAnsweredWithItsOwnStatus(t *testing.T) {
	w, a := newServiceWithAccount(t)
	at := now()
	for n, c := range []struct {
		changes map[string]any // of attributes; of amount
		status  int
		want    string
	}{
		{nil, 202, "accepted"},
		{nil, 202, "duplicate"},
		{map[string]any{"amount": 4}, 409, "payload_conflict <nil>"},
		{map[string]any{"id": "b", "amount": 0.5}, 422, "amount_invalid §/amount"},
		{map[string]any{"id": "b", "type": "nosuch"}, 404, "feature_not_found <nil>"},
		{map[string]any{"id": "b", "type": "sso"}, 409, "not_entitled <nil>"},
		{map[string]any{"id": "b", "time": "2020-01-01T00:00:00Z"}, 422, "timestamp_too_old <nil>"},
		{map[string]any{"id": "b", "time": "yesterday"}, 422, "timestamp_invalid <nil>"},
		{map[string]any{"id": "b", "specversion": "0.3"}, 422, "cloudevent_invalid <nil>"},
		{map[string]any{"specversion": nil}, 400, "member_missing <nil>"},
		{map[string]any{"id": nil}, 400, "member_missing <nil>"},
		{map[string]any{"source": nil}, 400, "member_missing <nil>"},
		{map[string]any{"type": nil}, 400, "member_missing <nil>"},
	} {
		e := map[string]any{"specversion": "1.0", "id": "a", "source": "/x", "type": "api_calls", "time": at, "amount": 3}
		maps.Copy(e, c.changes)
		maps.DeleteFunc(e, func(_ string, v any) bool { return v == nil })
		data := map[string]any{"amount": e["amount"]}
		delete(e, "amount")
		headers := map[string]string{}
		for name, value := range e {
			headers["ce-"+name] = fmt.Sprint(value)
		}
		w.same(fmt.Sprint("binary ", c.changes), w.outcome(c.status, call{key: a.writer, header: headers, body: data}),
			strings.Replace(c.want, "§", "", 1))
		e["data"] = data
		got := w.outcome(c.status, call{key: a.writer, header: map[string]string{"Content-Type": "application/cloudevents+json"}, body: e})
		code, pointer, _ := strings.Cut(got, " ")
		want, at, _ := strings.Cut(c.want, " ")
		if n > 0 && code != want || strings.HasPrefix(at, "§") && pointer != "/data/amount" {
			t.Errorf("structured %v: %s", c.changes, got)
		}
	}
	var stored int
	w.must(w.pool.QueryRow(t.Context(), `SELECT count(*) FROM event_log_rows WHERE dedupe_key LIKE 'u/%'`).Scan(&stored))
	w.same("stored", stored, 1)
	w.same("a batch", w.outcome(202, call{key: a.writer, header: map[string]string{"Content-Type": "application/cloudevents-batch+json"},
		body: `[{}]`}), "member_missing /0/specversion")
}

func TestIngestKeepsTheTraceAndReturnsTheLimit(t *testing.T) {
	w, a := newServiceWithAccount(t)
	answer := w.do(call{"POST", "/api/v1/usage/events", a.key, map[string]string{
		"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "X-Request-Id": "my-request.1"}, batch(event("t1", nil))})
	if answer.status != 202 || answer.header.Get("X-Request-Id") != "my-request.1" {
		t.Errorf("%d %v", answer.status, answer.header)
	}
	for _, name := range []string{"RateLimit", "RateLimit-Policy"} {
		if !regexp.MustCompile(`^"events";[qr]=[0-9]+;[wt]=[0-9]+$`).MatchString(answer.header.Get(name)) {
			t.Errorf("%s: %q", name, answer.header.Get(name))
		}
	}
	var correlation string
	w.must(w.pool.QueryRow(t.Context(), `SELECT correlation_id FROM event_log_rows WHERE dedupe_key = 'u/t1'`).Scan(&correlation))
	w.same("correlation", correlation, "0af76519-16cd-43dd-8448-eb211c80319c")
}

func TestReadsFollowAnEventToItsFigure(t *testing.T) {
	w, a := newServiceWithAccount(t)
	accepted := verdicts(w.ingest(a, batch(event("e1", map[string]any{"amount": 7}), event("e/2", map[string]any{"feature": "storage"}))))
	w.ingest(a, batch(event("e1", map[string]any{"amount": 8})))
	receipt := w.want(200, call{method: "GET", path: "/api/v1/usage/events/e1", key: a.reader})
	if receipt["status"] != "PENDING" || receipt["recorded"].(map[string]any)["position"] != accepted[0]["position"] ||
		len(receipt["conflicts"].([]any)) != 1 {
		t.Errorf("receipt %v", receipt)
	}
	w.refused(w.do(call{method: "GET", path: "/api/v1/usage/aggregates?minPosition=" + accepted[1]["position"].(string), key: a.reader}),
		503,
		"projection_behind")
	w.fold()
	answer := w.do(call{"GET", "/api/v1/usage/aggregates?minPosition=" + accepted[1]["position"].(string), a.reader,
		map[string]string{"Prefer": "wait=20"}, nil})
	if answer.status != 200 || answer.header.Get("Preference-Applied") != "wait=20" {
		t.Errorf("%d %v %s", answer.status, answer.header, answer.body)
	}
	// The time of the validation is that of the envelope of the verdict, and no second one is in its payload.
	verdict := w.entries(a.key, "/api/v1/events?subject=meterplex.usage.event.validated.v1")[0]
	receipt = w.want(200, call{method: "GET", path: "/api/v1/usage/events/e1", key: a.reader})
	if payload := verdict["payload"].(map[string]any); verdict["recordedAt"] != receipt["validated"].(map[string]any)["at"] ||
		payload["validatedAt"] != nil || payload["periodKey"] == nil {
		t.Errorf("the verdict is %v, and the receipt %v", verdict, receipt)
	}
	figures := w.want(200, call{method: "GET", path: "/api/v1/usage/aggregates?feature=api_calls", key: a.reader})["data"].([]any)
	if len(figures) != 1 || figures[0].(map[string]any)["amount"].(json.Number) != "7" || figures[0].(map[string]any)["tenantId"] != a.id {
		t.Errorf("figures %v", figures)
	}
	if receipt = w.want(200, call{method: "GET", path: "/api/v1/usage/events/e%2F2", key: a.reader}); receipt["status"] != "AGGREGATED" ||
		receipt["eventId"] != "e/2" {
		t.Errorf("receipt %v", receipt)
	}
	audit, _ := w.key("", nil, "audit")
	for _, path := range []string{"/usage/events?", "/usage/events/e1?", "/usage/conflicts?", "/usage/refusals?", "/usage/aggregates?",
		"/usage" + queries["GET /usage"] + "&"} {
		own, theirs := w.do(call{method: "GET", path: "/api/v1" + path, key: a.reader}),
			w.do(call{method: "GET", path: "/api/v1" + path + "tenantId=" + a.id, key: audit})
		if own.status != 200 || theirs.status != 200 || len(own.body) != len(theirs.body) {
			t.Errorf("%s: the tenant sees %s, the auditor %s", path, own.body, theirs.body)
		}
		w.checkUTC(path, own.body)
	}
}

var offset = regexp.MustCompile(`"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+[+-][0-9]{2}:[0-9]{2}"`)

// checkUTC fails if a time has an offset.
func (w *testService) checkUTC(what string, body []byte) {
	w.Helper()
	if found := offset.Find(body); found != nil {
		w.Errorf("%s: %s is not in UTC", what, found)
	}
}

func TestListsArePages(t *testing.T) {
	w, a := newServiceWithAccount(t)
	var list []any
	for i := range 7 {
		list = append(list, event(fmt.Sprint("p", i), nil))
	}
	w.ingest(a, batch(list...))
	for i := range 3 {
		w.newAccount(fmt.Sprint("T", i))
	}
	w.fold()
	for path, key := range map[string]string{"/api/v1/usage/events": a.reader, "/api/v1/tenants": bootstrap, "/api/v1/features": bootstrap,
		"/api/v1/entitlements": a.key, "/api/v1/projections": bootstrap} {
		whole := w.want(200, call{method: "GET", path: path, key: key})
		exact := fmt.Sprint("?limit=", len(whole["data"].([]any)))
		if got := w.want(200, call{method: "GET", path: path + exact, key: key}); got["nextCursor"] != nil || len(got["data"].([]any)) < 3 {
			t.Errorf("%s%s: a page that holds all has a next one: %v", path, exact, got)
		}
		w.same(path+": the next page", whole["nextCursor"], nil)
		text := string(w.do(call{method: "GET", path: path, key: key}).body)
		if paged := strings.Join(w.pages(key, path+"?limit=2"), ","); !strings.Contains(text, `"data":[`+paged+`]`) {
			t.Errorf("%s: in pages %s, at once %s", path, paged, text)
		}
		w.checkUTC(path, []byte(text))
	}
}
