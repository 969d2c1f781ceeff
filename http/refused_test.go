package http_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"github.com/meterplex/meterplex/domain/codes"
)

// problem is a problem of RFC 9457 with this API's members.
type problem struct {
	Type, Title, Detail, Instance, Code, TraceID, State string
	Status                                              int
	Errors                                              []struct{ Pointer, Code, Detail string }
	Limit, Used, Held, Remaining                        json.Number // of quota_exceeded
	ResetAt                                             *time.Time
	Current                                             json.RawMessage // of state_changed
}

// leaks are words that no answer may contain.
var leaks = []string{"SQLSTATE", "goroutine", ".go:", "/root", "/usr", "pgx", "ERROR:", "runtime error", "panic", "unmarshal"}

// refused checks that an answer is a complete problem with a status and a code, is small
// and leaks nothing.
func (w *testService) refused(a answer, status int, code string) problem {
	w.Helper()
	var p problem
	decoder := json.NewDecoder(bytes.NewReader(a.body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		w.Errorf("the answer is no problem: %v: %d %.300s", err, a.status, a.body)
		return p
	}
	w.inTable(p)
	if a.status != status || p.Status != status || p.Code != code {
		w.Errorf("answered %d (%d) %s instead of %d %s: %s", a.status, p.Status, p.Code, status, code, p.Detail)
	}
	if a.header.Get("Content-Type") != "application/problem+json" || a.header.Get("X-Request-Id") == "" ||
		len(a.header.Values("X-Request-Id")) != 1 {
		w.Errorf("headers %v", a.header)
	}
	if p.Type == "" || p.Title == "" || p.Detail == "" || p.Instance == "" || len(p.TraceID) != 32 || p.Errors == nil {
		w.Errorf("incomplete: %s", a.body)
	}
	if len(a.body) > 4096 {
		w.Errorf("%d bytes", len(a.body))
	}
	for _, word := range leaks {
		if strings.Contains(string(a.body), word) {
			w.Errorf("the answer holds %q: %s", word, a.body)
		}
	}
	if status == 401 && a.header.Get("WWW-Authenticate") == "" || (status == 429 || status == 503) && a.header.Get("Retry-After") == "" {
		w.Errorf("a header is missing: %v", a.header)
	}
	return p
}

// inTable checks that the table of codes has the codes of a problem, with its status and meaning.
func (w *testService) inTable(p problem) {
	w.Helper()
	c, found := codes.Find(p.Code)
	if !found || c.AnsweredIn&codes.Request == 0 || c.Status != p.Status || c.Meaning != p.Title || p.Type != "/docs#problem-"+p.Code {
		w.Errorf("%d %s %q (%s) is not in the table of codes: %+v", p.Status, p.Code, p.Title, p.Type, c)
	}
	for _, e := range p.Errors {
		if c, _ := codes.Find(e.Code); c.AnsweredIn&(codes.Request|codes.Item) == 0 {
			w.Errorf("%s of %s is not in the table of codes as a code of a member", e.Code, p.Code)
		}
	}
}

// verdictInTable checks that the table of codes has the code of a refused event.
func (w *testService) verdictInTable(v map[string]any) {
	w.Helper()
	code, refused := v["code"].(string)
	if c, _ := codes.Find(code); refused && c.AnsweredIn&codes.Event == 0 {
		w.Errorf("%s of an event is not in the table of codes as a code of events", code)
	}
}
