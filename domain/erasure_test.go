package domain

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
)

func testEraser() *Eraser {
	return NewEraser([]byte("key"), []Grouping{{Feature: "f", Keys: []string{"region"}}, {Feature: "f", Keys: []string{"model"}}})
}

// Personal data leaves the payload of each subject; the other members stay as they are, and a second erasure changes nothing.
func TestP6_PayloadsAreErased(t *testing.T) {
	e := testEraser()
	name := func(key, value string) string { return e.Pseudonym(key, value) }
	usage := `{"amount":1,"eventId":"a/b","feature":"f","metadata":{"model":"m","region":"eu","user":"ann"},"timestamp":"2026-05-01T00:00:00Z","type":"usage"}`
	erased := `{"amount":1,"eventId":"a/b","feature":"f","metadata":{"model":"` + name("model", "m") + `","region":"` + name("region", "eu") + `"},"timestamp":"2026-05-01T00:00:00Z","type":"usage"}`
	for what, c := range map[string]struct {
		subject       events.Subject
		payload, want string
	}{
		"usage":           {events.UsageRecorded, usage, erased},
		"other feature":   {events.UsageRecorded, `{"feature":"g","metadata":{"region":"eu"},"x":"<&>"}`, `{"feature":"g","x":"<&>"}`},
		"null and object": {events.UsageCorrected, `{"feature":"f","metadata":{"region":null,"model":{"a":1}}}`, `{"feature":"f","metadata":{"model":"other"}}`},
		"numbers":         {events.UsageRetracted, `{"feature":"f","metadata":{"region":12,"model":true}}`, `{"feature":"f","metadata":{"model":"` + name("model", "true") + `","region":"` + name("region", "12") + `"}}`},
		"other":           {events.UsageAdmitted, `{"feature":"f","metadata":{"region":"other"},"admitted":{"by":"consume"}}`, `{"feature":"f","metadata":{"region":"other"},"admitted":{"by":"consume"}}`},
		"retried":         {events.UsageRetried, `{"rawPosition":1,"usage":` + usage + `}`, `{"rawPosition":1,"usage":` + erased + `}`},
		"refused":         {events.UsageRefused, `{"code":"c","reason":"the number 49170","payload":{"metadata":1},"bytes":3}`, `{"code":"c","reason":"erased","bytes":3}`},
		"samples":         {events.RefusalsSeen, `{"count":2,"samples":[{"eventId":"a","payload":"ann"},{"code":"c"}]}`, `{"count":2,"samples":[{"eventId":"a"},{"code":"c"}]}`},
		"parked":          {events.RecordParked, `{"topic":"t","key":"YW5u","value":"YW5u","bytes":3}`, `{"topic":"t","bytes":3}`},
		"failed usage":    {events.PublishFailed, `{"sourceSubject":"meterplex.usage.event.recorded.v1","payload":` + usage + `}`, `{"sourceSubject":"meterplex.usage.event.recorded.v1","payload":` + erased + `}`},
		"failed tenant":   {events.PublishFailed, `{"sourceSubject":"meterplex.catalogue.tenant.created.v1","payload":{"name":"Ann","class":"small"}}`, `{"sourceSubject":"meterplex.catalogue.tenant.created.v1","payload":{"name":"erased","class":"small"}}`},
		"failed verdict":  {events.AggregationFailed, `{"sourceSubject":"meterplex.usage.event.validated.v1","payload":{"amount":1,"name":"n"}}`, `{"sourceSubject":"meterplex.usage.event.validated.v1","payload":{"amount":1,"name":"n"}}`},
		"no copy":         {events.AggregationFailed, `{"sourceSubject":"x","payload":null}`, `{"sourceSubject":"x","payload":null}`},
		"tenant":          {events.TenantChanged, `{"id":"i","name":"Ann","class":"small","externalIds":["crm"],"metadata":{"a":"b"},"reason":"r"}`, `{"id":"i","name":"erased","class":"small","reason":"r"}`},
		"feature":         {events.FeatureDefined, `{"name":"Calls"}`, `{"name":"Calls"}`},
	} {
		for range 2 {
			got, err := e.Payload(c.subject, []byte(c.payload), "")
			if err != nil || string(got) != c.want {
				t.Errorf("%s: %v\n%s, want\n%s", what, err, got, c.want)
			}
			c.payload = c.want
		}
	}
}

// A row keeps its form; its hash is that of the erased content, and a conflict stays one.
func TestP6_RowsAreErased(t *testing.T) {
	e, at := testEraser(), time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	first := LoggedRow{Subject: events.UsageRecorded, Key: "u/a/b", OccurredAt: at, Body: []byte(`[1,"f",{"region":"eu"}]`)}
	for body, want := range map[string]string{
		`[1,"f"]`:                            `[1,"f"]`,
		`[1,"f",{"user":"ann"}]`:             `[1,"f"]`,
		`[1,"f",{"user":"ann"},"/x"]`:        `[1,"f",null,"/x"]`,
		`[1,"f",null,"/x"]`:                  `[1,"f",null,"/x"]`,
		`[1,"f",{"region":"eu","u":1}]`:      `[1,"f",{"region":"` + e.Pseudonym("region", "eu") + `"}]`,
		`{"feature":"f","metadata":{"a":1}}`: `{"feature":"f"}`,
	} {
		r := first
		r.Body, r.Hash = []byte(body), []byte{1}
		got, changed, err := e.Row(r, nil)
		if err != nil || string(got.Body) != want || changed != (body != want) || changed && got.Hash != nil || got.Key != r.Key {
			t.Errorf("%s: %s %v %v", body, got.Body, changed, err)
		}
	}
	stays, _, err := e.Row(first, nil)
	if err != nil {
		t.Fatal(err)
	}
	conflict := func(user string) LoggedRow {
		payload := `{"amount":1,"eventId":"a/b","feature":"f","metadata":{"region":"eu","user":"` + user + `"},"timestamp":"2026-05-01T00:00:00Z","type":"usage"}`
		sum := sha256.Sum256([]byte(payload))
		hash := hex.EncodeToString(sum[:])
		return LoggedRow{Subject: events.UsageConflicted, Key: events.KeyConflict("a/b", append([]byte{1}, sum[:]...)),
			Body: []byte(`{"eventId":"a/b","rawPosition":7,"firstHash":"` + first.payloadHash() + `","conflictHash":"` + hash + `","payload":` + payload + `}`)}
	}
	keys := map[string]bool{}
	for _, user := range []string{"ann", "bob", "ann"} {
		was := conflict(user)
		got, changed, err := e.Row(was, &stays)
		if err != nil || !changed || !strings.Contains(string(got.Body), `"firstHash":"`+stays.payloadHash()+`"`) || strings.Contains(string(got.Body), "eu") {
			t.Fatalf("%s %v", got.Body, err)
		}
		hash := got.Key[strings.LastIndexByte(got.Key, '/')+1:]
		if !strings.HasPrefix(got.Key, "k/a/b/01") || got.Key == was.Key || !strings.Contains(string(got.Body), `"conflictHash":"`+hash[2:]+`"`) || hash[2:] == stays.payloadHash() {
			t.Errorf("%s of %s", got.Key, got.Body)
		}
		keys[got.Key] = true
		if again, changed, err := e.Row(got, &stays); err != nil || changed {
			t.Errorf("again: %s %v", again.Body, err)
		}
	}
	if len(keys) != 2 {
		t.Errorf("%d keys of 2 conflicts", len(keys))
	}
	for key, form := range map[string]string{"i/usage.commands/1/2/00112233445566aa/-1": "i/usage.commands/1/2/", "q/usage.raw/1/2/00112233445566aa": "q/usage.raw/1/2/"} {
		subject := events.UsageRefused
		if key[0] == 'q' {
			subject = events.RecordParked
		}
		got, changed, err := e.Row(LoggedRow{Subject: subject, Key: key, Body: []byte(`{"code":"c","key":"YQ==","payload":{}}`)}, nil)
		if err != nil || !changed || !strings.HasPrefix(got.Key, form) || strings.Contains(got.Key, "00112233445566aa") || len(got.Key) != len(key) {
			t.Errorf("%s: %s %v", key, got.Key, err)
		}
	}
}

// The same value has one pseudonym for each member and key.
func TestPseudonyms(t *testing.T) {
	e := testEraser()
	if e.Pseudonym("a", "v") != testEraser().Pseudonym("a", "v") || e.Pseudonym("a", "v") == e.Pseudonym("b", "v") || e.Pseudonym("a", "v") == NewEraser([]byte("x"), nil).Pseudonym("a", "v") ||
		!pseudonym.MatchString(e.Pseudonym("a", "v")) || e.Pseudonym("a", GroupOther) != GroupOther {
		t.Error(e.Pseudonym("a", "v"))
	}
}
