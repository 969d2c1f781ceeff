package http_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// badInput is a request that is refused with a status and a code.
type badInput struct {
	call
	status int
	code   string
}

var repeatedForm = regexp.MustCompile(`<(.)([0-9]+)>`)

// badInputs reads a table with a request on each line: method, path below /api/v1, status, code and the rest as its body. Behind " § " it
// has
// values, of which each takes the place of §. An indented line goes on with the one before. <x9> is nine x.
func badInputs(key, table string, ids ...string) (list []badInput) {
	seventeen, members, tiers := "0", `"k":"v"`, `{"microUnits":1}`
	for n := range 100 {
		if n < 50 {
			members += fmt.Sprintf(`,"k%d":"v"`, n)
		}
		if tiers += `,{"upTo":1,"microUnits":1}`; n < 16 {
			seventeen += fmt.Sprintf(`","%d`, n+1)
		}
	}
	ids = append(ids, "{nobody}", newID().String(), "{day}", "feature=api_calls&from=2026-05-01T00:00:00Z&to=2026-05-02T00:00:00Z",
		"{17}", seventeen, "{51}", members, "{101}", tiers, ",\n  ", ",", "|\n  ", "| ")
	for line := range strings.Lines(strings.NewReplacer(ids...).Replace(table)) {
		line = repeatedForm.ReplaceAllStringFunc(strings.TrimSuffix(line, "\n"), func(form string) string {
			parts := repeatedForm.FindStringSubmatch(form)
			n, _ := strconv.Atoi(parts[2])
			return strings.Repeat(parts[1], n)
		})
		form, values, _ := strings.Cut(line, " § ")
		for value := range strings.SplitSeq(values, " | ") {
			row := strings.SplitN(form, " ", 5)
			if len(row) < 4 {
				continue // an empty line
			}
			status, _ := strconv.Atoi(row[2])
			c := badInput{call{method: row[0], path: "/api/v1" + strings.ReplaceAll(row[1], "§", value), key: key}, status, row[3]}
			if len(row) == 5 {
				c.body = strings.ReplaceAll(row[4], "§", value)
			}
			list = append(list, c)
		}
	}
	return list
}

// refuses sends bad input, which must be refused by a small problem that leaks nothing, without an append.
func (w *testService) refuses(t *testing.T, list ...badInput) {
	t.Helper()
	before := w.stored()
	for _, c := range list {
		t.Run(fmt.Sprintf("%s %.60s %s", c.method, c.path, c.code), func(t *testing.T) {
			mine := *w
			mine.TB = t
			mine.refused(mine.do(c.call), c.status, c.code)
		})
	}
	if n := w.stored() - before; n != 0 {
		t.Errorf("%d events were stored", n)
	}
}

// TestBadInputIsRefusedAndStoresNothing has each code of each noun, once if domain has the rule's other values.
// TestEveryRouteRefusesEveryKindOfBadInput has the kinds of errors of all routes.
func TestBadInputIsRefusedAndStoresNothing(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.want(201, holding(a.key, "held", 10, 86400))
	w.want(201, holding(a.key, "ended", 10, 86400))
	w.want(200, releasing(a.key, "ended"))
	w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil, `{"name":"T","class":"small","externalIds":["taken"]}`})
	callers := w.callersWithoutRight(a)
	elsewhere := fmt.Sprint((a.partition() + 1) % 32)
	w.refuses(t, badInputs(a.key, badReads+badQuotas, "{elsewhere}", elsewhere, "{home}", fmt.Sprint(a.partition()))...)
	w.refuses(t, badInputs(bootstrap, badLetters+badReplays+badTenants+badCatalogue, "{tenant}", a.id, "{key}", a.keyID, "{subscription}",
		a.subscription, "{elsewhere}",
		elsewhere)...)
	w.refuses(t, badTransports(a.key)...)
	w.refuses(t, callers...)
	w.same("the account after refused requests", w.accountOf(a), "0 10 1")
}

// callersWithoutRight are requests with keys that may not consume or hold.
func (w *testService) callersWithoutRight(a *account) (list []badInput) {
	w.Helper()
	ended, suspended := w.newAccount("Ended"), w.newAccount("Suspended")
	w.want(200, call{"PATCH", "/api/v1/tenants/" + suspended.id, bootstrap, nil, `{"status":"SUSPENDED"}`})
	w.want(200, call{"PATCH", "/api/v1/tenants/" + ended.id + "/subscriptions/" + ended.subscription, bootstrap, nil,
		`{"status":"CANCELLED"}`})
	reading, _ := w.key(a.id, nil, "entitlements:read", "usage:write")
	for _, c := range []badInput{
		{call{key: suspended.key}, 403, "tenant_suspended"}, {call{key: reading}, 403, "forbidden"},
		{call{key: bootstrap}, 403, "forbidden"},
		{call{key: ended.key}, 409, "no_active_subscription"}, {call{}, 401, "unauthenticated"},
	} {
		list = append(list, badInput{consuming(c.key, "api_calls", "bad", 1), c.status, c.code},
			badInput{holding(c.key, "bad", 1, 60), c.status, c.code})
	}
	return list
}

func zipped(plain []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(plain)
	_ = z.Close()
	return b.Bytes()
}

func packed(plain []byte) []byte {
	encoder, _ := zstd.NewWriter(nil)
	return encoder.EncodeAll(plain, nil)
}

const mib = 1 << 20

// badTransports are requests that are refused because of their form.
func badTransports(key string) (list []badInput) {
	good, _ := json.Marshal(batch(event("never", nil)))
	one := string(good[len(`{"events":[`) : len(good)-len(`]}`)])
	add := func(name, value string, body any, status int, code string) {
		list = append(list, badInput{call{"POST", "/api/v1/usage/events", key, map[string]string{name: value}, body}, status, code})
	}
	const media = "Content-Type"
	add("", "", one, 400, "unknown_member")
	add("", "", `{}`, 400, "member_missing")
	add("", "", `{"events":[]}`, 400, "batch_empty")
	add("", "", `{"events":null}`, 400, "events_invalid")
	add("", "", `{"events":[`+strings.Repeat(one+",", 1000)+one+`]}`, 400, "batch_too_large")
	add("", "", `{"events":[{"eventId":"a","event\u0049d":"b"}]}`, 400, "malformed_json")
	add("Content-Encoding", "gzip", "", 400, "malformed_body")
	add(media, "application/cloudevents+avro", good, 415, "media_type_unsupported")
	add(media, "application/cloudevents+json", "[]", 400, "malformed_json")
	add(media, "application/cloudevents-batch+json", "[]", 400, "batch_empty")
	add("ce-id", "x", "amount=1", 400, "malformed_json")
	add("Meterplex-Replay", "Offline", good, 400, "header_invalid")
	for _, once := range []string{strings.Repeat("k", 256), "naïve", "a\tb"} {
		list = append(list, badInput{call{"POST", "/api/v1/tenants", bootstrap, map[string]string{"Idempotency-Key": once},
			`{"name":"x","class":"small"}`},
			400, "idempotency_key_invalid"})
	}
	return list
}

// TestBadEventsAreVerdicts checks that an error in one element is that element's verdict.
func TestBadEventsAreVerdicts(t *testing.T) {
	w, a := newServiceWithAccount(t)
	var list []any
	var want []string
	add := func(event any, code string) { list, want = append(list, event), append(want, code) }
	for _, c := range [][3]string{
		{"amount", "1e3", "amount_invalid"}, {"amount", "9007199254740992", "amount_invalid"}, {"eventId", `"a b"`, "event_id_invalid"},
		{"feature", `"API"`, "feature_invalid"}, {"feature", `"foobar"`, "feature_not_found"}, {"feature", `"sso"`, "not_entitled"},
		{"timestamp", `"2026-05-01T24:00:00Z"`, "timestamp_invalid"}, {"timestamp", `"9999-12-31T23:59:59Z"`, "timestamp_in_future"},
		{"metadata", `{"a":"\u0000"}`, "metadata_invalid"}, {"metadata", `{"a":"` + strings.Repeat("x", 5000) + `"}`, "metadata_too_large"},
		{"type", `"refund"`, "type_invalid"}, {"source", `"a b"`, "source_invalid"}, {"Amount", "5", "unknown_member"},
	} {
		add(event(fmt.Sprint("v", len(list)), map[string]any{c[0]: json.RawMessage(c[1])}), c[2])
	}
	add(event("missing", map[string]any{"amount": nil}), "member_missing")
	add([]any{}, "event_invalid")
	for i, v := range verdicts(w.ingest(a, batch(list...))) {
		if got := valuesOf(v, "status", "code"); got != "rejected "+want[i] || v["reason"] == "" {
			t.Errorf("%v: %s instead of %s", list[i], got, want[i])
		}
	}
	w.same("the event once it is right", verdicts(w.ingest(a, batch(event("missing", nil))))[0]["status"], "accepted")
}
