package commands

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// FuzzUsageMessage: for any message of usage.commands, each event is accepted as by
// HTTP or refused, once, with texts that the log can store.
func FuzzUsageMessage(f *testing.F) {
	for _, value := range []string{oneCall, `{"events":[` + oneCall + `]}`, `{"events":[` + oneCall + `,{"eventId":"e2"},7,null]}`, `{"events":null}`, ``, `null`, `[]`, `{`,
		`{}],"events":[{}`, strings.Replace(oneCall, "e1", `\u0000`, 1), strings.Replace(oneCall, "e1", `\ud800`, 1), strings.Replace(oneCall, `5,`, `5.0,`, 1),
		strings.Replace(oneCall, "}", `,"metadata":{"a":"\u0000"}}`, 1), strings.Replace(oneCall, "}", `,"x":1}`, 1), "\uFEFF" + oneCall, "\xff"} {
		f.Add([]byte(value), activeTenant.String(), "", "", int64(7))
		f.Add([]byte(value), "", suspendedTenant.String(), "a message\x00", int64(-1))
	}
	f.Add([]byte(oneCall), "{"+activeTenant.String()+"}", "", strings.Repeat("m", 300), int64(1)<<62)
	f.Add([]byte(oneCall), activeTenant.String(), "platform", "é", int64(0))
	f.Fuzz(func(t *testing.T, value []byte, key, tenant, id string, offset int64) {
		header := []string{HeaderMessageID, id}
		if tenant != "" {
			header = append(header, events.HeaderTenant, tenant)
		}
		r := record(key, string(value), offset, header...)
		m := newMessage(&r)
		if m.id != printable(m.id) || len(m.id) > maxMessageID || m.named != printable(m.named) {
			t.Fatalf("a message is called %q of %q", m.id, m.named)
		}
		m.decode()
		for _, item := range m.items {
			if (item.Event == nil) == (item.Err == nil) || item.Err != nil && item.Err.Code == "message_unreadable" {
				t.Fatalf("%q: %+v", value, item)
			}
		}
		first, log := decided(t, r)
		if len(log.kept) == 0 && len(m.items) > 0 {
			t.Fatalf("%q came to nothing", value)
		}
		for key, p := range log.kept {
			checkKept(t, key, p)
		}
		if again, _ := decided(t, r); !bytes.Equal(again, first) {
			t.Fatalf("%q is decided %s, then %s", value, first, again)
		}
	})
}

// decided returns the keys of a message's events in the log.
func decided(t *testing.T, r events.Record) ([]byte, *ledger) {
	t.Helper()
	c, log, _ := newUsageCommands()
	if err := c.Process(t.Context(), []events.Record{r}); err != nil {
		t.Fatal(err)
	}
	keys := map[string]string{}
	for key, p := range log.kept {
		keys[key] = string(codec.PayloadHash(&p))
	}
	text, err := json.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	return text, log
}

// checkKept checks that the log can store the events.
func checkKept(t *testing.T, key string, p events.Pending) {
	t.Helper()
	if !json.Valid(codec.PayloadOf(&p)) || bytes.Contains(codec.PayloadOf(&p), []byte(`\u0000`)) && hasNull(codec.PayloadOf(&p)) || p.EventID == uuid.Nil ||
		len(p.DedupeKey) > 600 || strings.ContainsFunc(p.DedupeKey, func(r rune) bool { return r < ' ' || r > '~' }) {
		t.Fatalf("%q: %s", key, codec.PayloadOf(&p))
	}
	if p.Subject != events.UsageRecorded {
		return
	}
	event, fault := domain.DecodePayload(codec.PayloadOf(&p))
	if fault != nil || events.KeyUsage(event.EventID) != p.DedupeKey || !event.Timestamp.Equal(p.OccurredAt) || p.Canonical != strictjson.Version {
		t.Fatalf("%s is kept as %+v, %v", codec.PayloadOf(&p), p, fault)
	}
}

// hasNull finds U+0000, which JSONB cannot store, but not an escaped backslash before u0000.
func hasNull(doc []byte) bool {
	var v any
	if json.Unmarshal(doc, &v) != nil {
		return true
	}
	return holdsNull(v)
}

func holdsNull(v any) bool {
	switch v := v.(type) {
	case string:
		return strings.ContainsRune(v, 0)
	case []any:
		for _, e := range v {
			if holdsNull(e) {
				return true
			}
		}
	case map[string]any:
		for name, e := range v {
			if strings.ContainsRune(name, 0) || holdsNull(e) {
				return true
			}
		}
	}
	return false
}
