package http_test

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// figuresOfAll reads all pages of a list of figures, as "tenant feature amount".
func (w *testService) figuresOfAll(key, query string) (list []string) {
	w.Helper()
	for cursor := ""; ; {
		page := w.want(200, call{method: "GET", path: "/api/v1/usage/aggregates?" + query + cursor, key: key})
		if page["asOfPosition"] != nil && key == bootstrap {
			w.Errorf("a list of all tenants has the position %v", page["asOfPosition"])
		}
		for _, d := range page["data"].([]any) {
			a := d.(map[string]any)
			list = append(list, fmt.Sprint(a["tenantId"], " ", a["feature"], " ", a["amount"]))
		}
		if page["nextCursor"] == nil {
			return list
		}
		cursor = "&cursor=" + page["nextCursor"].(string)
	}
}

// Operators with billing or audit read the figures of all tenants in a period, by tenant, feature and
// subscription, page by page or as CSV. A tenant's key gets its own figures only.
func TestP9_OnlyOperatorsReadTheFiguresOfAllTenants(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	accounts := []*account{w.newAccount("A"), w.newAccount("B"), w.newAccount("C")}
	month := time.Now().UTC().Format("2006-01")
	var ofFeature []string
	for i, a := range accounts {
		w.ingest(a, batch(event("e1", map[string]any{"amount": 7 + i}), event("e2", map[string]any{"feature": "storage"})))
		ofFeature = append(ofFeature, fmt.Sprint(a.id, " api_calls ", 7+i))
	}
	w.fold()
	slices.Sort(ofFeature)
	billing, _ := w.key("", nil, "billing")
	audit, _ := w.key("", nil, "audit")
	for _, key := range []string{bootstrap, billing, audit} {
		for query, wanted := range map[string][]string{"limit=1&period=" + month: ofFeature,
			"limit=2&feature=api_calls&period=" + month: ofFeature,
			"period=2020-01": nil, "feature=nothing&period=" + month: nil} {
			w.same(query, w.figuresOfAll(key, query), wanted)
		}
	}
	for _, a := range accounts {
		for _, l := range w.figuresOfAll(a.reader, "limit=1&period="+month) {
			if !strings.HasPrefix(l, a.id) {
				t.Errorf("the tenant %s sees %s", a.id, l)
			}
		}
		own := w.do(call{method: "GET", path: "/api/v1/usage/aggregates?format=csv", key: a.reader})
		if rows := rowsOf(t, own.body); len(rows) != 3 || rows[1][0] != a.id || rows[2][0] != a.id {
			t.Errorf("the tenant %s sees %s", a.id, own.body)
		}
	}
	nothing, _ := w.key(accounts[0].id, nil, "usage:write")
	w.refused(w.do(call{method: "GET", path: "/api/v1/usage/aggregates?period=" + month, key: nothing}), 403, "forbidden")
}

func rowsOf(t *testing.T, text []byte) [][]string {
	t.Helper()
	rows, err := csv.NewReader(strings.NewReader(string(text))).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return rows
}

// As CSV all figures are one answer, however many pages they have.
func TestFiguresAreOneAnswerAsCSV(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.ingest(a, batch(event("e1", map[string]any{"amount": 7})))
	w.fold()
	const figures = 2345 // three reads
	w.exec(`INSERT INTO usage_aggregates (generation, partition, tenant_id, feature, period_key, subscription_id, amount, event_count,
		applied_count, last_event_at)
		SELECT 1, 0, md5(n::text)::uuid, 'f', 'lifetime', $1, '123456789012345678901234567890'::numeric + n, n, n,
		'2026-05-01T00:00:00.123456Z' FROM generate_series(1, $2::int) n`, uuid.MustParse(a.subscription), figures)
	answer := w.do(call{"GET", "/api/v1/usage/aggregates?period=lifetime", bootstrap, map[string]string{"Accept": "text/csv"}, nil})
	rows := rowsOf(t, answer.body)
	if answer.status != 200 || answer.header.Get("Content-Type") != "text/csv; charset=utf-8" || answer.header.Get("Vary") != "Accept" ||
		len(rows) != figures+1 {
		t.Fatalf("%d %v, %d rows", answer.status, answer.header, len(rows))
	}
	w.same("the answer", strings.Join(rows[0], ","),
		"tenantId,feature,periodKey,subscriptionId,amount,eventCount,periodStart,periodEnd,lastEventAt")
	if !slices.IsSortedFunc(rows[1:], func(a, b []string) int { return strings.Compare(a[0], b[0]) }) {
		t.Error("the rows are not in the order of tenants")
	}
	first := w.want(200, call{method: "GET", path: "/api/v1/usage/aggregates?limit=1&period=lifetime",
		key: bootstrap})["data"].([]any)[0].(map[string]any)
	if row := rows[1]; row[0] != first["tenantId"] || json.Number(row[4]) != first["amount"] || row[6] != "" ||
		row[8] != "2026-05-01T00:00:00.123456Z" {
		t.Errorf("%q is not %v", row, first)
	}
	month := time.Now().UTC().Format("2006-01")
	rows = rowsOf(t, w.do(call{method: "GET", path: "/api/v1/usage/aggregates?format=csv&tenantId=" + a.id + "&period=" + month,
		key: bootstrap}).body)
	if len(rows) != 2 || rows[1][4] != "7" || !strings.HasPrefix(rows[1][6], month+"-01T00:00:00Z") {
		t.Errorf("%q", rows)
	}
	if head := w.do(call{method: "HEAD", path: "/api/v1/usage/aggregates?format=csv&period=lifetime",
		key: bootstrap}); head.status != 200 ||
		len(head.body) != 0 {
		t.Errorf("HEAD: %d, %d bytes", head.status, len(head.body))
	}
}

// A sum above 2^53 reaches a client that rounds such integers as a text, by the parameter and by Accept.
func TestP3_AmountsAreTextsOnRequest(t *testing.T) {
	w, a := newServiceWithAccount(t)
	most := json.Number("9007199254740991")
	w.accept(a, event("a", map[string]any{"feature": "storage", "amount": most}),
		event("b", map[string]any{"feature": "storage", "amount": most}), event("c", map[string]any{"feature": "storage"}))
	w.fold()
	const path, accept = "/api/v1/usage/aggregates", "application/json; amounts=string"
	for _, c := range []struct {
		method, path, accept string
		status               int
		want                 string
	}{
		{"GET", path, "", 200, `"amount":18014398509481983,"eventCount":3`},
		{"GET", path + "?amounts=string", "", 200, `"amount":"18014398509481983","eventCount":3`},
		{"GET", path, accept, 200, `"amount":"18014398509481983","eventCount":3`},
		{"GET", path + "?amounts=string&format=csv", "", 200, ",18014398509481983,3,"},
		{"GET", path + "?amounts=number", "", 400, `"parameter_invalid"`},
		{"GET", "/api/v1/entitlements?amounts=string", "", 200, `"limit":"1000","used":"0"`},
		{"GET", "/api/v1/usage/conflicts?amounts=string", "", 400, `"unknown_parameter"`}, // it has no amounts
		{"POST", "/api/v1/entitlements/api_calls/consume", accept, 409, `"limit":"1000","used":"0"`},
	} {
		sent := call{method: c.method, path: c.path, key: a.key, header: map[string]string{"Accept": c.accept}}
		if c.method == "POST" {
			sent.body = map[string]any{"eventId": "d", "amount": 1001}
		}
		if got := w.do(sent); got.status != c.status || !strings.Contains(string(got.body), c.want) {
			t.Errorf("%s %s, Accept %q: %d %s", c.method, c.path, c.accept, got.status, got.body)
		}
	}
	if got := w.do(call{method: "HEAD", path: path + "?amounts=string", key: a.key}); got.status != 200 ||
		!slices.Contains(got.header["Vary"], "Accept") {
		t.Errorf("HEAD: %d %v", got.status, got.header)
	}
}
