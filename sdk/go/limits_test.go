package meterplex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// call is a request that a fake service received.
type call struct {
	method, path, query, prefer, body string
}

// scripted returns a client of a service that answers with f, and the requests that it received.
func scripted(t *testing.T, f func(n int, c call) (status int, body string)) (*Client, *[]call) {
	t.Helper()
	s, calls := newService(t), &[]call{}
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		one := call{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, r.Header.Get("Prefer"), string(body)}
		*calls = append(*calls, one)
		status, text := f(len(*calls), one)
		if status == 0 {
			panic(http.ErrAbortHandler)
		}
		media := "application/json"
		if status >= 400 && strings.HasPrefix(text, "{") {
			media = problemJSON
		} else if !strings.HasPrefix(text, "{") {
			media = "text/html"
		}
		w.Header().Set("Content-Type", media)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	})
	c, _ := newClient(t, s, "", func(o *Options) { o.Memory, o.MaxStale = true, time.Hour })
	return c, calls
}

// Consume keeps its id over a lost answer, a proxy's 200 and overload.
func TestConsumeIsRepeated(t *testing.T) {
	c, calls := scripted(t, func(n int, c call) (int, string) {
		id := strings.Split(c.body, `"`)[3]
		switch n {
		case 1:
			return 0, ""
		case 2:
			return 200, "hello"
		case 3:
			return 200, "{}"
		case 4:
			return 200, `{"eventId":"another","amount":"5"}`
		case 5:
			return 503, "busy"
		case 6:
			return 429, `{"code":"rate_limited"}`
		}
		return 200, `{"allowed":true,"feature":"tokens","eventId":"` + id +
			`","amount":"5","periodKey":"2026-11","limit":"9223372036854775807","used":"5","held":"0","remaining":null,"resetAt":null,` +
			`"position":"1-1","later":[1]}`
	})
	got, err := c.Consume(t.Context(), ConsumeRequest{Feature: "tokens", Amount: 5, Metadata: map[string]any{"b": 1, "a": 2}})
	ok(t, err)
	first := (*calls)[0]
	for _, one := range *calls {
		if one != first {
			t.Errorf("%+v after %+v", one, first)
		}
	}
	if len(*calls) != 7 || !got.Allowed || got.Amount != 5 || *got.Limit != 1<<63-1 || got.Remaining != nil ||
		!strings.Contains(string(got.JSON), `"later":[1]`) ||
		!strings.Contains(first.body, `"amount":5,"metadata":{"a":2,"b":1}`) || first.path != "/api/v1/entitlements/tokens/consume" {
		t.Errorf("%+v\n%+v", got, *calls)
	}
}

func TestARefusalIsAnError(t *testing.T) {
	c, calls := scripted(t, func(int, call) (int, string) {
		return 409,
			`{"code":"quota_exceeded","detail":"d","traceId":"t","limit":"10","used":"9","held":"0","remaining":"1",` +
				`"resetAt":"2026-12-01T00:00:00Z","errors":[{"pointer":"/amount","code":"c","detail":"e"}]}`
	})
	_, err := c.Consume(t.Context(), ConsumeRequest{Feature: "tokens", Amount: 5})
	var e *Error
	if !errors.As(err, &e) || e.Code != "quota_exceeded" || e.Status != 409 || e.Detail != "d" || e.TraceID != "t" || e.Remedy == "" ||
		*e.Remaining != 1 || e.ResetAt == nil || e.Errors[0].Pointer != "/amount" || len(*calls) != 1 {
		t.Errorf("%+v after %d calls", err, len(*calls))
	}
}

// After the deadline the outcome is unknown, and the error has the id to ask again with.
func TestAnUnknownOutcome(t *testing.T) {
	c, _ := scripted(t, func(int, call) (int, string) { return 0, "" })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err := c.Consume(ctx, ConsumeRequest{Feature: "tokens", Amount: 5, EventID: "x"})
	var e *Error
	if !errors.As(err, &e) || e.Code != "unknown_outcome" || e.ID != "x" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%+v", err)
	}
	for _, err := range c.Aggregates(ctx, Query{}) {
		if code(err) != "unavailable" {
			t.Errorf("%+v", err)
		}
	}
	if _, err := c.Consume(t.Context(), ConsumeRequest{Feature: "f", Amount: 1, EventID: "a b"}); code(err) != "invalid_argument" {
		t.Error(err)
	}
}

func TestReservations(t *testing.T) {
	state := "HELD"
	c, calls := scripted(t, func(_ int, c call) (int, string) {
		answer := `{"reservationId":"r/1","feature":"tokens","amount":"10","state":"` + state +
			`","periodKey":"2026-11","expiresAt":"2026-11-29T10:00:00Z","used":"0","held":"10","position":"1-1"`
		if strings.HasSuffix(c.path, "/commit") {
			return 200, answer + `,"eventId":"r/1-usage","released":"3"}`
		}
		return 201, answer + `}`
	})
	held, err := c.Reserve(t.Context(), ReserveRequest{Feature: "tokens", Amount: 10, ReservationID: "r/1", TTL: 1500 * time.Millisecond})
	ok(t, err)
	if held.State != "HELD" || *held.Held != 10 || held.Limit != nil {
		t.Errorf("%+v", held)
	}
	done, err := c.Commit(t.Context(), CommitRequest{Feature: "tokens", ReservationID: "r/1", Amount: 7, Overage: true})
	ok(t, err)
	if done.EventID != "r/1-usage" || done.Released != 3 {
		t.Errorf("%+v", done)
	}
	_, err = c.Extend(t.Context(), "tokens", "r/1", time.Minute)
	ok(t, err)
	_, err = c.Release(t.Context(), "tokens", "r/1")
	ok(t, err)
	state = "EXPIRED"
	if _, err := c.Reserve(t.Context(), ReserveRequest{Feature: "tokens", Amount: 10, ReservationID: "r/1"}); code(
		err) != "reservation_ended" {
		t.Error(err)
	}
	const path = "/api/v1/entitlements/tokens/reservations"
	for i, want := range []call{
		{"POST", path, "", "", `{"reservationId":"r/1","amount":10,"ttlSeconds":2}`},
		{"POST", path + "/r%2F1/commit", "", "", `{"eventId":"r/1-usage","amount":7,"overage":"record"}`},
		{"POST", path + "/r%2F1/extend", "", "", `{"ttlSeconds":60}`},
		{"DELETE", path + "/r%2F1", "", "", ""},
		{"POST", path, "", "", `{"reservationId":"r/1","amount":10}`},
	} {
		if (*calls)[i] != want {
			t.Errorf("%+v, want %+v", (*calls)[i], want)
		}
	}
}

// WithReservation commits what the work used, also if it fails, and releases the hold of work that used nothing or panics.
func TestWithReservation(t *testing.T) {
	failed := errors.New("failed")
	for _, work := range []struct {
		used   int64
		err    error
		panics bool
		want   string
	}{{used: 7, want: "commit"}, {used: 7, err: failed, want: "commit"}, {err: failed, want: "DELETE"}, {want: "DELETE"},
		{panics: true, want: "DELETE"}} {
		c, calls := scripted(t, func(_ int, c call) (int, string) {
			id := "job"
			if strings.HasSuffix(c.path, "/commit") {
				return 200, `{"reservationId":"job","eventId":"job-usage","amount":"7","released":"3"}`
			}
			return 200, `{"reservationId":"` + id + `","state":"HELD","amount":"10"}`
		})
		ctx, cancel := context.WithCancel(t.Context())
		var done *Commitment
		var err error
		func() {
			defer func() { _ = recover() }()
			done, err = c.WithReservation(ctx, ReserveRequest{Feature: "tokens", Amount: 10, ReservationID: "job"},
				func(context.Context) (int64, error) {
					cancel() // the caller has given up; the amount is settled nevertheless
					if work.panics {
						panic("work")
					}
					return work.used, work.err
				})
		}()
		last := (*calls)[len(*calls)-1]
		if err != work.err || (done != nil) != (work.used > 0) || len(*calls) != 2 || !strings.Contains(last.method+last.path, work.want) {
			t.Errorf("%+v: %v %v %+v", work, done, err, *calls)
		}
	}
	c, _ := scripted(t, func(int, call) (int, string) { return 409, `{"code":"quota_exceeded"}` })
	_, err := c.WithReservation(t.Context(), ReserveRequest{Feature: "tokens", Amount: 10}, func(context.Context) (int64, error) {
		t.Error("the work runs without a hold")
		return 0, nil
	})
	if code(err) != "quota_exceeded" {
		t.Error(err)
	}
}

// While the work runs, its hold is extended.
func TestAHoldIsExtended(t *testing.T) {
	var asked atomic.Int32
	c, calls := scripted(t, func(_ int, c call) (int, string) {
		asked.Add(1)
		if strings.HasSuffix(c.path, "/commit") {
			return 200, `{"eventId":"job-usage","amount":"1","released":"0"}`
		}
		return 200, `{"reservationId":"job","state":"HELD","amount":"10"}`
	})
	_, err := c.WithReservation(t.Context(), ReserveRequest{Feature: "tokens", Amount: 10, ReservationID: "job", TTL: time.Second},
		func(context.Context) (int64, error) {
			eventually(t, "the extension", func() bool { return asked.Load() > 1 })
			return 1, nil
		})
	ok(t, err)
	if !strings.HasSuffix((*calls)[1].path, "/extend") {
		t.Errorf("%+v", *calls)
	}
}

// Check answers from the service, from the cache within its bounds, or by the policy.
func TestCheck(t *testing.T) {
	type answer struct {
		status int
		body   string
	}
	var next atomic.Value
	c, calls := scripted(t, func(int, call) (int, string) {
		a := next.Load().(answer)
		return a.status, a.body
	})
	check := func(amount int64, want string) {
		t.Helper()
		got, err := c.Check(t.Context(), CheckRequest{Feature: "tokens", Amount: amount})
		text := "error " + code(err)
		if err == nil {
			text = fmt.Sprint(got.Source, " ", got.Allowed)
		}
		if text != want {
			t.Errorf("%d: %s, want %s", amount, text, want)
		}
	}
	next.Store(answer{503, ""})
	check(1, "policy false")
	const hard = `{"allowed":true,"feature":"tokens","type":"QUOTA","limit":"10","used":"0","held":"0","remaining":"10",` +
		`"limitBehavior":"HARD","resetAt":"2999-01-01T00:00:00Z","asOfPosition":"1-1"}`
	next.Store(answer{200, hard})
	check(0, "service true")
	if (*calls)[1].query != "amount=1" {
		t.Errorf("%+v", (*calls)[1])
	}
	next.Store(answer{})
	check(6, "cache true")
	check(5, "policy false")
	check(4, "cache true")
	check(1, "policy false")
	next.Store(answer{200, strings.Replace(hard, "HARD", "SOFT", 1)})
	check(1, "service true")
	next.Store(answer{})
	check(100, "cache true")
	next.Store(answer{200, strings.Replace(hard, "2999", "1999", 1)})
	check(1, "service true")
	next.Store(answer{})
	check(1, "policy false")
	next.Store(answer{200, `{"allowed":false,"feature":"tokens","reason":"not_entitled","asOfPosition":"1-1"}`})
	check(1, "service false")
	next.Store(answer{200, "a proxy"})
	check(1, "cache false")
	next.Store(answer{200, `{"allowed":null}`})
	check(1, "cache false")
	next.Store(answer{401, `{"code":"unauthenticated"}`})
	check(1, "error unauthenticated")
	next.Store(answer{200, hard})
	check(1, "service true")
	c.options.MaxStale, c.options.CheckPolicy = 1, Allow
	next.Store(answer{})
	check(1, "policy true")
	if got, err := c.Check(ended, CheckRequest{Feature: "tokens"}); err == nil {
		t.Errorf("%+v", got)
	}
}

// Pages are iterators; rows have all that the service answered.
func TestReads(t *testing.T) {
	c, calls := scripted(t, func(n int, c call) (int, string) {
		switch {
		case strings.HasSuffix(c.path, "/evt_1"):
			return 200,
				`{"eventId":"evt_1","status":"AGGREGATED","payload":{"amount":1,"eventId":"evt_1","feature":"f","timestamp":"2026-05-01T12:00:00Z"},` +
					`"published":null,"effectiveAmount":"3","corrections":[{"before":"1","after":"3","delta":"2"}],"recorded":{"position":"1-1"}}`
		case n == 1:
			return 503, `{"code":"unavailable"}`
		case !strings.Contains(c.query, "cursor"):
			return 200,
				`{"data":[{"amount":"9223372036854775807","eventCount":2,"periodStart":null,"later":1}],"nextCursor":"n","asOfPosition":"1-9"}`
		}
		return 200, `{"data":[{"amount":"1"},{"amount":"2"}],"nextCursor":null}`
	})
	var rows []Aggregate
	for a, err := range c.Aggregates(t.Context(), Query{Feature: "f", Period: "2026-11", PageSize: 1, MinPosition: "1-1",
		Wait: 1500 * time.Millisecond, AsOf: time.Unix(0, 0)}) {
		ok(t, err)
		rows = append(rows, a)
	}
	if len(rows) != 3 || rows[0].Amount != 1<<63-1 || rows[0].AsOfPosition != "1-9" || !strings.Contains(string(rows[0].JSON), "later") ||
		rows[2].Amount != 2 {
		t.Errorf("%+v", rows)
	}
	if got, want := (*calls)[1], (call{"GET", "/api/v1/usage/aggregates",
		"asOf=1970-01-01T00%3A00%3A00Z&feature=f&limit=1&minPosition=1-1&period=2026-11", "wait=2", ""}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for range c.Events(t.Context(), Query{}) {
		break
	}
	if len(*calls) != 4 {
		t.Errorf("%d calls", len(*calls))
	}
	r, err := c.Receipt(t.Context(), "evt_1", Query{})
	ok(t, err)
	if *r.EffectiveAmount != 3 || *r.Corrections[0].Delta != 2 || r.Payload.Amount != 1 || r.Published != nil ||
		r.Recorded.Position != "1-1" {
		t.Errorf("%+v", r)
	}
	for _, all := range []func() error{
		func() (err error) {
			_, err = first(c.Usage(t.Context(), Query{Feature: "f", GroupBy: []string{"metadata.a", "metadata.b"}, From: time.Unix(0, 0)}))
			return err
		},
		func() (err error) { _, err = first(c.Entitlements(t.Context(), Query{})); return err },
		func() (err error) {
			_, err = first(c.Reservations(t.Context(), Query{Feature: "f", State: "HELD"}))
			return err
		},
	} {
		ok(t, all())
	}
	want := []string{"/api/v1/usage?feature=f&from=1970-01-01T00%3A00%3A00Z&groupBy=metadata.a&groupBy=metadata.b", "/api/v1/entitlements?",
		"/api/v1/entitlements/f/reservations?state=HELD"}
	for i, one := range (*calls)[5:] {
		if one.path+"?"+one.query != want[i] {
			t.Errorf("%+v, want %s", one, want[i])
		}
	}
}

func first[T any](all func(func(T, error) bool)) (one T, err error) {
	for one, err := range all {
		return one, err
	}
	return one, errors.New("there is none")
}

// A read that waited for its position in vain ends with the service's answer. Without Wait it does not wait.
func TestProjectionBehind(t *testing.T) {
	c, calls := scripted(t, func(int, call) (int, string) { return 503, `{"code":"projection_behind"}` })
	if _, err := first(c.Events(t.Context(), Query{MinPosition: "1-1", Wait: time.Second})); code(err) != "projection_behind" ||
		len(*calls) != 1 {
		t.Error(err, len(*calls))
	}
	if _, err := c.Check(t.Context(), CheckRequest{Feature: "f", MinPosition: "1-1"}); code(err) != "projection_behind" ||
		len(*calls) != 2 || (*calls)[1].prefer != "" {
		t.Error(err, *calls)
	}
}
