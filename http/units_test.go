package http

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/query"
)

type sqlError string

func (e sqlError) Error() string    { return "ERROR: something (SQLSTATE " + string(e) + ")" }
func (e sqlError) SQLState() string { return string(e) }

// driverError is pgx's error for a lost connection: neither a network error nor a server
// error.
type driverError string

func (e driverError) Error() string   { return string(e) }
func (driverError) SafeToRetry() bool { return true }

func TestErrorsBecomeProblems(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		code   string
		retry  bool
		logged bool
	}{
		{&domain.Error{Code: "name_invalid", Message: "no"}, 400, "name_invalid", false, false},
		{fmt.Errorf("x: %w", &domain.Error{Code: "plan_not_found"}), 404, "plan_not_found", false, false},
		{query.ErrNotFound, 404, "not_found", false, false},
		{query.ErrProjectionBehind, 503, "projection_behind", true, false},
		{query.ErrPositionInvalid, 400, "position_invalid", false, false},
		{query.ErrCursorInvalid, 400, "cursor_invalid", false, false},
		{fmt.Errorf("x: %w", commands.ErrUnavailable), 503, "unavailable", true, true},
		{context.DeadlineExceeded, 503, "unavailable", true, true},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, 503, "unavailable", true, true},
		{io.ErrUnexpectedEOF, 503, "unavailable", true, true},
		{fmt.Errorf("x: %w", driverError("conn closed")), 503, "unavailable", true, true},
		{sqlError("57P01"), 503, "unavailable", true, true},
		{sqlError("25P03"), 503, "unavailable", true, true},
		{sqlError("53300"), 503, "unavailable", true, true},
		{sqlError("55P03"), 503, "unavailable", true, true},
		{sqlError("22021"), 500, "internal", false, true},
		{sqlError("42P01"), 500, "internal", false, true},
		{errors.New("/root/secret.go:5 failed"), 500, "internal", false, true},
	} {
		p, cause := problemOf(c.err)
		if p.Status != c.status || p.Code != c.code || (p.retryAfter > 0) != c.retry || (cause != nil) != c.logged {
			t.Errorf("%v: %d %s, retry %d, cause %v", c.err, p.Status, p.Code, p.retryAfter, cause)
		}
		if c.logged && strings.Contains(string(p.encode()), c.err.Error()) {
			t.Errorf("%v is told to the caller", c.err)
		}
	}
}

func TestProblemsAreSmallWhateverIsInThem(t *testing.T) {
	for _, text := range []string{strings.Repeat("\x01", 10_000), strings.Repeat("é", 10_000), strings.Repeat("\xff", 10_000), strings.Repeat("<&>", 9_000)} {
		p := newProblem("name_invalid", text)
		for range 20 {
			p.at("/" + text)
		}
		r := httptest.NewRequest("GET", "/x", nil)
		r.URL.Path = "/" + strings.Repeat("ü", 5000)
		body := p.of(r).encode()
		if len(body) > maxProblem+1 || !json.Valid(body) || !utf8.Valid(body) {
			t.Errorf("%d bytes: %.100s", len(body), body)
		}
	}
}

func TestAPanicIsA500AndIsLogged(t *testing.T) {
	var logs bytes.Buffer
	svc := &service{Server: &Server{}, log: slog.New(slog.NewTextHandler(&logs, nil)), newID: func(time.Time) uuid.UUID { return uuid.New() }}
	svc.metrics, _ = newMetrics(nil)
	boom := nethttp.HandlerFunc(func(nethttp.ResponseWriter, *nethttp.Request) { panic("the canary") })
	w := httptest.NewRecorder()
	(&edge{svc, boom}).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	var p Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 500 || p.Code != "internal" || w.Header().Get("Content-Type") != problemType {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if strings.Contains(w.Body.String(), "canary") || !strings.Contains(logs.String(), "the canary") || !strings.Contains(logs.String(), w.Header().Get("X-Request-Id")) {
		t.Errorf("told %s, logged %s", w.Body, &logs)
	}
}

func TestTraceAndRequestIDs(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for header, ok := range map[string]bool{
		good: true, "cc" + good[2:]: true, "ff" + good[2:]: false, strings.ToUpper(good): false, good + "-x": false, good[:54]: false, "": false,
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": false, "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": false,
	} {
		if _, got := traceOf([]string{header}); got != ok {
			t.Errorf("%q: %v", header, got)
		}
	}
	if _, ok := traceOf([]string{good, good}); ok {
		t.Error("two traceparents are taken")
	}
	for id, kept := range map[string]bool{"abc-1_2.3": true, strings.Repeat("a", 128): true, strings.Repeat("a", 129): false, "": false, "a b": false, "a\r\nb": false, "ü": false, "<x>": false} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header["X-Request-Id"] = []string{id}
		if x := newExchange(r, uuid.New()); (x.id == id) != kept || !isRequestID(x.id) {
			t.Errorf("%q became %q", id, x.id)
		}
	}
}

// Tenant keys are never given operator scopes. A key that has one by mistake still opens
// no operator route.
func TestP9_AKeyIsOfItsKindWhateverItsScopes(t *testing.T) {
	for _, row := range Routes() {
		if row.Who != Tenant && row.Who != Operator {
			continue
		}
		x := exchange{caller: commands.Caller{Scopes: row.Scopes}}
		if row.Who == Operator {
			x.tenant = &domain.Tenant{}
		}
		if p := x.authorize(&row); p == nil || p.Status != 403 {
			t.Errorf("%s: a key of the other kind is answered %+v", row.name(), p)
		}
	}
}

func TestCursorsCarryTheirPlaceAndNothingElse(t *testing.T) {
	l := list{"usage events", "tenant", "feature"}
	text := *l.next(3, "17-4711")
	if generation, after, err := l.open(text); err != nil || generation != 3 || after != "17-4711" {
		t.Errorf("%d %q %v", generation, after, err)
	}
	if _, _, err := (list{"usage events", "tenant", "other"}).open(text); err == nil {
		t.Error("a cursor of another list is taken")
	}
	for i := range text {
		for _, c := range []byte{'A', 'x', '=', '\n'} {
			if changed := text[:i] + string(c) + text[i+1:]; changed != text {
				if _, _, err := l.open(changed); err == nil {
					t.Errorf("changed at %d to %q, and taken", i, c)
				}
			}
		}
	}
	var p *Problem
	if _, _, err := l.open("e30"); !errors.As(err, &p) || p.Code != "cursor_invalid" {
		t.Errorf("%v", err)
	}
}

func TestPreferenceForWaiting(t *testing.T) {
	for prefer, want := range map[string]time.Duration{
		"": 0, "wait=10": 10 * time.Second, "WAIT=1": time.Second, "respond-async, wait=5": 5 * time.Second, "wait = 7": 7 * time.Second, `wait="3"`: 3 * time.Second,
		"wait=3; foo=bar": 3 * time.Second, "wait=30": maxWait, "wait=31": maxWait, "wait=2147483647": maxWait, "wait=99999999999999999999": 0, "wait=-1": 0, "wait": 0, "wait=1.5": 0, "waiting=5": 0,
	} {
		if got := preferredWait(prefer); got != want {
			t.Errorf("%q: %s instead of %s", prefer, got, want)
		}
	}
}

func TestEntityTagsCompareWeakly(t *testing.T) {
	tag := entityTag([]byte(`{"allowed":true`))
	if !strings.HasPrefix(tag, `W/"`) || tag == entityTag([]byte(`{"allowed":false`)) {
		t.Errorf("%s", tag)
	}
	for header, want := range map[string]bool{tag: true, tag[2:]: true, "*": true, `"x", ` + tag: true, `"x"`: false, "": false, tag + "x": false} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("If-None-Match", header)
		if unchanged(r, tag) != want {
			t.Errorf("%q: %v", header, !want)
		}
	}
}

// TestHandWrittenAnswersAreWhatReflectionWrites compares both encoders with
// encoding/json.
func TestHandWrittenAnswersAreWhatReflectionWrites(t *testing.T) {
	place := events.Position{Partition: 17, Number: 4711}
	nasty := "\x00\x1f\"\\/<é€😀\u2028\xff\xc0\xaf"
	list := []commands.EventVerdict{
		{Index: 0, EventID: "evt_1", Status: "accepted", Position: &place}, {Index: 1, EventID: nasty, Status: "duplicate", Position: &place},
		{Index: 2, EventID: "c", Status: "conflict", Code: "payload_conflict", Reason: nasty, Position: &place}, {Index: 3, Status: "rejected", Code: "x", Reason: "y", Pointer: "/events/3/" + nasty},
	}
	got := appendVerdicts(nil, countVerdicts(list), list)
	want := batchVerdict{Accepted: 1, Duplicates: 1, Conflicts: 1, Rejected: 1}
	for _, v := range list {
		e := eventVerdict{Index: v.Index, Status: v.Status, Code: v.Code, Reason: v.Reason, Pointer: v.Pointer}
		if v.EventID != "" {
			e.EventID = ptr(v.EventID)
		}
		if v.Position != nil {
			e.Position = v.Position.String()
		}
		want.Events = append(want.Events, e)
	}
	sameJSON(t, got, want)
	number := json.Number("123456789012345678901234567890")
	at := time.Date(2026, 6, 1, 2, 0, 0, 5000, time.FixedZone("x", 7200))
	for _, c := range []entitlements.Check{
		{Allowed: true, Feature: "sso", Type: "BOOLEAN", AsOf: place},
		{Feature: "x", Reason: "not_entitled", AsOf: place},
		{Allowed: true, Feature: "a", Type: "QUOTA", Limit: ptr(int64(5)), Used: &number, Held: ptr(json.Number("0")), Remaining: ptr(json.Number("5")), LimitBehavior: "HARD", ResetAt: ptr(at.UTC()), AsOf: place},
		{Feature: "a", Type: "METERED", Reason: "quota_exceeded", Used: &number, Held: ptr(json.Number("0")), LimitBehavior: "SOFT", AsOf: place},
	} {
		sameJSON(t, appendPosition(appendCheck(nil, &c), c.AsOf), c)
	}
}

func sameJSON(t *testing.T, got []byte, want any) {
	t.Helper()
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if json.Unmarshal(got, &a) != nil || json.Unmarshal(text, &b) != nil || fmt.Sprint(a) != fmt.Sprint(b) || !utf8.Valid(got) {
		t.Errorf("written by hand: %s\nby reflection: %s", got, text)
	}
}

func TestBucketsFillAndAreEachTheirOwn(t *testing.T) {
	r, start, l := newRates(), time.Unix(1_800_000_000, 0), Limits{EventsPerSecond: 10, EventsBurst: 100}
	a, b := uuid.New(), uuid.New()
	if _, _, ok := r.take(a, 100, start, l); !ok {
		t.Error("a full bucket gives nothing")
	}
	if _, wait, ok := r.take(a, 50, start, l); ok || wait != 5*time.Second {
		t.Errorf("an empty bucket gives, or tells to wait %s", wait)
	}
	if _, _, ok := r.take(b, 100, start, l); !ok {
		t.Error("one tenant drinks from another's bucket")
	}
	if left, _, ok := r.take(a, 50, start.Add(5*time.Second), l); !ok || left != 0 {
		t.Errorf("%v left", left)
	}
	if _, _, ok := r.take(a, 1000, start.Add(time.Hour), l); !ok {
		t.Error("a batch over the whole burst is never taken")
	}
	if _, wait, ok := r.take(a, 1, start.Add(time.Hour), l); ok || wait < 90*time.Second {
		t.Errorf("its debt is forgotten: %s", wait)
	}
	if _, _, ok := r.take(a, 100, start.Add(time.Minute), l); ok {
		t.Error("a clock that goes back fills buckets")
	}
}
