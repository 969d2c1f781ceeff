package http_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// badInput is a request that must be refused with a status and a code, by a small problem
// that leaks nothing, and without an append.
type badInput struct {
	name string
	call
	status int
	code   string
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

// goodBatch returns a valid batch and its only event.
func goodBatch() (whole []byte, one string) {
	whole, _ = json.Marshal(batch(event("never", nil)))
	return whole, string(whole[len(`{"events":[`) : len(whole)-len(`]}`)])
}

func ingestBodies() []badInput {
	good, one := goodBatch()
	return []badInput{
		{"empty", call{body: ""}, 400, "malformed_json"},
		{"white space", call{body: " \n"}, 400, "malformed_json"},
		{"null", call{body: "null"}, 400, "malformed_json"},
		{"true", call{body: "true"}, 400, "malformed_json"},
		{"a number", call{body: "1"}, 400, "malformed_json"},
		{"a string", call{body: `"events"`}, 400, "malformed_json"},
		{"an array", call{body: "[" + one + "]"}, 400, "malformed_json"},
		{"an event alone", call{body: one}, 400, "unknown_member"},
		{"an empty object", call{body: "{}"}, 400, "member_missing"},
		{"no events", call{body: `{"events":[]}`}, 400, "batch_empty"},
		{"events null", call{body: `{"events":null}`}, 400, "events_invalid"},
		{"events an object", call{body: `{"events":{}}`}, 400, "events_invalid"},
		{"1001 events", call{body: `{"events":[` + strings.Repeat(one+",", 1000) + one + `]}`}, 400, "batch_too_large"},
		{"unknown member at the top", call{body: `{"events":[` + one + `],"dryRun":true}`}, 400, "unknown_member"},
		{"Events", call{body: `{"Events":[` + one + `]}`}, 400, "unknown_member"},
		{"events twice", call{body: `{"events":[` + one + `],"events":[]}`}, 400, "malformed_json"},
		{"a member twice", call{body: `{"events":[{"eventId":"a","eventId":"b"}]}`}, 400, "malformed_json"},
		{"a member twice, escaped", call{body: `{"events":[{"eventId":"a","event\u0049d":"b"}]}`}, 400, "malformed_json"},
		{"trailing data", call{body: string(good) + "x"}, 400, "malformed_json"},
		{"two documents", call{body: string(good) + string(good)}, 400, "malformed_json"},
		{"trailing comma", call{body: `{"events":[` + one + `,]}`}, 400, "malformed_json"},
		{"a comment", call{body: `{"events":[` + one + `]} // done`}, 400, "malformed_json"},
		{"cut off", call{body: string(good[:len(good)-3])}, 400, "malformed_json"},
		{"byte order mark", call{body: "\xef\xbb\xbf" + string(good)}, 400, "malformed_json"},
		{"UTF-16", call{body: utf16(string(good))}, 400, "malformed_json"},
		{"not UTF-8", call{body: `{"events":[{"eventId":"` + "\xff" + `"}]}`}, 400, "malformed_json"},
		{"overlong UTF-8", call{body: `{"events":[{"eventId":"` + "\xc0\xaf" + `"}]}`}, 400, "malformed_json"},
		{"control character", call{body: "{\"events\":[{\"eventId\":\"a\x01\"}]}"}, 400, "malformed_json"},
		{"NUL byte", call{body: "{\"events\":[]\x00}"}, 400, "malformed_json"},
		{"single quotes", call{body: `{'events':[]}`}, 400, "malformed_json"},
		{"NaN", call{body: `{"events":[{"amount":NaN}]}`}, 400, "malformed_json"},
		{"leading zero", call{body: `{"events":[{"amount":01}]}`}, 400, "malformed_json"},
		{"plus sign", call{body: `{"events":[{"amount":+1}]}`}, 400, "malformed_json"},
		{"hexadecimal", call{body: `{"events":[{"amount":0x1}]}`}, 400, "malformed_json"},
		{"65 levels", call{body: `{"events":` + strings.Repeat("[", 65) + strings.Repeat("]", 65) + `}`}, 400, "malformed_json"},
		{"100,000 levels", call{body: strings.Repeat("[", 100_000)}, 400, "malformed_json"},
		{"a huge name", call{body: `{"` + strings.Repeat("n", mib) + `":1}`}, 400, "unknown_member"},
		{"a name of escapes", call{body: `{"` + strings.Repeat(`\u0001`, 1000) + `":1}`}, 400, "unknown_member"},
	}
}

func ingestTransports() []badInput {
	good, _ := goodBatch()
	noise := make([]byte, 5*mib)
	_, _ = rand.Read(noise)
	bomb := zipped(make([]byte, 64*mib))
	type m = map[string]string
	gz, zs := m{"Content-Encoding": "gzip"}, m{"Content-Encoding": "zstd"}
	return []badInput{
		{"over 4 MiB", call{body: `{"events":["` + strings.Repeat("x", 4*mib) + `"]}`}, 413, "body_too_large"},
		{"no media type", call{header: m{"Content-Type": ""}, body: good}, 415, "media_type_unsupported"},
		{"a form", call{header: m{"Content-Type": "application/x-www-form-urlencoded"}, body: good}, 415, "media_type_unsupported"},
		{"plain text", call{header: m{"Content-Type": "text/plain"}, body: good}, 415, "media_type_unsupported"},
		{"other JSON", call{header: m{"Content-Type": "application/vnd.us+json"}, body: good}, 415, "media_type_unsupported"},
		{"no such type", call{header: m{"Content-Type": "application/json; charset"}, body: good}, 415, "media_type_unsupported"},
		{"Latin-1", call{header: m{"Content-Type": "application/json; charset=iso-8859-1"}, body: good}, 415, "media_type_unsupported"},
		{"other CloudEvents", call{header: m{"Content-Type": "application/cloudevents+avro"}, body: good}, 415, "media_type_unsupported"},
		{"brotli", call{header: m{"Content-Encoding": "br"}, body: good}, 415, "content_encoding_unsupported"},
		{"gzip twice", call{header: m{"Content-Encoding": "gzip, gzip"}, body: zipped(zipped(good))}, 415, "content_encoding_unsupported"},
		{"gzip, but plain", call{header: gz, body: good}, 400, "malformed_body"},
		{"gzip, empty", call{header: gz, body: ""}, 400, "malformed_body"},
		{"gzip, cut off", call{header: gz, body: zipped(good)[:40]}, 400, "malformed_body"},
		{"gzip, without its end", call{header: gz, body: zipped(good)[:len(zipped(good))-4]}, 400, "malformed_body"},
		{"gzip, checksum wrong", call{header: gz, body: flip(zipped(good), 8)}, 400, "malformed_body"},
		{"gzip, and more", call{header: gz, body: append(zipped(good), "more"...)}, 400, "malformed_body"},
		{"gzip bomb", call{header: gz, body: bomb}, 413, "body_too_large"},
		{"gzip over 4 MiB", call{header: gz, body: zipped(noise)}, 413, "body_too_large"},
		{"zstd, but plain", call{header: zs, body: good}, 400, "malformed_body"},
		{"zstd, cut off", call{header: zs, body: packed(good)[:30]}, 400, "malformed_body"},
		{"zstd bomb", call{header: zs, body: packed(make([]byte, 64*mib))}, 413, "body_too_large"},
		{"plain, but gzip", call{body: zipped(good)}, 400, "malformed_json"},
		{"replay misspelt", call{header: m{"Meterplex-Replay": "Offline"}, body: good}, 400, "header_invalid"},
		{"a parameter", call{path: "?dryRun=true", body: good}, 400, "unknown_parameter"},
		{"CloudEvent: an array", call{header: m{"Content-Type": "application/cloudevents+json"}, body: "[]"}, 400, "malformed_json"},
		{"CloudEvents: an object", call{header: m{"Content-Type": "application/cloudevents-batch+json"}, body: "{}"}, 400, "malformed_json"},
		{"CloudEvents: none", call{header: m{"Content-Type": "application/cloudevents-batch+json"}, body: "[]"}, 400, "batch_empty"},
		{"binary: not JSON", call{header: m{"ce-id": "x", "ce-specversion": "1.0"}, body: "amount=1"}, 400, "malformed_json"},
		{"binary: not a JSON type", call{header: m{"ce-id": "x", "Content-Type": "text/plain"}, body: `{"amount":1}`}, 415, "media_type_unsupported"},
	}
}

// ingests returns ingest requests with invalid bodies.
func ingests(a *account) []badInput {
	list := append(ingestBodies(), ingestTransports()...)
	for i := range list {
		list[i].method, list[i].path, list[i].key = "POST", "/api/v1/usage/events"+list[i].path, a.key
	}
	return list
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

func (w *testService) queries(a *account) []badInput {
	events, tenants := "/api/v1/usage/events", "/api/v1/tenants"
	check, figures := "/api/v1/entitlements/api_calls/check", "/api/v1/usage/aggregates"
	get := func(key, path string, status int, code string) badInput {
		return badInput{path, call{method: "GET", path: path, key: key}, status, code}
	}
	forged := "eyJ2IjoxLCJhIjoiMDAwMDAwMDAtMDAwMC0wMDAwLTAwMDAtMDAwMDAwMDAwMDAwIiwicyI6IkFBQUFBQUFBQUFBQUFBQUEifQ"
	list := []badInput{}
	for _, limit := range []string{"0", "-1", "1001", "99999999999999999999", "1.0", "1e2", "ten", "0x10", "%2B5", "05", "", "%00", "10%0d%0a", "null"} {
		list = append(list, get(bootstrap, tenants+"?limit="+limit, 400, "parameter_invalid"))
	}
	for _, cursor := range []string{"x", "e30", forged, forged + "=", "bnVsbA", "%F0%9F%92%A9", "..%2F..%2Fetc%2Fpasswd", "eyJ2IjoyfQ"} {
		list = append(list, get(bootstrap, tenants+"?cursor="+cursor, 400, "cursor_invalid"), get(a.key, events+"?cursor="+cursor, 400, "cursor_invalid"))
	}
	for _, position := range []string{"17", "-", "17-", "32-1", "-1-1", "17-01", "17-1e3", "017-1", "17-9223372036854775808", "17-9223372036854775807", "a-b", "17--1"} {
		list = append(list, get(a.key, figures+"?minPosition="+position, 400, "position_invalid"), get(a.key, check+"?minPosition="+position, 400, "position_invalid"))
	}
	return append(list,
		get(bootstrap, tenants+"?Limit=5", 400, "unknown_parameter"),
		get(bootstrap, tenants+"?limit=5&limit=6", 400, "duplicate_parameter"),
		get(bootstrap, tenants+"?limit=5&limit=5", 400, "duplicate_parameter"),
		get(bootstrap, tenants+"?limit=5;offset=2", 400, "malformed_query"),
		get(bootstrap, tenants+"?limit=%zz", 400, "malformed_query"),
		get(bootstrap, tenants+"?"+strings.Repeat("a", 3000)+"=1", 400, "unknown_parameter"),
		get(bootstrap, tenants+"?cursor="+strings.Repeat("a", 3000), 400, "parameter_invalid"),
		get(bootstrap, tenants+"/"+a.id+"?expand=all", 400, "unknown_parameter"),
		get(a.key, events+"?feature=%00", 400, "parameter_invalid"),
		get(a.key, events+"?feature=%ff", 400, "parameter_invalid"),
		get(a.key, events+"?status=pending", 400, "parameter_invalid"),
		get(a.key, events+"?status=COUNTED", 400, "parameter_invalid"),
		get(a.key, events+"?from=2026-05-01", 400, "parameter_invalid"),
		get(a.key, events+"?from=2026-02-30T00:00:00Z", 400, "parameter_invalid"),
		get(a.key, events+"?from=1714521600", 400, "parameter_invalid"),
		get(a.key, events+"?from=2026-05-01T00:00:60Z", 400, "parameter_invalid"),
		get(a.key, events+"?from=2026-05-01T00:00:00%2B24:00", 400, "parameter_invalid"),
		get(a.key, events+"?from=2026-05-02T00:00:00Z&to=2026-05-01T00:00:00Z", 400, "parameter_invalid"),
		get(a.key, events+"?tenantId=x", 404, "tenant_not_found"),
		get(bootstrap, events, 400, "parameter_missing"),
		get(bootstrap, events+"?tenantId=x", 404, "tenant_not_found"),
		get(bootstrap, events+"?tenantId="+newID().String(), 404, "tenant_not_found"),
		get(a.key, figures+"?period=2026-13", 400, "parameter_invalid"),
		get(a.key, figures+"?period=may", 400, "parameter_invalid"),
		get(a.key, figures+"?format=xml", 400, "parameter_invalid"),
		get(a.key, figures+"?format=csv&limit=5", 400, "parameter_invalid"),
		get(a.key, figures+"?format=csv&cursor=", 400, "parameter_invalid"),
		get(bootstrap, figures, 400, "parameter_missing"),
		get(bootstrap, figures+"?tenantId=", 400, "parameter_invalid"),
		get(bootstrap, figures+"?period=2026-13", 400, "parameter_invalid"),
		get(bootstrap, figures+"?period=2026-05&cursor="+forged, 400, "cursor_invalid"),
		get(bootstrap, figures+"?period=2026-05&minPosition=17-1", 400, "parameter_invalid"),
		get(bootstrap, figures+"?period=2026-05&asOfPosition=17-1", 400, "parameter_invalid"),
		get(bootstrap, figures+"?period=2026-05&asOf=2026-05-01T00:00:00Z", 400, "parameter_invalid"),
		get(a.key, check+"?amount=-1", 400, "parameter_invalid"),
		get(a.key, check+"?amount=9007199254740992", 400, "parameter_invalid"),
		get(a.key, check+"?amount=1.5", 400, "parameter_invalid"),
		get(bootstrap, "/api/v1/dead-letters?status=OPEN", 400, "parameter_invalid"),
		get(bootstrap, "/api/v1/dead-letters?stage=validation", 400, "parameter_invalid"),
		get("", "/livez?verbose", 400, "unknown_parameter"),
	)
}

func (w *testService) paths(a *account) []badInput {
	get := func(key, path string, status int, code string) badInput {
		return badInput{path, call{method: "GET", path: path, key: key}, status, code}
	}
	do := func(method, path string, status int, code string) badInput {
		return badInput{method + " " + path, call{method: method, path: path, key: bootstrap}, status, code}
	}
	receipt, nothing := "/api/v1/usage/events/", newID().String()
	return []badInput{
		get(a.key, "//api/v1/usage/events", 404, "not_found"),
		get(a.key, "/api/v1//usage/events", 404, "not_found"),
		get(a.key, "/api/v1/usage/events/", 404, "not_found"),
		get(a.key, "/api/v1/usage/events/x/", 404, "not_found"),
		get(a.key, "/API/V1/usage/events", 404, "not_found"),
		get(a.key, "/api/v1/usage/Events", 404, "not_found"),
		get(a.key, "/api/v2/usage/events", 404, "not_found"),
		get(a.key, "/api", 404, "not_found"),
		get(a.key, "/api/v1/usage/events/../aggregates", 404, "not_found"),
		get(a.key, receipt+"..%2F..%2Ftenants", 404, "not_found"),
		get(a.key, receipt+"%2e%2e", 404, "not_found"),
		get(a.key, receipt+"%00", 400, "path_invalid"),
		get(a.key, receipt+"a%0d%0aSet-Cookie:%20x=1", 400, "path_invalid"),
		get(a.key, receipt+"%ff", 400, "path_invalid"),
		get(a.key, receipt+"a%20b", 404, "not_found"),
		get(a.key, receipt+"%E2%80%AEx", 404, "not_found"),
		get(a.key, receipt+strings.Repeat("a", 256), 404, "not_found"),
		get(a.key, receipt+"'%20OR%201=1--", 404, "not_found"),
		get(a.key, "/api/v1/entitlements/API/check", 400, "feature_invalid"),
		get(a.key, "/api/v1/entitlements/a%2Fb/check", 400, "feature_invalid"),
		get(a.key, "/api/v1/entitlements/%2e%2e/check", 400, "feature_invalid"),
		get(a.key, "/api/v1/entitlements//check", 404, "not_found"),
		get(bootstrap, "/api/v1/tenants/x", 404, "tenant_not_found"),
		get(bootstrap, "/api/v1/tenants/00000000-0000-0000-0000-000000000000", 404, "tenant_not_found"),
		get(bootstrap, "/api/v1/tenants/urn:uuid:"+a.id, 404, "tenant_not_found"),
		get(bootstrap, "/api/v1/tenants/{"+a.id+"}", 404, "tenant_not_found"),
		get(bootstrap, "/api/v1/tenants/"+strings.ReplaceAll(a.id, "-", ""), 404, "tenant_not_found"),
		get(bootstrap, "/api/v1/tenants/"+nothing+"/api-keys", 404, "tenant_not_found"),
		get(bootstrap, "/api/v1/tenants/"+nothing+"/subscriptions", 404, "tenant_not_found"),
		get(bootstrap, "/api/v1/tenants/"+a.id+"/subscriptions/"+nothing, 404, "subscription_not_found"),
		get(bootstrap, "/api/v1/features/nothing", 404, "feature_not_found"),
		get(bootstrap, "/api/v1/features/..%2Fplans", 404, "feature_not_found"),
		get(bootstrap, "/api/v1/plans/nothing", 404, "plan_not_found"),
		get(bootstrap, "/api/v1/dead-letters/x", 404, "not_found"),
		get(bootstrap, "/api/v1/dead-letters/"+nothing, 404, "not_found"),
		do("DELETE", "/api/v1/operator-keys/"+nothing, 404, "key_not_found"),
		do("DELETE", "/api/v1/operator-keys/"+a.keyID, 404, "key_not_found"),
		do("DELETE", "/api/v1/tenants/"+nothing+"/api-keys/"+a.keyID, 404, "key_not_found"),
		do("DELETE", "/api/v1/usage/events", 405, "method_not_allowed"),
		do("PUT", "/api/v1/tenants", 405, "method_not_allowed"),
		do("OPTIONS", "/api/v1/tenants", 405, "method_not_allowed"),
		do("TRACE", "/api/v1/tenants", 405, "method_not_allowed"),
		do("BREW", "/api/v1/tenants", 405, "method_not_allowed"),
		do("BREW", "/coffee", 404, "not_found"),
		do("POST", "/livez", 405, "method_not_allowed"),
		do("POST", "/api/v1/dead-letters/"+nothing+"/retry", 404, "not_found"),
		get(bootstrap, "/api/v1/dead-letters/bulk", 404, "not_found"),
		get(bootstrap, "/api/v1/dead-letters/groups/x", 404, "not_found"),
		do("POST", "/api/v1/dead-letters/"+nothing+"/discard", 415, "media_type_unsupported"),
	}
}

func TestBadInputIsRefusedAndStoresNothing(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("A")
	var all []badInput
	for _, list := range [][]badInput{ingests(a), w.queries(a), seriesQueries(a), w.paths(a), schemaPaths(), w.catalogueBodies(a), w.checkBodies(a), w.letterBodies(a), w.replayBodies(a)} {
		all = append(all, list...)
	}
	before := w.stored()
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			mine := &testService{TB: t, url: w.url, client: w.client, pool: w.pool}
			got := mine.do(c.call)
			mine.refused(got, c.status, c.code)
			if after := mine.stored(); after != before {
				t.Errorf("%d events were stored", after-before)
				before = after
			}
			if allow := got.header.Values("Allow"); c.status == 405 && (len(allow) != 1 || allow[0] == "") {
				t.Errorf("Allow is %q", allow)
			}
		})
	}
	if t.Logf("%d cases", len(all)); len(all) < 150 {
		t.Error("150 are the least")
	}
}

// TestBadEventsAreVerdicts checks that an error in one element is that element's verdict.
func TestBadEventsAreVerdicts(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("A")
	long := strings.Repeat("x", 256)
	cases := []struct {
		members map[string]any
		code    string
	}{
		{map[string]any{"amount": json.Number("0")}, "amount_invalid"}, {map[string]any{"amount": json.Number("-1")}, "amount_invalid"},
		{map[string]any{"amount": json.Number("5.0")}, "amount_invalid"}, {map[string]any{"amount": json.Number("1e3")}, "amount_invalid"},
		{map[string]any{"amount": json.Number("-0")}, "amount_invalid"}, {map[string]any{"amount": json.Number("1e400")}, "amount_invalid"},
		{map[string]any{"amount": "5"}, "amount_invalid"}, {map[string]any{"amount": true}, "amount_invalid"},
		{map[string]any{"amount": json.Number("9007199254740992")}, "amount_invalid"}, {map[string]any{"amount": json.Number("9223372036854775808")}, "amount_invalid"},
		{map[string]any{"amount": nil}, "member_missing"}, {map[string]any{"timestamp": nil}, "member_missing"}, {map[string]any{"feature": nil}, "member_missing"},
		{map[string]any{"eventId": ""}, "event_id_invalid"}, {map[string]any{"eventId": long}, "event_id_invalid"}, {map[string]any{"eventId": "a b"}, "event_id_invalid"},
		{map[string]any{"eventId": "a\x00"}, "event_id_invalid"}, {map[string]any{"eventId": "é"}, "event_id_invalid"}, {map[string]any{"eventId": 5}, "event_id_invalid"},
		{map[string]any{"feature": "API"}, "feature_invalid"}, {map[string]any{"feature": "../x"}, "feature_invalid"}, {map[string]any{"feature": []any{}}, "feature_invalid"},
		{map[string]any{"timestamp": "2026-05-01T00:00:00"}, "timestamp_invalid"}, {map[string]any{"timestamp": "2026-05-01t00:00:00z"}, "timestamp_invalid"},
		{map[string]any{"timestamp": "2026-02-30T00:00:00Z"}, "timestamp_invalid"}, {map[string]any{"timestamp": 1714521600}, "timestamp_invalid"},
		{map[string]any{"timestamp": "2026-05-01T00:00:00,5Z"}, "timestamp_invalid"}, {map[string]any{"timestamp": "2026-05-01T24:00:00Z"}, "timestamp_invalid"},
		{map[string]any{"timestamp": "9999-12-31T23:59:59Z"}, "timestamp_in_future"}, {map[string]any{"timestamp": "2026-05-01T00:00:60Z"}, "timestamp_invalid"},
		{map[string]any{"timestamp": "10000-01-01T00:00:00Z"}, "timestamp_invalid"}, {map[string]any{"timestamp": "2026-05-01T00:00:00+24:00"}, "timestamp_invalid"},
		{map[string]any{"timestamp": "1714521600"}, "timestamp_invalid"}, {map[string]any{"timestamp": "2026-05-01T00:00:00.1234567890Z"}, "timestamp_invalid"},
		{map[string]any{"timestamp": "2026-05-01 00:00:00Z"}, "timestamp_invalid"}, {map[string]any{"timestamp": ""}, "timestamp_invalid"},
		{map[string]any{"timestamp": []any{}}, "timestamp_invalid"},
		{map[string]any{"eventId": "a\r\nb"}, "event_id_invalid"}, {map[string]any{"eventId": "\u202ea"}, "event_id_invalid"}, {map[string]any{"eventId": "\x7f"}, "event_id_invalid"},
		{map[string]any{"eventId": true}, "event_id_invalid"}, {map[string]any{"eventId": []any{"a"}}, "event_id_invalid"}, {map[string]any{"eventId": "' OR 1=1 --"}, "event_id_invalid"},
		{map[string]any{"feature": ""}, "feature_invalid"}, {map[string]any{"feature": strings.Repeat("a", 65)}, "feature_invalid"}, {map[string]any{"feature": "9lives"}, "feature_invalid"},
		{map[string]any{"feature": "api_calls "}, "feature_invalid"}, {map[string]any{"feature": "api_calls\x00"}, "feature_invalid"}, {map[string]any{"feature": "аpi_calls"}, "feature_invalid"},
		{map[string]any{"amount": []any{1}}, "amount_invalid"}, {map[string]any{"amount": json.Number("1E0")}, "amount_invalid"}, {map[string]any{"amount": json.Number("0.5")}, "amount_invalid"},
		{map[string]any{"amount": json.Number("18446744073709551617")}, "amount_invalid"}, {map[string]any{"metadata": "x"}, "metadata_invalid"}, {map[string]any{"type": 1}, "type_invalid"},
		{map[string]any{"metadata": []any{}}, "metadata_invalid"}, {map[string]any{"metadata": map[string]any{"a": "\x00"}}, "metadata_invalid"},
		{map[string]any{"metadata": map[string]any{"a": json.Number("9007199254740993")}}, "metadata_invalid"},
		{map[string]any{"metadata": map[string]any{"a": strings.Repeat("x", 5000)}}, "metadata_too_large"},
		{map[string]any{"metadata": json.RawMessage(`{"a":{"b":{"c":{"d":{"e":1}}}}}`)}, ""}, // five levels
		{map[string]any{"metadata": json.RawMessage(`{"a":{"b":{"c":{"d":{"e":{}}}}}}`)}, "metadata_invalid"},
		{map[string]any{"type": "refund"}, "type_invalid"}, {map[string]any{"tenantId": a.id}, "unknown_member"}, {map[string]any{"Amount": 5}, "unknown_member"},
		{map[string]any{"feature": "foobar"}, "feature_not_found"}, {map[string]any{"feature": "sso"}, "not_entitled"},
	}
	var list []any
	for i, c := range cases {
		list = append(list, event(fmt.Sprint("v", i), c.members))
	}
	list = append(list, nil, 5, "event", []any{}, json.RawMessage(`{"eventId":"\ud800"}`))
	for i, v := range verdicts(w.ingest(a, batch(list...))) {
		want, code := "event_invalid", v["code"]
		if i < len(cases) {
			want = cases[i].code
		}
		if i == len(list)-1 {
			want = "event_id_invalid"
		}
		if want == "" {
			if v["status"] != "accepted" {
				t.Errorf("%d: %v", i, v)
			}
			continue
		}
		if v["status"] != "rejected" || code != want || v["reason"] == "" {
			t.Errorf("%d %v: %v instead of %s", i, list[i], v, want)
		}
	}
	if got := verdicts(w.ingest(a, batch(event("v0", nil)))); got[0]["status"] != "accepted" {
		t.Errorf("a rejected event is remembered: %v", got)
	}
}
