package intake

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// cloudEvent returns a valid CloudEvent with members replaced, added or, by "", left out.
func cloudEvent(changes ...string) string {
	members := map[string]string{
		"specversion": `"1.0"`, "id": `"evt_1"`, "source": `"/meters/1"`, "type": `"com.example.call"`, "subject": `"api_calls"`,
		"time": `"2026-05-01T12:00:00Z"`, "data": `{"amount":5}`,
	}
	for i := 0; i < len(changes); i += 2 {
		members[changes[i]] = changes[i+1]
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if members[name] != "" {
			parts = append(parts, `"`+name+`":`+members[name])
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}

const wantCloudPayload = `{"amount":5,"eventId":"evt_1","feature":"api_calls","source":"/meters/1","timestamp":"2026-05-01T12:00:00Z",` +
	`"type":"usage"}`

const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

var cloudEventCases = []struct{ event, code, pointer, payload string }{
	{cloudEvent(), "", "", wantCloudPayload},
	{cloudEvent("subject", ""), "", "", strings.Replace(wantCloudPayload, "api_calls", "com.example.call", 1)},
	{cloudEvent("subject", "null"), "", "", strings.Replace(wantCloudPayload, "api_calls", "com.example.call", 1)},
	{cloudEvent("datacontenttype", `"application/json"`, "dataschema", `"https://x/y"`, "traceparent", `"`+trace+`"`, "tracestate", `"a=b"`,
		"partitionkey", `"p"`), "", "", wantCloudPayload},
	{cloudEvent("datacontenttype", `"application/vnd.x+json; charset=UTF-8"`), "", "", wantCloudPayload},
	{cloudEvent("traceparent", `"no trace"`, "tracestate", `null`), "", "", wantCloudPayload},
	{cloudEvent("data", `{"metadata":{},"amount":5}`), "", "", wantCloudPayload},
	{cloudEvent("region", `"eu"`, "hop", `-7`, "test", `true`, "gone", `null`), "", "",
		strings.Replace(wantCloudPayload, `"source"`, `"metadata":{"ce":{"hop":"-7","region":"eu","test":"true"}},"source"`, 1)},
	{cloudEvent("region", `"eu"`, "data", `{"amount":5,"metadata":{"z":1,"b":{}}}`), "", "",
		strings.Replace(wantCloudPayload, `"source"`, `"metadata":{"b":{},"ce":{"region":"eu"},"z":1},"source"`, 1)},
	{cloudEvent("region", `"eu"`, "data", `{"amount":5,"metadata":{ }}`), "", "",
		strings.Replace(wantCloudPayload, `"source"`, `"metadata":{"ce":{"region":"eu"}},"source"`, 1)},
	{cloudEvent("specversion", ``), "member_missing", "/specversion", ""},
	{cloudEvent("specversion", `"0.3"`), "cloudevent_invalid", "/specversion", ""},
	{cloudEvent("specversion", `1.0`), "cloudevent_invalid", "/specversion", ""},
	{cloudEvent("id", ``), "member_missing", "/id", ""},
	{cloudEvent("id", `null`), "member_missing", "/id", ""},
	{cloudEvent("id", `""`), "event_id_invalid", "/id", ""},
	{cloudEvent("id", `5`), "event_id_invalid", "/id", ""},
	{cloudEvent("id", `"\ud800"`), "event_id_invalid", "/id", ""},
	{cloudEvent("source", ``), "member_missing", "/source", ""},
	{cloudEvent("source", `""`), "cloudevent_invalid", "/source", ""},
	{cloudEvent("source", `"a b"`), "cloudevent_invalid", "/source", ""},
	{cloudEvent("source", `"\udc00"`), "cloudevent_invalid", "/source", ""},
	{cloudEvent("source", `"`+strings.Repeat("s", 1025)+`"`), "cloudevent_invalid", "/source", ""},
	{cloudEvent("type", ``), "member_missing", "/type", ""},
	{cloudEvent("type", `""`), "cloudevent_invalid", "/type", ""},
	{cloudEvent("type", `["a"]`), "cloudevent_invalid", "/type", ""},
	{cloudEvent("type", `"Com"`, "subject", ``), "feature_invalid", "/type", ""},
	{cloudEvent("subject", `""`), "feature_invalid", "/subject", ""},
	{cloudEvent("subject", `7`), "feature_invalid", "/subject", ""},
	{cloudEvent("time", ``), "member_missing", "/time", ""},
	{cloudEvent("time", `"yesterday"`), "timestamp_invalid", "/time", ""},
	{cloudEvent("time", `17`), "timestamp_invalid", "/time", ""},
	{cloudEvent("datacontenttype", `"text/plain"`), "cloudevent_invalid", "/datacontenttype", ""},
	{cloudEvent("datacontenttype", `"application/json; charset=latin1"`), "cloudevent_invalid", "/datacontenttype", ""},
	{cloudEvent("datacontenttype", `""`), "cloudevent_invalid", "/datacontenttype", ""},
	{cloudEvent("dataschema", `{}`), "cloudevent_invalid", "/dataschema", ""},
	{cloudEvent("traceparent", `1`), "cloudevent_invalid", "/traceparent", ""},
	{cloudEvent("data_base64", `"eyJhbW91bnQiOjV9"`), "cloudevent_invalid", "/data_base64", ""},
	{cloudEvent("data", ``), "member_missing", "/data", ""},
	{cloudEvent("data", `null`), "member_missing", "/data", ""},
	{cloudEvent("data", `"{}"`), "cloudevent_invalid", "/data", ""},
	{cloudEvent("data", `[5]`), "cloudevent_invalid", "/data", ""},
	{cloudEvent("data", `{}`), "member_missing", "/data/amount", ""},
	{cloudEvent("data", `{"amount":0}`), "amount_invalid", "/data/amount", ""},
	{cloudEvent("data", `{"amount":5,"Amount":5}`), "unknown_member", "/data/Amount", ""},
	{cloudEvent("data", `{"y":1,"x":1}`), "unknown_member", "/data/y", ""},
	{cloudEvent("data", `{"amount":5,"metadata":[]}`), "metadata_invalid", "/data/metadata", ""},
	{cloudEvent("data", `{"amount":5,"metadata":"x"}`, "region", `"eu"`), "metadata_invalid", "/data/metadata", ""},
	{cloudEvent("data", `{"amount":5,"metadata":{"ce":{}}}`, "region", `"eu"`), "metadata_invalid", "/data/metadata", ""},
	{cloudEvent("data", `{"amount":5,"metadata":{"c\u0065":1}}`), "metadata_invalid", "/data/metadata", ""},
	{cloudEvent("region", `"`+strings.Repeat("r", 4096)+`"`), "metadata_too_large", "/data/metadata", ""},
	{cloudEvent("region", `"eu"`, "data", `{"amount":5,"metadata":`+mostMembers(2*MaxMetadata)+`}`), "metadata_too_large", "/data/metadata",
		""},
	{cloudEvent("data", mostMembers(2*MaxMetadata)), "unknown_member", "/data/", ""},
	{cloudEvent("region", mostMembers(2*MaxMetadata)), "cloudevent_invalid", "/region", ""},
	{cloudEvent("Region", `"eu"`), "cloudevent_invalid", "/Region", ""},
	{cloudEvent("a-b", `"eu"`), "cloudevent_invalid", "/a-b", ""},
	{cloudEvent("region", `1.5`), "cloudevent_invalid", "/region", ""},
	{cloudEvent("region", `-0`), "cloudevent_invalid", "/region", ""},
	{cloudEvent("region", `2147483648`), "cloudevent_invalid", "/region", ""},
	{cloudEvent("region", `{}`), "cloudevent_invalid", "/region", ""},
	{cloudEvent("region", `"\ud800"`), "cloudevent_invalid", "/region", ""},
	{cloudEvent("region", `"\u0000"`), "cloudevent_invalid", "/region", ""},
	{cloudEvent("region", `"\u0085"`), "cloudevent_invalid", "/region", ""},
	{cloudEvent("region", `"\uffff"`), "cloudevent_invalid", "/region", ""},
	{`7`, "event_invalid", "", ""},
	{`{}`, "member_missing", "/specversion", ""},
}

func TestDecodeCloudEvent(t *testing.T) {
	for _, c := range cloudEventCases {
		items, err := DecodeCloudEventBatch([]byte("[" + c.event + "]"))
		if err != nil || len(items) != 1 {
			t.Errorf("%s: %v", c.event, err)
			continue
		}
		checkCloudItem(t, c.event, items[0], c.code, "/0"+c.pointer, c.payload)
		if c.event[0] != '{' {
			continue
		}
		checkCloudItem(t, c.event, onlyItem(DecodeCloudEvent([]byte(c.event))), c.code, c.pointer, c.payload)
	}
}

// TestDecodeCloudEventWithManyAttributes: their names and values are collected up to the bound of metadata.
func TestDecodeCloudEventWithManyAttributes(t *testing.T) {
	var changes []string
	for n := range 2000 {
		changes = append(changes, fmt.Sprintf("a%d", n), `""`)
	}
	many := cloudEvent(changes...)
	items, err := DecodeCloudEventBatch([]byte("[" + cloudEvent() + "," + many + "," + cloudEvent("id", `"evt_2"`) + "]"))
	if err != nil || len(items) != 3 || items[0].Event == nil || items[2].Event == nil {
		t.Fatalf("%d items, %v", len(items), err)
	}
	checkCloudItem(t, "2000 attributes", items[1], "metadata_too_large", "/1/data/metadata", "")
	if _, err := DecodeCloudEvent([]byte(many)); err == nil || !strings.Contains(err.Error(), "more than 1000 members") {
		t.Errorf("alone: %v", err)
	}
}

// onlyItem is the event of a body, or its refusal as no CloudEvent.
func onlyItem(items []BatchItem, err error) (item BatchItem) {
	if errors.As(err, &item.Err) || len(items) != 1 {
		return item
	}
	return items[0]
}

// Without one of the attributes that CloudEvents 1.0 requires, the body as a whole is refused: it is no CloudEvent.
func TestDecodeCloudEventRefusesOtherObjects(t *testing.T) {
	for _, name := range []string{"specversion", "id", "source", "type"} {
		for mode, decode := range map[string]func() ([]BatchItem, error){
			"structured": func() ([]BatchItem, error) { return DecodeCloudEvent([]byte(cloudEvent(name, "", "Region", `"eu"`))) },
			"binary": func() ([]BatchItem, error) {
				return DecodeCloudEventBinary(cloudHeader("ce-"+name, ""), []byte(`{"amount":5}`))
			},
			"binary, no data": func() ([]BatchItem, error) { return DecodeCloudEventBinary(cloudHeader("ce-"+name, ""), nil) },
			"record": func() ([]BatchItem, error) {
				return DecodeCloudEventRecord(cloudRecord("ce_"+name, ""), []byte(`{"amount":5}`))
			},
		} {
			var fault *domain.Error
			if items, err := decode(); !errors.As(err, &fault) || fault.Code != "member_missing" || items != nil {
				t.Errorf("%s without %s: %v with %d items", mode, name, err, len(items))
			}
		}
	}
}

// cloudRecord returns the headers of a CloudEvent in a Kafka record.
func cloudRecord(changes ...string) (list []events.Header) {
	for name, values := range cloudHeader() {
		name = strings.Replace(strings.ToLower(name), "ce-", "ce_", 1)
		list = append(list, events.Header{Key: name, Value: []byte(values[0])})
	}
	for i := 0; i < len(changes); i += 2 {
		list = slices.DeleteFunc(list, func(h events.Header) bool { return h.Key == changes[i] })
		if changes[i+1] != "" {
			list = append(list, events.Header{Key: changes[i], Value: []byte(changes[i+1])})
		}
	}
	return list
}

// The Kafka binding has the prefix ce_ and no percent-encoding.
func TestDecodeCloudEventRecord(t *testing.T) {
	for i, c := range []struct {
		headers                       []events.Header
		value, code, pointer, payload string
	}{
		{cloudRecord(), `{"amount":5}`, "", "", wantCloudPayload},
		{cloudRecord("content-type", ""), `{"amount":5}`, "", "", wantCloudPayload},
		{cloudRecord("ce_region", "Zürich 50%25"), `{"amount":5}`, "", "",
			strings.Replace(wantCloudPayload, `"source"`, `"metadata":{"ce":{"region":"Zürich 50%25"}},"source"`, 1)},
		{cloudRecord("ce_source", "\xff"), `{"amount":5}`, "cloudevent_invalid", "", ""},
		{cloudRecord("content-type", "text/plain"), `{"amount":5}`, "cloudevent_invalid", "", ""},
		{cloudRecord(), `{"amount":0.5}`, "amount_invalid", "/amount", ""},
		{append(cloudRecord(), events.Header{Key: "ce_id", Value: []byte("b")}), `{"amount":5}`, "cloudevent_invalid", "", ""},
	} {
		checkCloudItem(t, fmt.Sprint(i), onlyItem(DecodeCloudEventRecord(c.headers, []byte(c.value))), c.code, c.pointer, c.payload)
	}
}

func checkCloudItem(t *testing.T, what string, item BatchItem, code, pointer, payload string) {
	t.Helper()
	if code != "" {
		if item.Event != nil || item.Err == nil || item.Err.Code != code || item.Err.Pointer != pointer {
			t.Errorf("%.100s: %+v, want %s at %q", what, item.Err, code, pointer)
		}
		return
	}
	if item.Err != nil || string(item.Event.Payload()) != payload || item.EventID != item.Event.EventID {
		t.Errorf("%s: %v\n got %s\nwant %s", what, item.Err, item.Event.Payload(), payload)
	}
}

func TestCloudEventBodies(t *testing.T) {
	many := func(n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(cloudEvent()+",", n), ",") + "]"
	}
	for _, c := range []struct {
		decode func([]byte) ([]BatchItem, error)
		body   string
		code   string
	}{
		{DecodeCloudEvent, ``, "malformed_json"},
		{DecodeCloudEvent, `[]`, "malformed_json"},
		{DecodeCloudEvent, `null`, "malformed_json"},
		{DecodeCloudEvent, cloudEvent() + "{}", "malformed_json"},
		{DecodeCloudEvent, `{"id":"a","id":"b"}`, "malformed_json"},
		{DecodeCloudEvent, cloudEvent("data", `{"amount":5,"amount":6}`), "malformed_json"},
		{DecodeCloudEvent, cloudEvent("data", nest(64)), "malformed_json"},
		{DecodeCloudEventBatch, cloudEvent(), "malformed_json"},
		{DecodeCloudEventBatch, `[]`, "batch_empty"},
		{DecodeCloudEventBatch, many(1000), ""},
		{DecodeCloudEventBatch, many(1001), "batch_too_large"},
		{DecodeCloudEventBatch, many(2) + "]", "malformed_json"},
		{DecodeCloudEventBatch, `[` + cloudEvent() + `,]`, "malformed_json"},
	} {
		items, err := c.decode([]byte(c.body))
		var fault *domain.Error
		if c.code == "" && err == nil && len(items) == 1000 {
			continue
		}
		if !errors.As(err, &fault) || fault.Code != c.code || items != nil {
			t.Errorf("%.80s: %v with %d items, want %s", c.body, err, len(items), c.code)
		}
	}
}

func cloudHeader(changes ...string) http.Header {
	h := http.Header{}
	for _, line := range []string{"ce-specversion: 1.0", "ce-id: evt_1", "ce-source: /meters/1", "ce-type: com.example.call",
		"ce-subject: api_calls",
		"ce-time: 2026-05-01T12:00:00Z", "Content-Type: application/json", "Authorization: Bearer x", "Traceparent: x"} {
		name, value, _ := strings.Cut(line, ": ")
		h.Set(name, value)
	}
	for i := 0; i < len(changes); i += 2 {
		if h.Del(changes[i]); changes[i+1] != "" {
			h.Set(changes[i], changes[i+1])
		}
	}
	return h
}

func TestDecodeCloudEventBinary(t *testing.T) {
	twice := cloudHeader()
	twice.Add("ce-id", "evt_2")
	folded := cloudHeader()
	folded["ce-id"] = []string{"evt_1"}
	for i, c := range []struct {
		header                       http.Header
		body, code, pointer, payload string
	}{
		{cloudHeader(), `{"amount":5}`, "", "", wantCloudPayload},
		{cloudHeader("Content-Type", ""), " {\"amount\":5}\n", "", "", wantCloudPayload},
		{cloudHeader("ce-id", `evt%5F1`, "ce-source", `"/meters/\1"`), `{"amount":5}`, "", "", wantCloudPayload},
		{cloudHeader("ce-subject", ""), `{"amount":5}`, "", "", strings.Replace(wantCloudPayload, "api_calls", "com.example.call", 1)},
		{cloudHeader("ce-region", "Z%C3%BCrich%20%22%25", "ce-hop", "-7"), `{"amount":5}`, "", "",
			strings.Replace(wantCloudPayload, `"source"`, `"metadata":{"ce":{"hop":"-7","region":"Zürich \"%"}},"source"`, 1)},
		{cloudHeader("ce-id", "%C0%A0"), `{"amount":5}`, "cloudevent_invalid", "", ""},
		{cloudHeader("ce-id", "a%zz"), `{"amount":5}`, "cloudevent_invalid", "", ""},
		{cloudHeader("ce-id", "a%4"), `{"amount":5}`, "cloudevent_invalid", "", ""},
		{cloudHeader("ce-id", "a%+4"), `{"amount":5}`, "cloudevent_invalid", "", ""},
		{cloudHeader("ce-id", "\xff"), `{"amount":5}`, "cloudevent_invalid", "", ""},
		{cloudHeader("ce-id", "a%20b"), `{"amount":5}`, "event_id_invalid", "", ""},
		{cloudHeader("ce-id", ""), `{"amount":5}`, "member_missing", "", ""},
		{cloudHeader("ce-time", ""), `{"amount":5}`, "member_missing", "", ""},
		{cloudHeader("ce-time", "noon"), `{"amount":5}`, "timestamp_invalid", "", ""},
		{cloudHeader("ce-specversion", "0.3"), `{"amount":5}`, "cloudevent_invalid", "", ""},
		{cloudHeader("ce-datacontenttype", "application/json"), `{"amount":5}`, "cloudevent_invalid", "", ""},
		{cloudHeader("ce-a-b", "1"), `{"amount":5}`, "cloudevent_invalid", "", ""},
		{cloudHeader("ce-region", "%00"), `{"amount":5}`, "cloudevent_invalid", "", ""},
		{cloudHeader("Content-Type", "text/plain"), `{"amount":5}`, "cloudevent_invalid", "", ""},
		{twice, `{"amount":5}`, "cloudevent_invalid", "", ""},
		{folded, `{"amount":5}`, "cloudevent_invalid", "", ""},
		{cloudHeader(), ``, "member_missing", "", ""},
		{cloudHeader(), `{}`, "member_missing", "/amount", ""},
		{cloudHeader(), `5`, "cloudevent_invalid", "", ""},
		{cloudHeader(), `{"amount":5,"x":1}`, "unknown_member", "/x", ""},
		{cloudHeader(), `{"amount":5,"metadata":{"ce":1}}`, "metadata_invalid", "/metadata", ""},
	} {
		checkCloudItem(t, fmt.Sprint("case ", i), onlyItem(DecodeCloudEventBinary(c.header, []byte(c.body))), c.code, c.pointer, c.payload)
	}
	for _, body := range []string{`{`, `{"amount":5}{}`, `{"amount":5,"amount":5}`, "\xff"} {
		if items, err := DecodeCloudEventBinary(cloudHeader(), []byte(body)); err == nil || err.(*domain.Error).Code != "malformed_json" {
			t.Errorf("%s: %+v, %v", body, items, err)
		}
	}
}

// Headers are a map. If there are several faults, the reported one must not depend on
// the map's order.
func TestHeaderFaultsAreDeterministic(t *testing.T) {
	for range 50 {
		items, err := DecodeCloudEventBinary(cloudHeader("ce-a-1", "x", "ce-b-2", "x", "ce-c-3", "x", "ce-d-4", "x"),
			[]byte(`{"amount":5}`))
		if err != nil || !strings.Contains(items[0].Err.Message, `"a-1"`) {
			t.Fatal(err, items[0].Err)
		}
	}
}

func TestTraceParentIsNoPayload(t *testing.T) {
	for value, want := range map[string]string{
		trace: trace, strings.ToUpper(trace): "", trace + "0": "", strings.Replace(trace, "-", "0", 1): "",
		strings.Replace(trace, "0", "-", 1): "",
	} {
		items, err := DecodeCloudEvent([]byte(cloudEvent("traceparent", `"`+value+`"`)))
		if err != nil || items[0].Err != nil {
			t.Fatal(err, items)
		}
		if event := items[0].Event; event.TraceParent != want || string(event.Payload()) != wantCloudPayload {
			t.Errorf("%s: %q, %s", value, event.TraceParent, event.Payload())
		}
	}
}

// Events with equal ids but different sources, or one without a source, are different.
func TestSourceIsPartOfThePayload(t *testing.T) {
	seen := map[string]string{string(decodeOne(t, element()).Event.Payload()): "plain"}
	for _, source := range []string{"/a", "/b", "/B"} {
		items, err := DecodeCloudEvent([]byte(cloudEvent("source", `"`+source+`"`)))
		if err != nil || items[0].Err != nil {
			t.Fatal(err, items)
		}
		if other, taken := seen[string(items[0].Event.Payload())]; taken {
			t.Errorf("%s has the payload of %s", source, other)
		}
		seen[string(items[0].Event.Payload())] = source
	}
}
