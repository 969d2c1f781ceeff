package meterplex

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Events are sent in batches and in order, each verdict is reported, and those that are not counted are kept until they are acknowledged.
func TestEventsAreSent(t *testing.T) {
	for _, memory := range []bool{false, true} {
		s, dir := newService(t), t.TempDir()
		c, got := newClient(t, s, dir, func(o *Options) { o.BatchAge, o.BatchEvents, o.Memory = time.Hour, 2, memory })
		record(t, c, "a", "b", "c", "a")
		_, err := c.Record(t.Context(), Event{EventID: "a", Feature: "api_calls", Amount: 2})
		ok(t, err)
		_, err = c.Record(t.Context(), Event{EventID: "r", Feature: "unknown", Amount: 1, Metadata: map[string]any{"k": "v"}})
		ok(t, err)
		flush(t, c)
		st := c.Stats()
		if st.Accepted != 3 || st.Duplicates+st.Conflicts != 2 || st.Rejected != 1 || st.Waiting != 0 || st.WaitingBytes != 0 {
			t.Errorf("%+v", st)
		}
		if fmt.Sprint(s.order) != "[a b c]" {
			t.Error(s.order)
		}
		var ids []string
		for _, v := range got.verdicts {
			ids = append(ids, v.EventID)
			if v.EventID == "r" && (v.Status != "rejected" || v.Code != "feature_not_found" || v.Remedy == "" ||
				!strings.Contains(string(v.JSON), `"later":1`)) {
				t.Errorf("%+v", v)
			}
		}
		if fmt.Sprint(ids) != "[a b c a a r]" {
			t.Error(ids)
		}
		for _, b := range s.batches {
			if h := b.header; len(b.ids) > 2 || h.Get("Authorization") != "Bearer mp_test_key" ||
				h.Get("User-Agent") != "meterplex-go/0.1.0" || h.Get("Content-Encoding") != "gzip" {
				t.Errorf("%+v", b)
			}
		}
		kept := map[string]Rejection{}
		for r, err := range c.Rejected() {
			ok(t, err)
			kept[r.Event.EventID] = r
		}
		if r := kept["r"]; r.Event.Metadata["k"] != "v" || r.Verdict.Code != "feature_not_found" || time.Since(r.At) > time.Minute {
			t.Errorf("%+v", kept)
		}
		ok(t, c.Acknowledge("r", "a"))
		for r := range c.Rejected() {
			t.Errorf("%+v", r)
		}
		c.Close(t.Context())
		if left, _ := filepath.Glob(filepath.Join(dir, "*-*")); len(left) > 0 {
			t.Errorf("%v remain", left)
		}
	}
}

const problemJSON = "application/problem+json"

// Each row of the table of answers. The service answers so until the events were sent a few times; then it counts them.
func TestAnswers(t *testing.T) {
	const problem = `{"code":"body_invalid","detail":"d","traceId":"t"}`
	answers := []struct {
		name, media string
		status      int
		body        string
		damaged     bool // an event that is refused alone
	}{
		{"a proxy's 200", "text/html", 200, "hello", false},
		{"a proxy's 202", "text/html", 202, "hello", false},
		{"200 with verdicts", "application/json", 200, `{"events":[{"eventId":"a","status":"accepted"}]}`, false},
		{"202 without verdicts", "application/json", 202, `{"accepted":1}`, false},
		{"202 with other verdicts", "application/json", 202, `{"events":[{"eventId":"x","status":"accepted"}]}`, false},
		{"202 without a status", "application/json", 202, `{"events":[{"eventId":"a"}]}`, false},
		{"202 cut", "application/json", 202, `{"events":[{"eventId":"a","status":"accepted"`, false},
		{"408", "text/plain", 408, "", false},
		{"429", problemJSON, 429, `{"code":"rate_limited"}`, false},
		{"500", problemJSON, 500, `{"code":"internal"}`, false},
		{"503", "text/html", 503, "", false},
		{"a redirect", "text/html", 302, "", false},
		{"no service", "text/html", 404, "", false},
		{"another address", problemJSON, 404, `{"code":"not_found"}`, false},
		{"another method", problemJSON, 405, `{"code":"method_not_allowed"}`, false},
		{"a proxy's 400", "text/html", 400, "", false},
		{"400 without a code", problemJSON, 400, `{}`, false},
		{"400", problemJSON, 400, problem, true},
		{"413", problemJSON, 413, `{"code":"body_too_large"}`, true},
		{"422", problemJSON, 422, `{"code":"x"}`, true},
	}
	for _, a := range answers {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			s, dir := newService(t), t.TempDir()
			n := 0
			s.answer = func(w http.ResponseWriter, r *http.Request, events []json.RawMessage) bool {
				if r.URL.Path != "/api/v1/usage/events" {
					t.Errorf("the key goes to %s", r.URL.Path)
				}
				if n++; n > 5 && !a.damaged {
					return false
				}
				w.Header().Set("Location", "http://"+r.Host+"/elsewhere")
				w.Header().Set("Content-Type", a.media)
				w.WriteHeader(a.status)
				_, _ = io.WriteString(w, a.body)
				return true
			}
			c, got := newClient(t, s, dir, nil)
			record(t, c, "a")
			flush(t, c)
			damaged, _ := filepath.Glob(filepath.Join(dir, "damaged", "event-*.json"))
			if a.damaged {
				if st := c.Stats(); len(damaged) != 1 || st.Accepted != 0 || st.Damaged != 1 || fmt.Sprint(got.codes()) != "[damaged]" {
					t.Errorf("%v %+v %v", damaged, st, got.codes())
				}
				return
			}
			if st := c.Stats(); len(damaged) != 0 || st.Accepted != 1 || fmt.Sprint(s.order) != "[a]" {
				t.Errorf("%v %+v", damaged, st)
			}
		})
	}
}

// A batch that is refused whole is halved: only the event that the service cannot read is moved away.
func TestABatchIsHalved(t *testing.T) {
	s, dir := newService(t), t.TempDir()
	s.answer = func(w http.ResponseWriter, _ *http.Request, events []json.RawMessage) bool {
		bad := slices.ContainsFunc(events, func(e json.RawMessage) bool { return headOf(e).EventID == "bad" })
		if bad {
			w.Header().Set("Content-Type", problemJSON)
			w.WriteHeader(400)
			_, _ = io.WriteString(w, `{"code":"malformed_json","detail":"d"}`)
		}
		return bad
	}
	c, got := newClient(t, s, dir, func(o *Options) { o.BatchAge = time.Hour })
	record(t, c, "a", "b", "bad", "c", "d", "e")
	flush(t, c)
	if fmt.Sprint(s.order) != "[a b c d e]" || fmt.Sprint(got.codes()) != "[damaged]" || c.Stats().Damaged != 1 {
		t.Errorf("%v %v", s.order, got.codes())
	}
	files, _ := filepath.Glob(filepath.Join(dir, "damaged", "event-*.json"))
	text, _ := os.ReadFile(strings.Join(files, ""))
	if !strings.HasPrefix(string(text), `{"event":{"amount":1,"eventId":"bad",`) ||
		!strings.Contains(string(text), `},"problem":{"code":"malformed_json","detail":"d"},"at":"`) {
		t.Errorf("%s", text)
	}
	if text := string(damagedFile([]byte("no JSON"), &Error{JSON: []byte("{}")})); !strings.HasPrefix(text,
		`{"event":"no JSON","problem":{},"at":"`) {
		t.Error(text)
	}
}

// An event without an eventId, which no SDK writes, gets its verdict by its place, and does not stop the queue.
func TestAnEventWithoutAnID(t *testing.T) {
	s := newService(t)
	s.answer = func(w http.ResponseWriter, _ *http.Request, _ []json.RawMessage) bool {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(202)
		_, _ = io.WriteString(w, `{"events":[{"index":0,"status":"rejected","code":"member_missing","reason":"eventId is missing"}]}`)
		return true
	}
	c, _ := newClient(t, s, "", func(o *Options) { o.Memory = true })
	_, err := c.own.Append([][]byte{[]byte("{}")})
	ok(t, err)
	flush(t, c)
	if s := c.Stats(); s.Rejected != 1 {
		t.Errorf("%+v", s)
	}
}

// A refused key keeps all events; a new key sends them at once.
func TestANewKeySendsWhatWaits(t *testing.T) {
	for _, status := range []int{401, 403} {
		s := newService(t)
		s.answer = func(w http.ResponseWriter, r *http.Request, _ []json.RawMessage) bool {
			if r.Header.Get("Authorization") == "Bearer mp_test_new" {
				return false
			}
			w.Header().Set("Content-Type", problemJSON)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"code":"unauthenticated","detail":"d"}`)
			return true
		}
		c, got := newClient(t, s, t.TempDir(), nil)
		record(t, c, "a")
		eventually(t, "the error", func() bool { return len(got.codes()) == 1 })
		record(t, c, "b")
		if st := c.Stats(); st.Waiting != 2 || code(st.LastError) != "unauthenticated" {
			t.Errorf("%+v", st)
		}
		ok(t, c.SetKey("mp_test_new"))
		flush(t, c)
		if fmt.Sprint(s.order, got.codes()) != "[a b] [unauthenticated]" {
			t.Errorf("%v %v", s.order, got.codes())
		}
	}
}

// A batch is repeated with the same bytes, at least after Retry-After, is marked as late, and its failure is reported once.
func TestAnOutage(t *testing.T) {
	s := newService(t)
	var first, second time.Time
	late := false
	s.answer = func(w http.ResponseWriter, r *http.Request, _ []json.RawMessage) bool {
		switch len(s.batches) {
		case 1:
			first = time.Now()
			w.Header().Set("Retry-After", "1")
		case 2:
			second = time.Now()
		}
		late = r.Header.Get("Meterplex-Replay") == "offline"
		if len(s.batches) < 8 {
			w.WriteHeader(503)
		}
		return len(s.batches) < 8
	}
	c, got := newClient(t, s, t.TempDir(), func(o *Options) { o.WarnAge = time.Nanosecond })
	record(t, c, "a")
	flush(t, c)
	if second.Sub(first) < time.Second {
		t.Errorf("Retry-After is not kept: %s", second.Sub(first))
	}
	if !late || s.batches[0].header.Get("Meterplex-Replay") != "" {
		t.Error("the late batch is not marked, or the first is")
	}
	if fmt.Sprint(got.codes()) != "[too_old unavailable]" {
		t.Error(got.codes())
	}
}

// A service that does not answer, and one whose answer is lost.
func TestALostAnswer(t *testing.T) {
	s := newService(t)
	s.answer = func(w http.ResponseWriter, _ *http.Request, events []json.RawMessage) bool {
		switch len(s.batches) {
		case 1:
			panic(http.ErrAbortHandler)
		case 2:
			_ = s.verdicts(events)
			panic(http.ErrAbortHandler)
		case 3:
			time.Sleep(200 * time.Millisecond) // longer than an attempt
		}
		return false
	}
	c, _ := newClient(t, s, t.TempDir(), func(o *Options) { o.AttemptTimeout = 100 * time.Millisecond })
	record(t, c, "a")
	flush(t, c)
	if st := c.Stats(); st.Duplicates != 1 || len(s.order) != 1 {
		t.Errorf("%+v", st)
	}
}

// Close and Flush end by their context, the next client sends the rest, and Record says that the client is closed.
func TestCloseLeavesTheRest(t *testing.T) {
	s, dir := newService(t), t.TempDir()
	s.answer = func(w http.ResponseWriter, _ *http.Request, _ []json.RawMessage) bool {
		w.WriteHeader(503)
		return true
	}
	c, _ := newClient(t, s, dir, nil)
	_, err := c.Record(t.Context(), Event{EventID: "a", Feature: "f", Amount: 1, Timestamp: time.Now().Add(-time.Hour)})
	ok(t, err)
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if rest := c.Flush(short); rest.Events != 1 || rest.Oldest < time.Hour {
		t.Errorf("%+v", rest)
	}
	if rest := c.Close(short); rest.Events != 1 {
		t.Errorf("%+v", rest)
	}
	if _, err := c.Record(t.Context(), Event{Feature: "f", Amount: 1}); code(err) != "closed" {
		t.Error(err)
	}
	c.Close(t.Context()) // again
	s.with(func() { s.answer = nil })
	next, _ := newClient(t, s, dir, nil)
	if rest := next.Close(t.Context()); rest.Events != 0 || fmt.Sprint(s.order) != "[a]" {
		t.Errorf("%+v, %v", rest, s.order)
	}
}
