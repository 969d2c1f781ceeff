package intake

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/strictjson"
)

func TestConsumptionsAreDecoded(t *testing.T) {
	c, err := DecodeConsume([]byte(` {"amount": 9007199254740991, "metadata": {"b": 1.0, "a": "\u00e9"}, "eventId": "!~"} `), "calls")
	want := Consumption{EventID: "!~", Feature: "calls", Amount: domain.MaxAmount, Metadata: []byte(`{"a":"é","b":1}`)}
	if err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("%+v %s, %v", c, c.Metadata, err)
	}
	list, err := DecodeConsumes(
		[]byte(`{"items":[{"feature":"calls","eventId":"1","amount":1},{"amount":2,"eventId":"2","feature":"tokens","metadata":{}}]}`))
	if err != nil || !reflect.DeepEqual(list, []Consumption{{EventID: "1", Feature: "calls", Amount: 1},
		{EventID: "2", Feature: "tokens", Amount: 2}}) {
		t.Errorf("%+v, %v", list, err)
	}
	for n := 1; n <= MaxTogether+1; n++ {
		list, err := DecodeConsumes(itemsOf(n))
		if n <= MaxTogether && (err != nil || len(list) != n) || n > MaxTogether && err == nil {
			t.Errorf("%d items: %d, %v", n, len(list), err)
		}
	}
}

// A request with so many members that their names are not compared is refused, alone and as an item.
func TestRequestsOfManyMembersAreRefused(t *testing.T) {
	const first = `{"feature":"calls","eventId":"first","amount":1}`
	many := `"eventId":"a"` + strings.Repeat(`,"amount":1`, 998) // one name is left after the bound
	_, err := DecodeConsume([]byte("{"+many+"}"), "calls")
	refusedAt(t, "alone", err, "malformed_json", "")
	_, err = DecodeConsumes([]byte(`{"items":[` + first + `,{"feature":"calls",` + many + `}]}`))
	refusedAt(t, "as an item", err, "items_invalid", "/items/1")
	metadata := `"eventId":"a","amount":1,"metadata":` + mostMembers(2*MaxMetadata)
	_, err = DecodeConsume([]byte("{"+metadata+"}"), "calls")
	refusedAt(t, "metadata", err, "metadata_too_large", "/metadata")
	_, err = DecodeConsumes([]byte(`{"items":[` + first + `,{"feature":"calls",` + metadata + `}]}`))
	refusedAt(t, "metadata of an item", err, "metadata_too_large", "/items/1/metadata")
}

// itemsOf returns a body with n items.
func itemsOf(n int) []byte {
	items := make([]string, n)
	for i := range items {
		items[i] = fmt.Sprintf(`{"feature":"calls","eventId":"%d","amount":1}`, i)
	}
	return []byte(`{"items":[` + strings.Join(items, ",") + `]}`)
}

func TestBadConsumptionsAreRefused(t *testing.T) {
	for _, c := range []struct{ members, code, pointer string }{
		{`"eventId":"a","amount":0`, "amount_invalid", "/amount"},
		{`"eventId":"a","amount":-1`, "amount_invalid", "/amount"},
		{`"eventId":"a","amount":1.0`, "amount_invalid", "/amount"},
		{`"eventId":"a","amount":1e3`, "amount_invalid", "/amount"},
		{`"eventId":"a","amount":"1"`, "amount_invalid", "/amount"},
		{`"eventId":"a","amount":9007199254740992`, "amount_invalid", "/amount"},
		{`"eventId":"a","amount":null`, "amount_invalid", "/amount"},
		{`"eventId":"a"`, "member_missing", "/amount"},
		{`"amount":1`, "member_missing", "/eventId"},
		{`"eventId":"","amount":1`, "event_id_invalid", "/eventId"},
		{`"eventId":"` + strings.Repeat("x", 256) + `","amount":1`, "event_id_invalid", "/eventId"},
		{`"eventId":"a b","amount":1`, "event_id_invalid", "/eventId"},
		{`"eventId":"a\u0000","amount":1`, "event_id_invalid", "/eventId"},
		{`"eventId":5,"amount":1`, "event_id_invalid", "/eventId"},
		{`"eventId":"a","amount":1,"metadata":[]`, "metadata_invalid", "/metadata"},
		{`"eventId":"a","amount":1,"metadata":{"a":"` + strings.Repeat("x", 4096) + `"}`, "metadata_too_large", "/metadata"},
		{`"eventId":"a","amount":1,"timestamp":"2026-05-01T12:00:00Z"`, "unknown_member", "/timestamp"},
		{`"eventId":"a","amount":1,"type":"usage"`, "unknown_member", "/type"},
		{`"eventId":"a","amount":1,"a/b~":1`, "unknown_member", "/a~1b~0"},
		{`"eventId":"a","amount":1,"amount":1`, "malformed_json", ""},
		{`"eventId":"a","amount":01`, "malformed_json", ""},
		{`"eventId":"a","amount":1,`, "malformed_json", ""},
	} {
		_, err := DecodeConsume([]byte("{"+c.members+"}"), "calls")
		refusedAt(t, c.members, err, c.code, c.pointer)
		_, err = DecodeConsumes([]byte(`{"items":[{"feature":"calls","eventId":"first","amount":1},{"feature":"calls",` + c.members +
			`}]}`))
		if c.pointer != "" {
			c.pointer = "/items/1" + c.pointer
		}
		refusedAt(t, "item "+c.members, err, c.code, c.pointer)
	}
	const good = `{"feature":"calls","eventId":"a","amount":1}`
	for _, c := range []struct{ body, code, pointer string }{
		{`{"items":[]}`, "items_invalid", "/items"},
		{string(itemsOf(MaxTogether + 1)), "items_invalid", "/items"},
		{`{"items":{}}`, "items_invalid", "/items"},
		{`{"items":null}`, "items_invalid", "/items"},
		{`{}`, "member_missing", "/items"},
		{`{"items":[` + good + `],"dryRun":true}`, "unknown_member", "/dryRun"},
		{`{"items":[` + good + `,{"feature":"b","eventId":"b","amount":1},` + good + `]}`, "event_id_invalid", "/items/2/eventId"},
		{`{"items":[` + good + `,{"feature":"API","eventId":"b","amount":1}]}`, "feature_invalid", "/items/1/feature"},
		{`{"items":[` + good + `,{"eventId":"b","amount":1}]}`, "member_missing", "/items/1/feature"},
		// the first fault
		{`{"items":[` + good + `,{"feature":"calls","eventId":"b","amount":0},{"feature":"calls","eventId":"","amount":1}]}`,
			"amount_invalid", "/items/1/amount"},
		{`{"items":[1]}`, "malformed_json", ""},
		{`{"items":[` + good + `,]}`, "malformed_json", ""},
		{`{"items":[` + good + `]`, "malformed_json", ""},
		{`[` + good + `]`, "malformed_json", ""},
		{good, "unknown_member", "/feature"},
		{``, "malformed_json", ""},
	} {
		_, err := DecodeConsumes([]byte(c.body))
		refusedAt(t, c.body, err, c.code, c.pointer)
	}
	_, err := DecodeConsume([]byte(good), "calls") // its feature is in the path
	refusedAt(t, "a feature in the body", err, "unknown_member", "/feature")
}

func refusedAt(t *testing.T, name string, err error, code, pointer string) {
	t.Helper()
	refusal, _ := err.(*domain.Error)
	if refusal == nil || refusal.Code != code || refusal.Pointer != pointer || refusal.Message == "" {
		t.Errorf("%.120s: %#v instead of %s at %q", name, err, code, pointer)
	}
}

// A retry with other spacing, member order or escapes has the same canonical form, and every other value has another.
func TestP2_TheSameConsumptionHasTheSameForm(t *testing.T) {
	write := func(m model, seed uint64) []byte {
		w := &writer{Rand: rand.New(rand.NewPCG(seed, 1))}
		members := []func(){
			func() { w.text("eventId"); w.token(":"); w.text(m.id) },
			func() { w.text("amount"); w.token(":"); w.token(strconv.Itoa(m.amount)) },
		}
		if len(m.metadata) > 0 || w.IntN(2) == 0 {
			members = append(members, func() { w.text("metadata"); w.token(":"); w.value(m.metadata) })
		}
		w.object(members)
		return []byte(w.String())
	}
	sent := func(t *rapid.T, body []byte, feature string) string {
		c, err := DecodeConsume(body, feature)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		return string(c.Sent())
	}
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		one, two := write(m, rapid.Uint64().Draw(t, "seed")), write(m, rapid.Uint64().Draw(t, "other seed"))
		first := sent(t, one, m.feature)
		if again := sent(t, two, m.feature); again != first {
			t.Fatalf("%s\n%s\nbecame\n%s\n%s", one, two, first, again)
		}
		other, feature := m, m.feature
		switch rapid.IntRange(0, 3).Draw(t, "change") {
		case 0:
			other.id += "x"
		case 1:
			other.amount = m.amount%domain.MaxAmount + 1
		case 2:
			other.metadata = append([]pair{{"new", nil}}, m.metadata...)
		case 3:
			feature += "x"
		}
		if changed := sent(t, write(other, 1), feature); changed == first {
			t.Fatalf("%+v and %+v are both %s", m, other, first)
		}
	})
}

// FuzzDecodeConsume: both decoders end with a consumption or a refusal, and the canonical form is JSON as RFC 8785 writes it.
func FuzzDecodeConsume(f *testing.F) {
	for _, seed := range []string{
		`{"eventId":"a","amount":1}`, `{"amount":9007199254740991,"eventId":"\u0061","metadata":{"b":[1.50,"\u00e9",{"c":null}],"a":{}}}`,
		`{"eventId":"a\"\\","amount":1,"metadata":null}`,
		`{"items":[{"feature":"calls","eventId":"a","amount":1,"metadata":{"\ufb33":0.1,"\ud83d\ude00":-0.0}},{"feature":"b","eventId":"b",` +
			`"amount":2}]}`, `{"items":[1,{}],"items":2} x`, string(itemsOf(21)),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var list []Consumption
		if c, err := DecodeConsume(body, "calls"); err == nil {
			list = append(list, c)
		} else if err.(*domain.Error).Code == "" {
			t.Fatalf("%q: %v", body, err)
		}
		again := bytes.Clone(body)
		items, err := DecodeConsumes(again)
		if err != nil && (err.(*domain.Error).Code == "" || len(items) > 0) || err == nil && (len(items) == 0 || len(items) > MaxTogether) {
			t.Fatalf("%q: %v, %v", body, items, err)
		}
		clear(again)
		if same, _ := DecodeConsumes(body); !reflect.DeepEqual(items, same) {
			t.Fatalf("%q: the decoded event shares the body's memory", body)
		}
		for _, c := range append(list, items...) {
			sent := c.Sent()
			if canonical, fault := strictjson.Canonical(sent); fault != nil || !bytes.Equal(canonical, sent) {
				t.Fatalf("%q: %s is not canonical: %s, %v", body, sent, canonical, fault)
			}
			var read struct {
				Amount               int64
				By, EventID, Feature string
				Metadata             json.RawMessage
			}
			if err := json.Unmarshal(sent, &read); err != nil || read.Amount != c.Amount || read.EventID != c.EventID ||
				read.Feature != c.Feature || read.By != "consume" || !bytes.Equal(read.Metadata, c.Metadata) {
				t.Fatalf("%q: %+v is sent as %s, %v", body, c, sent, err)
			}
		}
	})
}
