package intake

import (
	"bytes"
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
)

var fuzzElements = []string{
	element(), element("metadata", `{"b":[1.50,"\u00e9",{"c":null}],"a":{}}`), element("amount", `1e3`),
	element("eventId", `"\ud83d\ude00"`),
	element("metadata", `{"\ufb33":0.1,"\ud83d\ude00":9007199254740993}`), element("type", `"usage"`), element("correctionRef", `1`), `{}`,
	`7`,
	element("timestamp", `"2026-05-31T23:59:59.999999999+23:59"`), element("eventId", `"a\"\\b"`), element("x", `"\ud800"`),
	element("metadata", `{ }`), element("metadata", `null`), element("source", `"//a"`),
}

// mayBeLone finds escapes of surrogates, in a pair or alone.
var mayBeLone = regexp.MustCompile(`(?i)\\ud[89a-f]`)

// isStrict reports whether a body is strict JSON. A lone surrogate may be the fault of one
// element alone, so that a body that may hold some is not decided.
func isStrict(body []byte) (strict, decided bool) {
	return strictjson.Check(body) == nil, !mayBeLone.Match(body)
}

func nest(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

func FuzzDecodeBatch(f *testing.F) {
	for _, e := range fuzzElements {
		f.Add(inBatch(e))
	}
	f.Add(inBatch(fuzzElements...))
	f.Add([]byte(`{"events":[],"events":{}} x`))
	f.Fuzz(func(t *testing.T, body []byte) {
		items, err := DecodeBatch(body)
		again := bytes.Clone(body)
		other, _ := DecodeBatch(again)
		if clear(again); !reflect.DeepEqual(items, other) {
			t.Fatalf("%q: the decoded event shares the body's memory", body)
		}
		if err != nil {
			checkWholeRefusal(t, body, err.(*domain.Error))
			return
		}
		if strict, decided := isStrict(body); decided && !strict {
			t.Fatalf("not strict JSON, but taken: %q", body)
		}
		var reference struct{ Events []json.RawMessage }
		if err := json.Unmarshal(body, &reference); err != nil || len(reference.Events) != len(items) {
			t.Fatalf("%q: %d items, encoding/json finds %d, %v", body, len(items), len(reference.Events), err)
		}
		for i, item := range items {
			checkItem(t, item, reference.Events[i])
		}
	})
}

// checkWholeRefusal compares a malformed_json with encoding/json: a body that is well
// formed there, without duplicates and shallow, may be refused only for its shape.
func checkWholeRefusal(t *testing.T, body []byte, fault *domain.Error) {
	strict, decided := isStrict(body)
	wrongTop := strings.Contains(fault.Message, "the body must be")
	if fault.Code == "malformed_json" && decided && strict && !wrongTop {
		t.Fatalf("%q: %v", body, fault)
	}
}

func checkItem(t *testing.T, item BatchItem, raw []byte) {
	if (item.Event == nil) == (item.Err == nil) {
		t.Fatalf("%s: not exactly one of event and error: %+v", raw, item)
	}
	if item.Err != nil {
		return
	}
	event := item.Event
	again, err := DecodePayload(event.Payload())
	if err != nil || !reflect.DeepEqual(event, again) {
		t.Fatalf("%s\nis %+v\nits payload %s\nis %+v, %v", raw, event, event.Payload(), again, err)
	}
	if canonical, fault := strictjson.Canonical(event.Payload()); fault != nil || !bytes.Equal(canonical, event.Payload()) {
		t.Fatalf("payload %s is not canonical: %s, %v", event.Payload(), canonical, fault)
	}
	checkBody(t, event)
	var sent map[string]any
	if err := json.Unmarshal(raw, &sent); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	if sent["eventId"] != event.EventID || sent["feature"] != event.Feature || sent["amount"] != float64(event.Amount) {
		t.Fatalf("%s became %+v", raw, event)
	}
	if at, err := time.Parse(time.RFC3339Nano, sent["timestamp"].(string)); err != nil ||
		!at.Truncate(time.Microsecond).Equal(event.Timestamp) {
		t.Fatalf("%s became %v, %v", raw, event.Timestamp, err)
	}
	checkMetadata(t, event, sent["metadata"])
}

// checkBody compares the body of usage with the shortest form of its payload: the values that the log has in no other column. A payload
// whose eventId JSON escapes, and that of a correction, is kept whole.
func checkBody(t *testing.T, event *domain.UsageEvent) {
	var of struct{ EventID, Amount, Feature, Metadata, Source json.RawMessage }
	if err := json.Unmarshal(event.Payload(), &of); err != nil {
		t.Fatalf("%s: %v", event.Payload(), err)
	}
	want := event.Payload()
	if event.Type == events.TypeUsage && string(of.EventID) == `"`+event.EventID+`"` {
		values := [][]byte{of.Amount, of.Feature, of.Metadata, of.Source}
		for values[len(values)-1] == nil {
			values = values[:len(values)-1]
		}
		if of.Metadata == nil && of.Source != nil {
			values[2] = []byte("null")
		}
		want = append(append([]byte("["), bytes.Join(values, []byte(","))...), ']')
	}
	if !bytes.Equal(event.Body, want) {
		t.Fatalf("%s is kept as %s, not as %s", event.Payload(), event.Body, want)
	}
}

func checkMetadata(t *testing.T, event *domain.UsageEvent, sent any) {
	var kept map[string]any
	if err := json.Unmarshal(event.Payload(), &kept); err != nil {
		t.Fatalf("%s: %v", event.Payload(), err)
	}
	metadata, there := kept["metadata"]
	if object, _ := sent.(map[string]any); len(object) == 0 {
		if there {
			t.Fatalf("metadata %v became %v", sent, metadata)
		}
		return
	}
	if !reflect.DeepEqual(metadata, sent) {
		t.Fatalf("metadata %v became %v", sent, metadata)
	}
}

// FuzzCloudEvent: an event in structured mode and in binary mode gives the same result.
func FuzzCloudEvent(f *testing.F) {
	f.Add("evt_1", "/s", "com.example", "api_calls", "2026-05-01T12:00:00Z", "Zürich \"%\"", []byte(`{"amount":5,"metadata":{"a":1}}`))
	f.Fuzz(func(t *testing.T, id, source, kind, subject, at, region string, data []byte) {
		attributes := map[string]string{"specversion": "1.0", "id": id, "source": source, "type": kind, "subject": subject, "time": at,
			"region": region}
		header := map[string][]string{}
		structured := []byte("{")
		for name, value := range attributes {
			var encoded strings.Builder
			for _, b := range []byte(value) {
				encoded.WriteString("%" + string("0123456789abcdef"[b>>4]) + string("0123456789ABCDEF"[b&15]))
			}
			header["Ce-"+name] = []string{encoded.String()}
			structured = append(strictjson.AppendString(append(strictjson.AppendString(structured, name), ':'), []byte(value)), ',')
		}
		structured = append(append(append(structured, `"data":`...), data...), '}')
		binary, err := DecodeCloudEventBinary(header, data)
		items, err2 := DecodeCloudEvent(structured)
		if err != nil || err2 != nil {
			return
		}
		if (binary[0].Err == nil) != (items[0].Err == nil) {
			t.Fatalf("%q: structured %v, binary %v", structured, items[0].Err, binary[0].Err)
		}
		if binary[0].Err == nil && !reflect.DeepEqual(binary[0], items[0]) {
			t.Fatalf("%q: %+v, binary %+v", structured, items[0].Event, binary[0].Event)
		}
		again := bytes.Clone(structured)
		other, _ := DecodeCloudEvent(again)
		if clear(again); !reflect.DeepEqual(items, other) {
			t.Fatalf("%q: the decoded event shares the body's memory", structured)
		}
		again = bytes.Clone(data)
		other, _ = DecodeCloudEventBinary(header, again)
		if clear(again); !reflect.DeepEqual(binary, other) {
			t.Fatalf("%q: what is decoded in binary mode shares the body's memory", data)
		}
		if event := items[0].Event; event != nil {
			if again, err := DecodePayload(event.Payload()); err != nil || !bytes.Equal(again.Payload(), event.Payload()) ||
				again.Source != source {
				t.Fatalf("%s: %+v, %v", event.Payload(), again, err)
			}
		}
	})
}
