package http_test

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// badInput is requests that are refused alike with a status and a code. Each value takes the place of § in the path and the body.
type badInput struct {
	request string // the method, and the path below /api/v1
	status  int
	code    string
	body    string // "": none
	values  []string
}

// refuses sends bad input, which must be refused by a small problem that leaks nothing, without an append. It returns the number of cases.
func (w *testService) refuses(t *testing.T, key string, list ...badInput) (cases int) {
	t.Helper()
	before := w.stored()
	for _, c := range list {
		method, path, _ := strings.Cut(c.request, " ")
		if c.values == nil {
			c.values = []string{""}
		}
		for _, value := range c.values {
			sent := call{method: method, path: "/api/v1" + strings.ReplaceAll(path, "§", value), key: key}
			if c.body != "" {
				sent.body = strings.ReplaceAll(c.body, "§", value)
			}
			w.refusesCall(t, fmt.Sprintf("%s %.60s", c.request, value), sent, c.status, c.code)
			cases++
		}
	}
	if n := w.stored() - before; n != 0 {
		t.Errorf("%d events were stored", n)
	}
	return cases
}

func (w *testService) refusesCall(t *testing.T, name string, sent call, status int, code string) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		mine := *w
		mine.TB = t
		mine.refused(mine.do(sent), status, code)
	})
}

// TestBadInputIsRefusedAndStoresNothing holds the refusals of single routes. TestEveryRouteRefusesEveryKindOfBadInput has those of all routes.
func TestBadInputIsRefusedAndStoresNothing(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.want(201, holding(a.key, "held", 10, 86400))
	w.want(201, holding(a.key, "ended", 10, 86400))
	w.want(200, releasing(a.key, "ended"))
	w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil, `{"name":"T","class":"small","externalIds":["taken"]}`})
	callers := w.callersWithoutRight(a)
	cases := w.refuses(t, a.key, badReads(a)...) + w.refuses(t, a.key, badQuotas()...)
	for _, list := range [][]badInput{badPaths(a), badTenants(a), badCatalogue(a), badPrices(), badThresholds(a), badLetters(),
		badReplays(a)} {
		cases += w.refuses(t, bootstrap, list...)
	}
	before, transports := w.stored(), badTransports()
	for name, c := range transports {
		c.call.method, c.call.path, c.call.key = "POST", "/api/v1/usage/events", a.key
		w.refusesCall(t, name, c.call, c.status, c.code)
	}
	for _, key := range []string{strings.Repeat("k", 256), "naïve", "a\tb"} {
		sent := call{"POST", "/api/v1/tenants", bootstrap, map[string]string{"Idempotency-Key": key}, `{"name":"x","class":"small"}`}
		w.refusesCall(t, "Idempotency-Key", sent, 400, "idempotency_key_invalid")
	}
	for name, c := range callers {
		for _, request := range []call{consuming(c.key, "api_calls", "bad", 1), holding(c.key, "bad", 1, 60)} {
			w.refusesCall(t, name, request, c.status, c.code)
		}
	}
	if n := w.stored() - before; n != 0 {
		t.Errorf("%d events were stored", n)
	}
	if w.accountOf(a) != "0 10 1" {
		t.Errorf("refused requests changed the account: %s", w.accountOf(a))
	}
	if cases += len(transports); cases < 150 {
		t.Errorf("%d cases; 150 are the least", cases)
	}
}

type caller struct {
	key    string
	status int
	code   string
}

// callersWithoutRight are keys that may not consume or hold.
func (w *testService) callersWithoutRight(a *account) map[string]caller {
	w.Helper()
	ended, suspended := w.newAccount("Ended"), w.newAccount("Suspended")
	w.want(200, call{"PATCH", "/api/v1/tenants/" + suspended.id, bootstrap, nil, `{"status":"SUSPENDED"}`})
	w.want(200, call{"PATCH", "/api/v1/tenants/" + ended.id + "/subscriptions/" + ended.subscription, bootstrap, nil,
		`{"status":"CANCELLED"}`})
	reading, _ := w.key(a.id, nil, "entitlements:read", "usage:write")
	return map[string]caller{
		"a suspended tenant": {suspended.key, 403, "tenant_suspended"}, "a key without the scope": {reading, 403, "forbidden"},
		"an operator": {bootstrap, 403, "forbidden"}, "a cancelled subscription": {ended.key, 409, "no_active_subscription"},
		"no key": {"", 401, "unauthenticated"},
	}
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

// badTransport is an ingest request that is refused because of its form.
type badTransport struct {
	call
	status int
	code   string
}

func badTransports() map[string]badTransport {
	good, _ := json.Marshal(batch(event("never", nil)))
	one := string(good[len(`{"events":[`) : len(good)-len(`]}`)])
	noise := make([]byte, 5*mib)
	_, _ = rand.Read(noise)
	gz, media := map[string]string{"Content-Encoding": "gzip"},
		func(m string) map[string]string { return map[string]string{"Content-Type": m} }
	return map[string]badTransport{
		"an event alone":          {call{body: one}, 400, "unknown_member"},
		"no members":              {call{body: `{}`}, 400, "member_missing"},
		"no events":               {call{body: `{"events":[]}`}, 400, "batch_empty"},
		"events null":             {call{body: `{"events":null}`}, 400, "events_invalid"},
		"1001 events":             {call{body: `{"events":[` + strings.Repeat(one+",", 1000) + one + `]}`}, 400, "batch_too_large"},
		"a member twice, escaped": {call{body: `{"events":[{"eventId":"a","event\u0049d":"b"}]}`}, 400, "malformed_json"},
		"gzip, empty":             {call{header: gz, body: ""}, 400, "malformed_body"},
		"gzip over 4 MiB":         {call{header: gz, body: zipped(noise)}, 413, "body_too_large"},
		"plain, but gzip":         {call{body: zipped(good)}, 400, "malformed_json"},
		"no such type":            {call{header: media("application/json; charset"), body: good}, 415, "media_type_unsupported"},
		"other CloudEvents":       {call{header: media("application/cloudevents+avro"), body: good}, 415, "media_type_unsupported"},
		"CloudEvent: an array":    {call{header: media("application/cloudevents+json"), body: "[]"}, 400, "malformed_json"},
		"CloudEvents: an object":  {call{header: media("application/cloudevents-batch+json"), body: "{}"}, 400, "malformed_json"},
		"CloudEvents: none":       {call{header: media("application/cloudevents-batch+json"), body: "[]"}, 400, "batch_empty"},
		"binary: not JSON": {call{header: map[string]string{"ce-id": "x", "ce-specversion": "1.0"}, body: "amount=1"}, 400,
			"malformed_json"},
		"binary: no JSON type": {call{header: map[string]string{"ce-id": "x", "Content-Type": "text/plain"}, body: `{"amount":1}`}, 415,
			"media_type_unsupported"},
		"replay misspelt": {call{header: map[string]string{"Meterplex-Replay": "Offline"}, body: good}, 400, "header_invalid"},
	}
}

func flip(b []byte, fromEnd int) []byte {
	b[len(b)-fromEnd] ^= 1
	return b
}

func utf16(s string) (b []byte) {
	for _, c := range []byte(s) {
		b = append(b, 0, c)
	}
	return b
}

// badEvents are members of usage events, and the code of the verdict on each value of §.
func badEvents() map[string]map[string][]string {
	return map[string]map[string][]string{
		"amount": {"amount_invalid": {"0", "-1", "5.0", "1e3", "-0", "1e400", `"5"`, "true", "9007199254740992", "18446744073709551617", "[1]"}},
		"eventId": {"event_id_invalid": {`""`, `"` + strings.Repeat("x", 256) + `"`, `"a b"`, `"a\u0000"`, `"é"`, "5", `"a\r\nb"`, `"\u202ea"`,
			`"\u007f"`,
			`"' OR 1=1 --"`, `"\ud800"`}},
		"feature": {"feature_invalid": {`"API"`, `"../x"`, `[]`, `""`, `"` + strings.Repeat("a", 65) + `"`, `"9lives"`, `"api_calls "`,
			`"api_calls\u0000"`, `"аpi_calls"`},
			"feature_not_found": {`"foobar"`}, "not_entitled": {`"sso"`}},
		"timestamp": {"timestamp_invalid": {`"2026-05-01T00:00:00"`, `"2026-05-01t00:00:00z"`, `"2026-02-30T00:00:00Z"`, "1714521600",
			`"2026-05-01T00:00:00,5Z"`,
			`"2026-05-01T24:00:00Z"`, `"2026-05-01T00:00:60Z"`, `"10000-01-01T00:00:00Z"`, `"2026-05-01T00:00:00+24:00"`, `"1714521600"`,
			`"2026-05-01T00:00:00.1234567890Z"`, `"2026-05-01 00:00:00Z"`, `""`, `[]`}, "timestamp_in_future": {`"9999-12-31T23:59:59Z"`}},
		"metadata": {"metadata_invalid": {`"x"`, `[]`, `{"a":"\u0000"}`, `{"a":9007199254740993}`, `{"a":{"b":{"c":{"d":{"e":{}}}}}}`},
			"metadata_too_large": {`{"a":"` + strings.Repeat("x", 5000) + `"}`}, "": {`{"a":{"b":{"c":{"d":{"e":1}}}}}`}}, // five levels
		"type":     {"type_invalid": {"1", `"refund"`}},
		"source":   {"source_invalid": {"1", `""`, `"a b"`}, "": {`"/gateway"`}},
		"tenantId": {"unknown_member": {`"x"`}},
		"Amount":   {"unknown_member": {"5"}},
	}
}

// TestBadEventsAreVerdicts checks that an error in one element is that element's verdict.
func TestBadEventsAreVerdicts(t *testing.T) {
	w, a := newServiceWithAccount(t)
	var list []any
	var want []string
	add := func(event any, code string) { list, want = append(list, event), append(want, code) }
	for member, codes := range badEvents() {
		for code, values := range codes {
			for _, value := range values {
				add(event(fmt.Sprint("v", len(list)), map[string]any{member: json.RawMessage(value)}), code)
			}
		}
	}
	for _, member := range []string{"amount", "timestamp", "feature"} {
		add(event("missing", map[string]any{member: nil}), "member_missing")
	}
	for _, none := range []any{nil, 5, "event", []any{}} {
		add(none, "event_invalid")
	}
	for i, v := range verdicts(w.ingest(a, batch(list...))) {
		if got := valuesOf(v, "status", "code"); want[i] == "" && got != "accepted <nil>" || want[i] != "" &&
			(got != "rejected "+want[i] || v["reason"] == "") {
			t.Errorf("%v: %s instead of %s", list[i], got, want[i])
		}
	}
	if got := verdicts(w.ingest(a, batch(event("missing", nil)))); got[0]["status"] != "accepted" {
		t.Errorf("a rejected event is remembered: %v", got)
	}
}
