package stripe_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain/push"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/stripetest"
	"github.com/meterplex/meterplex/internal/tier"
)

var update = flag.Bool("update", false, "write the golden files")

// TestAnAnswerIsDeliveredOnlyIfStripeCountsThePush: each fault has its outcome, and after it a repetition counts the push exactly once.
func TestAnAnswerIsDeliveredOnlyIfStripeCountsThePush(t *testing.T) {
	for fault, want := range map[stripetest.Fault]push.Result{
		stripetest.None:             {Outcome: push.Delivered},
		stripetest.Lose:             {Outcome: push.Unknown, Code: "provider_no_answer"},
		stripetest.LoseAfter:        {Outcome: push.Unknown, Code: "provider_no_answer"},
		stripetest.Cut:              {Outcome: push.Unknown, Code: "provider_answer_unexpected"},
		stripetest.CutAfter:         {Outcome: push.Unknown, Code: "provider_answer_unexpected"},
		stripetest.Fail:             {Outcome: push.Unknown, Code: "api_error"},
		stripetest.FailAfter:        {Outcome: push.Unknown, Code: "api_error"},
		stripetest.Unavailable:      {Outcome: push.Unknown, Code: "provider_answer_unexpected"},
		stripetest.UnavailableAfter: {Outcome: push.Unknown, Code: "provider_answer_unexpected"},
		stripetest.TooMany:          {Outcome: push.Later, Code: "rate_limit", RetryAfter: 7 * time.Second},
		stripetest.LockTimeout:      {Outcome: push.Later, Code: "lock_timeout", RetryAfter: 7 * time.Second},
		stripetest.Conflict:         {Outcome: push.Later, Code: "invalid_request_error"},
		stripetest.KeyInUseAfter:    {Outcome: push.Unknown, Code: "idempotency_key_in_use"},
		stripetest.Refuse:           {Outcome: push.Refused, Code: "parameter_invalid"},
		stripetest.Unauthorized:     {Outcome: push.KeyRefused, Code: "provider_key_refused"},
		stripetest.Forbidden:        {Outcome: push.KeyRefused, Code: "provider_key_refused"},
	} {
		s, p := account(t)
		s.RetryAfter = "7"
		s.Next(fault)
		got := p.Send(context.Background(), pushOf(1, 28600), events.TracedEvent{})
		if got.Outcome != want.Outcome || got.Code != want.Code || got.RetryAfter != want.RetryAfter ||
			(got.Reason == "") != (got.Outcome == push.Delivered) {
			t.Errorf("fault %d: %+v, want %+v", fault, got, want)
		}
		if again := p.Send(context.Background(), pushOf(1, 28600), events.TracedEvent{}); again.Outcome != push.Delivered {
			t.Errorf("fault %d, then a repetition: %+v", fault, again)
		}
		if sum := s.Sum("cus_1", "api_calls"); sum.Cmp(big.NewInt(28600)) != 0 || len(s.Requests()) != 2 {
			t.Errorf("fault %d: %s counted in %d requests", fault, sum, len(s.Requests()))
		}
	}
}

// TestAnEventThatExistsIsDelivered: Stripe forgot the idempotency key, or another installation sent the push, and knows the identifier.
func TestAnEventThatExistsIsDelivered(t *testing.T) {
	s, p := account(t)
	first, second := pushOf(1, 7), pushOf(1, 7)
	second.Key += ":other"
	for _, one := range []push.Push{first, second} {
		if r := p.Send(context.Background(), one, events.TracedEvent{}); r.Outcome != push.Delivered || r.Code != "" || r.Reason != "" {
			t.Errorf("%s: %+v", one.Key, r)
		}
	}
	if len(s.Counted()) != 1 {
		t.Errorf("%d events are counted", len(s.Counted()))
	}
	// Another body under a used key says nothing about this push: a person decides.
	other := pushOf(2, 8)
	other.Key = first.Key
	if r := p.Send(context.Background(), other, events.TracedEvent{}); r.Outcome != push.Refused || r.Code != "idempotency_error" {
		t.Errorf("another body under the same key: %+v", r)
	}
}

// TestAPushNamesTheTraceOfItsClose: the traceparent is that of the records of the event which closed the period, in each attempt and
// without traces. A comparison has no traceparent.
func TestAPushNamesTheTraceOfItsClose(t *testing.T) {
	s, p := account(t)
	of := events.TracedEvent{Trace: uuid.MustParse("4bf92f35-77b3-4da6-a3ce-929d0e0e4736"), EventID: uuid.Must(uuid.NewV7())}
	var spans []string
	for _, fault := range []stripetest.Fault{stripetest.None, stripetest.Fail, stripetest.TooMany} {
		s.Next(fault)
		p.Send(t.Context(), pushOf(1, 5), of)
		p.Attempt = func(ctx context.Context, name string, of events.TracedEvent) (context.Context, func(int)) {
			return ctx, func(status int) { spans = append(spans, fmt.Sprint(name, " ", of.Trace, " ", status)) }
		}
	}
	p.Send(t.Context(), pushOf(2, 5), events.TracedEvent{EventID: of.EventID})
	want := string(events.AppendTraceParent(nil, of.Trace, of.EventID))
	for i, r := range s.Requests() {
		if got := r.Header.Values("Traceparent"); i < 3 && (len(got) != 1 || got[0] != want) || i == 3 && got != nil {
			t.Errorf("attempt %d has the traceparent %q, want %s", i, got, want)
		}
	}
	if name := "send push " + of.Trace.String(); len(s.Requests()) != 4 ||
		!slices.Equal(spans[:2], []string{name + " 500", name + " 429"}) || len(spans) != 3 {
		t.Errorf("%d requests, attempts %q", len(s.Requests()), spans)
	}
}

// TestAFailureThatStripeSavedStaysUnknown: Stripe repeats the answer 500 for its idempotency key.
func TestAFailureThatStripeSavedStaysUnknown(t *testing.T) {
	s, p := account(t)
	s.Next(stripetest.FailSaved)
	for range 3 {
		if r := p.Send(context.Background(), pushOf(1, 7), events.TracedEvent{}); r.Outcome != push.Unknown {
			t.Fatalf("%+v", r)
		}
	}
	s.Advance(25 * time.Hour)
	if r := p.Send(context.Background(), pushOf(1, 7), events.TracedEvent{}); r.Outcome != push.Delivered {
		t.Errorf("after Stripe forgot the key: %+v", r)
	}
}

// TestARefusalThatStripeSavedEndsWithTheNextKey: Stripe repeats a refusal for its idempotency key, whatever was corrected. Another key lets
// it look again, and the identifier alone keeps it from counting twice.
func TestARefusalThatStripeSavedEndsWithTheNextKey(t *testing.T) {
	s, p := account(t)
	one := pushOf(1, 7)
	one.Customer = "cus_new"
	for range 2 {
		if r := p.Send(context.Background(), one, events.TracedEvent{}); r.Outcome != push.Refused || r.Code != "resource_missing" {
			t.Fatalf("%+v", r)
		}
		s.AddCustomer("cus_new")
	}
	moved := one
	moved.Customer = "cus_1"
	if r := p.Send(context.Background(), moved, events.TracedEvent{}); r.Outcome != push.Refused || r.Code != "idempotency_error" {
		t.Errorf("a corrected customer under the same key: %+v", r)
	}
	for one.Renewals = 1; one.Renewals < 4; one.Renewals++ {
		if r := p.Send(context.Background(), one, events.TracedEvent{}); r.Outcome != push.Delivered {
			t.Errorf("with another key: %+v", r)
		}
	}
	if sum := s.Sum("cus_new", "api_calls"); sum.Cmp(big.NewInt(7)) != 0 || len(s.Counted()) != 1 {
		t.Errorf("%s is counted", sum)
	}
}

// TestRefusalsAreInStripesWords: no meter, no customer, a time too far in the past, and a push that no request can carry. No reason holds
// the customer, which the tenant does not read.
func TestRefusalsAreInStripesWords(t *testing.T) {
	s, p := account(t)
	for i, c := range []struct {
		change       func(*push.Push)
		code, reason string
	}{
		{func(d *push.Push) { d.Event = "no_such_meter" }, "resource_missing", "no_such_meter"},
		{func(d *push.Push) { d.Customer = "cus_unknown" }, "resource_missing", "********"},
		{func(d *push.Push) { d.Timestamp = start.Add(-36 * 24 * time.Hour) }, "timestamp_too_far_in_past", "35 calendar days"},
		{func(d *push.Push) { d.Customer = "" }, "push_invalid", "no customer"},
		{func(d *push.Push) { d.Amount = nil }, "push_invalid", "no amount"},
		{func(d *push.Push) { d.Key = strings.Repeat("k", 256) }, "push_invalid", "256 characters"},
		{func(d *push.Push) { d.Identifier = strings.Repeat("i", 101) }, "push_invalid", "101 characters"},
		{func(d *push.Push) { d.Event = strings.Repeat("e", 101) }, "push_invalid", "101 characters"},
	} {
		one := pushOf(i, 7)
		c.change(&one)
		if r := p.Send(context.Background(), one, events.TracedEvent{}); r.Outcome != push.Refused || r.Code != c.code ||
			!strings.Contains(r.Reason, c.reason) || strings.Contains(r.Reason, "cus_") {
			t.Errorf("%s: %+v", c.reason, r)
		}
	}
	if len(s.Counted()) != 0 {
		t.Errorf("counted: %+v", s.Counted())
	}
}

// TestAnAnswerOfAnotherServerSettlesNothing: proxies and wrong addresses answer with any status.
func TestAnAnswerOfAnotherServerSettlesNothing(t *testing.T) {
	meterEvent := `{"object":"billing.meter_event","identifier":"` + pushOf(2, 1).Identifier + `"}`
	for _, c := range []struct {
		status  int
		body    string
		outcome push.Outcome
	}{
		{200, "<html>Welcome</html>", push.Unknown},
		{200, `{}`, push.Unknown},
		{200, meterEvent, push.Unknown}, // of another push
		{204, "", push.Unknown},
		{302, meterEvent, push.Unknown},
		{307, "", push.Unknown},
		{400, "<html>Bad Request</html>", push.Unknown},
		{400, `{"error":"bad request"}`, push.Unknown},
		{400, `{"error":{"message":"An event already exists with identifier ` + pushOf(1, 1).Identifier + `."}}`, push.Unknown},
		{400, `{"error":{"type":"invalid_request_error","message":"An event already exists with identifier mp_other."}}`, push.Refused},
		{400, `{"error":{"type":"invalid_request_error","code":"duplicate_meter_event","message":"duplicate"}}`, push.Delivered},
		{403, "<html>Forbidden</html>", push.Unknown},
		{401, `{"error":"unauthorized"}`, push.Unknown},
		{408, "", push.Unknown},
		{408, `{"error":{"type":"invalid_request_error","message":"The request took too long."}}`, push.Unknown},
		{429, "<html>Too many</html>", push.Later},
		{502, "<html>Bad gateway</html>", push.Unknown},
		{500, `{"error":{"type":"api_error","message":"a\u0000b` + strings.Repeat("x", 2000) + `"}}`, push.Unknown},
		{200, `{"identifier":"` + strings.Repeat("x", 2<<20) + `"}`, push.Unknown},
	} {
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/billing/meter_events" {
				t.Errorf("a redirect was followed to %s", r.URL.Path)
			}
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(c.body))
		}))
		r := provider(t, other.URL, other.Close, slog.New(slog.DiscardHandler)).Send(context.Background(), pushOf(1, 1),
			events.TracedEvent{})
		if r.Outcome != c.outcome || len(r.Reason) > 600 || strings.ContainsRune(r.Reason, 0) {
			t.Errorf("%d %.100s: %+v", c.status, c.body, r)
		}
	}
}

// TestWithoutAConnectionThePushIsSentLater: Stripe cannot have counted it.
func TestWithoutAConnectionThePushIsSentLater(t *testing.T) {
	s, _ := account(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	closed := "http://" + l.Addr().String()
	l.Close()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for url, ctx := range map[string]context.Context{closed: context.Background(),
		strings.Replace(s.URL, "http:", "https:", 1): context.Background(), s.URL: ended} {
		r := provider(t, url, func() {}, slog.New(slog.DiscardHandler)).Send(ctx, pushOf(1, 1), events.TracedEvent{})
		if r.Outcome != push.Later || r.Code != "provider_unreachable" || r.Reason == "" {
			t.Errorf("%s: %+v", url, r)
		}
	}
	if len(s.Requests()) != 0 {
		t.Errorf("%d requests", len(s.Requests()))
	}
}

// TestASlowAnswerIsUnknown: the caller's time ends after Stripe counted the push.
func TestASlowAnswerIsUnknown(t *testing.T) {
	s, p := account(t)
	arrived, release := s.Hold()
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-arrived; cancel() }()
	r := p.Send(ctx, pushOf(1, 7), events.TracedEvent{})
	release()
	if r.Outcome != push.Unknown || r.Code != "provider_no_answer" || len(s.Counted()) != 1 {
		t.Errorf("%+v, %d counted", r, len(s.Counted()))
	}
	if r := p.Send(context.Background(), pushOf(1, 7), events.TracedEvent{}); r.Outcome != push.Delivered || len(s.Counted()) != 1 {
		t.Errorf("%+v, %d counted", r, len(s.Counted()))
	}
}

// TestEachAttemptHasTheSameRequest compares it with a golden file: method, path, headers and body.
func TestEachAttemptHasTheSameRequest(t *testing.T) {
	s, p := account(t)
	s.Next(stripetest.LoseAfter)
	one := pushOf(1, -6)
	one.Amount.SetString("-123456789012345678901234567890", 10)
	p.Send(context.Background(), one, events.TracedEvent{})
	s.Advance(time.Hour)
	p.Send(context.Background(), one, events.TracedEvent{})
	var texts []string
	for _, r := range s.Requests() {
		var text strings.Builder
		fmt.Fprintf(&text, "POST /v1/billing/meter_events\n")
		for _, name := range slices.Sorted(maps.Keys(r.Header)) {
			if name != "Content-Length" && name != "Accept-Encoding" {
				fmt.Fprintf(&text, "%s: %s\n", name, strings.Join(r.Header[name], ", "))
			}
		}
		texts = append(texts, text.String()+"\n"+strings.ReplaceAll(r.Body, "&", "\n&")+"\n")
	}
	if *update {
		must.OK(t, os.WriteFile("testdata/meter_event.golden", []byte(texts[0]), 0o644))
	}
	want, err := os.ReadFile("testdata/meter_event.golden")
	if err != nil || len(texts) != 2 || texts[0] != string(want) || texts[1] != string(want) {
		t.Errorf("requests %q, want twice:\n%s%v", texts, want, err)
	}
	if sum := s.Sum("cus_1", "api_calls"); sum.Cmp(one.Amount) != 0 {
		t.Errorf("%s is counted", sum)
	}
}

// TestPushesAreCountedOnceWhateverFails repeats each push until it is delivered, within 23 hours of the fake's clock.
func TestPushesAreCountedOnceWhateverFails(t *testing.T) {
	s, p := account(t)
	rng := rand.New(rand.NewPCG(tier.Seed(t), 0))
	s.Draw(func() stripetest.Fault {
		return stripetest.Fault(max(0, rng.IntN(2*int(stripetest.Faults))-int(stripetest.Faults)))
	})
	due := map[string]*big.Int{"cus_1": new(big.Int), "cus_2": new(big.Int)}
	for n := range 60 {
		one := pushOf(n, rng.Int64N(2000)-1000)
		if n%2 == 1 {
			one.Customer = "cus_2"
		}
		delivered := false
		for spent := time.Duration(0); spent < 23*time.Hour && !delivered; spent += 30 * time.Minute {
			delivered = p.Send(context.Background(), one, events.TracedEvent{}).Outcome == push.Delivered
			s.Advance(30 * time.Minute)
		}
		// A failure that Stripe saved is repeated for the whole day: such a push was not counted.
		if delivered {
			due[one.Customer].Add(due[one.Customer], one.Amount)
		}
	}
	for customer, want := range due {
		if got := s.Sum(customer, "api_calls"); got.Cmp(want) != 0 {
			t.Errorf("%s: %s is counted, %s was delivered", customer, got, want)
		}
	}
}
