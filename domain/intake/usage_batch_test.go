package intake

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

// element returns a valid event with members replaced or, by "", left out.
func element(changes ...string) string {
	members := [][2]string{
		{"eventId", `"evt_1"`}, {"feature", `"api_calls"`}, {"amount", `5`}, {"timestamp", `"2026-05-01T12:00:00Z"`},
	}
	for i := 0; i < len(changes); i += 2 {
		found := false
		for m := range members {
			if members[m][0] == changes[i] {
				members[m][1], found = changes[i+1], true
			}
		}
		if !found {
			members = append(members, [2]string{changes[i], changes[i+1]})
		}
	}
	var parts []string
	for _, m := range members {
		if m[1] != "" {
			parts = append(parts, `"`+m[0]+`":`+m[1])
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func inBatch(elements ...string) []byte {
	return []byte(`{"events":[` + strings.Join(elements, ",") + `]}`)
}

func decodeOne(t *testing.T, element string) BatchItem {
	t.Helper()
	items, err := DecodeBatch(inBatch(element))
	if err != nil || len(items) != 1 {
		t.Fatalf("%s: %v, %d items", element, err, len(items))
	}
	if (items[0].Event == nil) == (items[0].Err == nil) {
		t.Fatalf("%s: not exactly one of event and error: %+v", element, items[0])
	}
	return items[0]
}

type elementCase struct{ element, code, pointer string } // code "": it is accepted

// longKey is a feature key of the greatest length.
var longKey = "a" + strings.Repeat("b", 63)

func withMetadata(v string) string { return element("metadata", v) }

// mostMembers returns an object with the most members that fit into so many bytes, less 7 at most.
func mostMembers(size int) string {
	const chars = "!#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz{|}~"
	names := append([]string{""}, strings.Split(chars, "")...)
	for _, first := range chars {
		for _, second := range chars {
			names = append(names, string(first)+string(second))
		}
	}
	object := ""
	for _, name := range names {
		next := `,"` + name + `":0`
		if len(object)+len(next)+len("}") > size {
			break
		}
		object += next
	}
	return "{" + object[1:] + "}"
}

var elementCases = []elementCase{
	{element(), "", ""},
	{element("eventId", `""`), "event_id_invalid", "/eventId"},
	{element("eventId", `"`+strings.Repeat("x", 255)+`"`), "", ""},
	{element("eventId", `"`+strings.Repeat("x", 256)+`"`), "event_id_invalid", "/eventId"},
	{element("eventId", `"!~\"\\/"`), "", ""},
	{element("eventId", `"\u0041"`), "", ""},
	{element("eventId", `"a b"`), "event_id_invalid", "/eventId"},
	{element("eventId", `"a\u0000"`), "event_id_invalid", "/eventId"},
	{element("eventId", `"a\r\n"`), "event_id_invalid", "/eventId"},
	{element("eventId", `"é"`), "event_id_invalid", "/eventId"},
	{element("eventId", `"\u007f"`), "event_id_invalid", "/eventId"},
	{element("eventId", `"\u202e"`), "event_id_invalid", "/eventId"},
	{element("eventId", `"\ud800"`), "event_id_invalid", "/eventId"},
	{element("eventId", `null`), "event_id_invalid", "/eventId"},
	{element("eventId", `5`), "event_id_invalid", "/eventId"},
	{element("eventId", `["evt_1"]`), "event_id_invalid", "/eventId"},
	{element("eventId", ``), "member_missing", "/eventId"},
	{element("feature", `"`+longKey+`"`), "", ""},
	{element("feature", `"`+longKey+`c"`), "feature_invalid", "/feature"},
	{element("feature", `"a"`), "", ""},
	{element("feature", `"a0_.-"`), "", ""},
	{element("feature", `""`), "feature_invalid", "/feature"},
	{element("feature", `"Api"`), "feature_invalid", "/feature"},
	{element("feature", `"aPi"`), "feature_invalid", "/feature"},
	{element("feature", `"0a"`), "feature_invalid", "/feature"},
	{element("feature", `"_a"`), "feature_invalid", "/feature"},
	{element("feature", `"a b"`), "feature_invalid", "/feature"},
	{element("feature", `"a\n"`), "feature_invalid", "/feature"},
	{element("feature", `"../a"`), "feature_invalid", "/feature"},
	{element("feature", `"a\udfff"`), "feature_invalid", "/feature"},
	{element("feature", `null`), "feature_invalid", "/feature"},
	{element("feature", `{}`), "feature_invalid", "/feature"},
	{element("feature", ``), "member_missing", "/feature"},
	{element("amount", `1`), "", ""},
	{element("amount", `9007199254740991`), "", ""},
	{element("amount", `9007199254740992`), "amount_invalid", "/amount"},
	{element("amount", `9223372036854775808`), "amount_invalid", "/amount"},
	{element("amount", `18446744073709551617`), "amount_invalid", "/amount"},
	{element("amount", strings.Repeat("9", 5000)), "amount_invalid", "/amount"},
	{element("amount", `0`), "amount_invalid", "/amount"},
	{element("amount", `-0`), "amount_invalid", "/amount"},
	{element("amount", `-1`), "amount_invalid", "/amount"},
	{element("amount", `5.0`), "amount_invalid", "/amount"},
	{element("amount", `5.5`), "amount_invalid", "/amount"},
	{element("amount", `1e3`), "amount_invalid", "/amount"},
	{element("amount", `1E0`), "amount_invalid", "/amount"},
	{element("amount", `1e400`), "amount_invalid", "/amount"},
	{element("amount", `"5"`), "amount_invalid", "/amount"},
	{element("amount", `"\ud800"`), "amount_invalid", "/amount"},
	{element("amount", `null`), "amount_invalid", "/amount"},
	{element("amount", `true`), "amount_invalid", "/amount"},
	{element("amount", `[5]`), "amount_invalid", "/amount"},
	{element("amount", ``), "member_missing", "/amount"},
	{element("timestamp", `"2026-05-01t12:00:00z"`), "timestamp_invalid", "/timestamp"},
	{element("timestamp", `"\ud800"`), "timestamp_invalid", "/timestamp"},
	{element("timestamp", `1777636800`), "timestamp_invalid", "/timestamp"},
	{element("timestamp", `null`), "timestamp_invalid", "/timestamp"},
	{element("timestamp", ``), "member_missing", "/timestamp"},
	{withMetadata(`null`), "", ""},
	{withMetadata(`{}`), "", ""},
	{withMetadata(`{"a":"\ud83d\ude00","b":[1,2.5,null,true]}`), "", ""},
	{withMetadata(`[]`), "metadata_invalid", "/metadata"},
	{withMetadata(`"a"`), "metadata_invalid", "/metadata"},
	{withMetadata(`5`), "metadata_invalid", "/metadata"},
	{withMetadata(`false`), "metadata_invalid", "/metadata"},
	{withMetadata(`{"a":"\u0000"}`), "metadata_invalid", "/metadata"},
	{withMetadata(`{"a\u0000":1}`), "metadata_invalid", "/metadata"},
	{withMetadata(`{"a":"\ud800"}`), "metadata_invalid", "/metadata"},
	{withMetadata(`{"\udc00":1}`), "metadata_invalid", "/metadata"},
	{withMetadata(`{"a":9007199254740993}`), "metadata_invalid", "/metadata"},
	{withMetadata(`{"a":1e400}`), "metadata_invalid", "/metadata"},
	{withMetadata(`{"a":[[[[1]]]]}`), "", ""},
	{withMetadata(`{"a":[[[[]]]]}`), "", ""},
	{withMetadata(`{"a":[[[[[]]]]]}`), "metadata_invalid", "/metadata"},
	{withMetadata(`{"a":{"b":{"c":{"d":{}}}}}`), "", ""},
	{withMetadata(`{"a":{"b":{"c":{"d":{"e":{}}}}}}`), "metadata_invalid", "/metadata"},
	{withMetadata(`{"a":"` + strings.Repeat("x", 4096-8) + `"}`), "", ""},
	{withMetadata(`{"a":"` + strings.Repeat("x", 4096-7) + `"}`), "metadata_too_large", "/metadata"},
	{withMetadata(`{ "a" : ` + strings.Repeat(" ", 9000) + `1}`), "", ""},
	{withMetadata(`{"a":"` + strings.Repeat(`\u0061`, 4000) + `"}`), "", ""},
	{withMetadata(`{"a":"` + strings.Repeat("é", 2045) + `"}`), "metadata_too_large", "/metadata"},
	{withMetadata(mostMembers(MaxMetadata)), "", ""},
	{withMetadata(mostMembers(MaxMetadata + 8)), "metadata_too_large", "/metadata"},
	{withMetadata(`{"a":` + strings.TrimSuffix(mostMembers(2*MaxMetadata), "}") + `,"!":0}}`), "metadata_too_large", "/metadata"},
	{strings.Replace(element(), "{", "{"+strings.Repeat(`"amount":5,`, 999), 1), "event_invalid", ""},
	{strings.Replace(element(), "{", strings.TrimSuffix(mostMembers(2*MaxMetadata), "}")+",", 1), "unknown_member", "/"},
	{element("type", `"usage"`), "", ""},
	{element("type", `"\u0075sage"`), "", ""},
	{element("type", `"correction"`), "member_missing", "/correctionRef"},
	{element("type", `"retraction"`), "amount_invalid", "/amount"},
	{element("type", `"Correction"`), "type_invalid", "/type"},
	{element("type", `"USAGE"`), "type_invalid", "/type"},
	{element("type", `""`), "type_invalid", "/type"},
	{element("type", `null`), "type_invalid", "/type"},
	{element("type", `1`), "type_invalid", "/type"},
	{element("correctionRef", `"evt_0"`), "correction_ref_invalid", "/correctionRef"},
	{element("correctionRef", `null`), "correction_ref_invalid", "/correctionRef"},
	{element("EventID", `"evt_1"`), "unknown_member", "/EventID"},
	{element("source", `"/s"`), "", ""},
	{element("source", `""`), "source_invalid", "/source"},
	{element("source", `null`), "source_invalid", "/source"},
	{element("source", `"a b"`), "source_invalid", "/source"},
	{element("source", `"`+strings.Repeat("s", 1025)+`"`), "source_invalid", "/source"},
	{element("a/b~c", `{"x":[]}`), "unknown_member", "/a~1b~0c"},
	{element(`\u0065vent`, `1`), "unknown_member", "/event"},
	{element(`\ud800`, `1`), "unknown_member", "/\uFFFD"},
	{element("", `"\ud800"`), "unknown_member", "/"},
	{`{}`, "member_missing", "/eventId"},
	{`null`, "event_invalid", ""},
	{`[]`, "event_invalid", ""},
	{`"evt_1"`, "event_invalid", ""},
	{`5`, "event_invalid", ""},
	// The order of faults.
	{element("eventId", ``, "amounts", `5`, "amount", ``), "unknown_member", "/amounts"},
	{element("eventId", ``, "type", `"x"`), "type_invalid", "/type"},
	{element("eventId", `""`, "feature", `""`), "event_id_invalid", "/eventId"},
	{element("feature", `""`, "amount", ``), "feature_invalid", "/feature"},
	{element("amount", `0`, "timestamp", ``), "amount_invalid", "/amount"},
	{element("timestamp", `""`, "metadata", `[]`, "source", `1`), "timestamp_invalid", "/timestamp"},
	{element("source", `1`, "metadata", `[]`), "source_invalid", "/source"},
	{element("metadata", `[]`, "correctionRef", `""`), "metadata_invalid", "/metadata"},
}

func TestDecodeElement(t *testing.T) {
	for _, c := range elementCases {
		item := decodeOne(t, c.element)
		if c.code == "" {
			if item.Err != nil {
				t.Errorf("%.80s: %v", c.element, item.Err)
			}
			continue
		}
		if c.pointer = "/events/0" + c.pointer; item.Err == nil || item.Err.Code != c.code || item.Err.Pointer != c.pointer {
			t.Errorf("%.80s: %+v, want %s at %s", c.element, item.Err, c.code, c.pointer)
		}
	}
}

func TestDecodeBatchBodies(t *testing.T) {
	many := func(n int) string {
		return `{"events":[` + strings.TrimSuffix(strings.Repeat(element()+",", n), ",") + `]}`
	}
	deep := func(n int) string { return string(inBatch(element("x", nest(n)))) }
	for _, c := range []struct{ body, code, pointer string }{
		{many(1), "", ""},
		{many(1000), "", ""},
		{many(1001), "batch_too_large", "/events"},
		{strings.TrimSuffix(many(1001), "]}") + ",]}", "malformed_json", ""},
		{many(1001) + "x", "malformed_json", ""},
		{`{"events":[]}`, "batch_empty", "/events"},
		{`{"events":null}`, "events_invalid", "/events"},
		{`{"events":{}}`, "events_invalid", "/events"},
		{`{"events":"[]"}`, "events_invalid", "/events"},
		{`{}`, "member_missing", "/events"},
		{`{"Events":[]}`, "unknown_member", "/Events"},
		{`{"events":[],"x":1}`, "unknown_member", "/x"},
		{`{"y":1,"x":1}`, "unknown_member", "/y"},
		{`{"\ud800":1}`, "unknown_member", "/\uFFFD"},
		{`{"` + strings.Repeat("é", 100) + `":1}`, "unknown_member", "/" + strings.Repeat("é", 64) + "…"},
		{`{"ev\u0065nts":[1]}`, "", ""},
		{`{"events":[],"events":[]}`, "malformed_json", ""},
		{`{"events":[{"eventId":"a","eventI\u0064":"b"}]}`, "malformed_json", ""},
		{string(inBatch(element("metadata", `{"a":1,"a":2}`))), "malformed_json", ""},
		{string(inBatch(element("x", `{"a":1,"a":2}`))), "malformed_json", ""},
		{string(inBatch(element(), `[{"a":1,"a":2}]`)), "malformed_json", ""},
		{string(inBatch(element("amount", `01`))), "malformed_json", ""},
		{string(inBatch(element("amount", `NaN`))), "malformed_json", ""},
		{string(inBatch(element("eventId", "\"\xff\""))), "malformed_json", ""},
		{deep(61), "", ""},
		{deep(62), "malformed_json", ""},
		{`[` + element() + `]`, "malformed_json", ""},
		{`null`, "malformed_json", ""},
		{`"events"`, "malformed_json", ""},
		{``, "malformed_json", ""},
		{"\xef\xbb\xbf" + many(1), "malformed_json", ""},
		{many(1) + many(1), "malformed_json", ""},
		{many(1) + "\x00", "malformed_json", ""},
		{`{"events":[` + element() + `}`, "malformed_json", ""},
		{`{"events":[` + element(), "malformed_json", ""},
		{`{"events":[1,]}`, "malformed_json", ""},
	} {
		items, err := DecodeBatch([]byte(c.body))
		if c.code == "" {
			if err != nil || len(items) == 0 {
				t.Errorf("%.80s: %v", c.body, err)
			}
			continue
		}
		var fault *domain.Error
		if !errors.As(err, &fault) || fault.Code != c.code || fault.Pointer != c.pointer || items != nil {
			t.Errorf("%.80s: %+v with %d items, want %s at %q", c.body, err, len(items), c.code, c.pointer)
		}
	}
}

func TestDecodedEvent(t *testing.T) {
	item := decodeOne(t, `{ "type":"usage", "timestamp":"2026-05-01T14:00:00.1234569+02:00", "amount":7,
		"metadata":{"b":[1.0,"\u00e9"],"a":null}, "feature":"api.calls", "eventId":"a\"\\\u002fb" }`)
	want := &domain.UsageEvent{Type: events.TypeUsage,
		EventID: `a"\/b`, Feature: "api.calls", Amount: 7,
		Timestamp: time.Date(2026, 5, 1, 12, 0, 0, 123456000, time.UTC),
		// Such an id is escaped in the payload, so the complete payload is stored.
		Body: []byte(`{"amount":7,"eventId":"a\"\\/b","feature":"api.calls","metadata":{"a":null,"b":[1,"é"]},` +
			`"timestamp":"2026-05-01T12:00:00.123456Z","type":"usage"}`),
	}
	if !reflect.DeepEqual(item.Event, want) || item.EventID != want.EventID {
		t.Errorf("got  %+v\nwant %+v", item.Event, want)
	}
}

// A bad event neither blocks the others nor overwrites their memory: appending to one
// Body must not change the next one.
func TestDecodeMixedBatch(t *testing.T) {
	items, err := DecodeBatch(inBatch(
		element("eventId", `"a"`), element("eventId", `"b"`, "amount", `0`), `7`,
		element("eventId", `"c"`, "metadata", `{"x":"`+strings.Repeat("y", 5000)+`"}`),
		element("eventId", `"bad id"`), element("eventId", `"d"`, "metadata", `{"z":1,"y":2}`)))
	must.OK(t, err)
	var got []string
	for i, item := range items {
		code := "ok"
		if item.Err != nil {
			code = item.Err.Code
		}
		got = append(got, fmt.Sprintf("%d %s %s", item.Index, item.EventID, code))
		if item.Index != i {
			t.Errorf("item %d has index %d", i, item.Index)
		}
	}
	want := []string{"0 a ok", "1 b amount_invalid", "2  event_invalid", "3 c metadata_too_large", "4  event_id_invalid", "5 d ok"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q", got)
	}
	for i, event := range []*domain.UsageEvent{items[0].Event, items[5].Event} {
		if cap(event.Body) != len(event.Body) || !json.Valid(event.Body) || !json.Valid(event.Payload()) {
			t.Errorf("event %d: %s, cap %d", i, event.Body, cap(event.Body))
		}
	}
}

// For any input, an error message is short, on one line and printable.
func TestErrorsAreShortAndPrintable(t *testing.T) {
	for _, junk := range []string{strings.Repeat("x", 1<<20), strings.Repeat("\u202e", 1000), `\u0000\r\n` + strings.Repeat(`\\`, 1000),
		strings.Repeat("\U000e0001", 500)} {
		for _, body := range [][]byte{
			inBatch(element(junk, `1`)), inBatch(element("timestamp", `"`+junk+`"`)), inBatch(element("type", `"`+junk+`"`)),
			[]byte(`{"` + junk + `":1}`), []byte(`{"` + junk + `":1,"` + junk + `":1}`),
			inBatch(element("metadata", `{"a":0.`+strings.Repeat("1", 1000)+`}`)),
		} {
			items, err := DecodeBatch(body)
			fault, _ := err.(*domain.Error)
			if err == nil {
				fault = items[0].Err
			}
			if len(fault.Error()) > 1000 || strings.ContainsAny(fault.Error(), "\r\n\x00\u202e") || len([]rune(fault.Pointer)) > 100 {
				t.Errorf("%.60q: %d bytes: %.300q at %.100q", body, len(fault.Error()), fault, fault.Pointer)
			}
		}
	}
}
