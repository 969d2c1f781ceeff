package stripe_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/stripetest"
)

var (
	november = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	december = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
)

// TestTotalsAreExactAndOfTheirWindow: the start of a window is in it, its end is not, and other customers and events are not.
func TestTotalsAreExactAndOfTheirWindow(t *testing.T) {
	s, p := account(t)
	s.AddMeter(stripetest.Meter{Event: "tokens"})
	huge, _ := new(big.Int).SetString("123456789012345678901234567890", 10)
	for i, c := range []struct {
		customer, event string
		amount          *big.Int
		at              time.Time
	}{
		{"cus_1", "api_calls", huge, december.Add(-time.Second)},
		{"cus_1", "api_calls", big.NewInt(-7), november},
		{"cus_1", "api_calls", big.NewInt(1000), december},
		{"cus_2", "api_calls", big.NewInt(100), november},
		{"cus_1", "tokens", big.NewInt(10), november},
	} {
		one := pushOf(i, 0)
		one.Customer, one.Event, one.Amount, one.Timestamp = c.customer, c.event, c.amount, c.at
		if r := p.Send(context.Background(), one, events.TracedEvent{}); r.Reason != "" {
			t.Fatal(r)
		}
	}
	for _, c := range []struct {
		customer, event string
		from, to        time.Time
		want            string
	}{
		{"cus_1", "api_calls", november, december, "123456789012345678901234567883"},
		{"cus_1", "api_calls", december, december.Add(time.Minute), "1000"},
		{"cus_1", "api_calls", november.Add(time.Minute), november.Add(time.Hour), "0"},
		{"cus_2", "api_calls", november, december, "100"},
		{"cus_1", "tokens", november, december, "10"},
		{"cus_2", "tokens", november, december, "0"},
	} {
		if got, err := p.Total(context.Background(), c.customer, c.event, c.from, c.to); err != nil || got.String() != c.want {
			t.Errorf("%+v: %s, %v", c, got, err)
		}
	}
}

// TestATotalAddsUpAllPages: Stripe answers a long list in pages.
func TestATotalAddsUpAllPages(t *testing.T) {
	pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch after := r.URL.Query().Get("starting_after"); {
		case r.URL.Path == "/v1/billing/meters" && after == "":
			_, _ = w.Write(
				[]byte(
					`{"object":"list","has_more":true,"data":[{"id":"m1","event_name":"tokens","status":"active",` +
						`"default_aggregation":{"formula":"sum"}}]}`))
		case r.URL.Path == "/v1/billing/meters" && after == "m1":
			_, _ = w.Write(
				[]byte(
					`{"object":"list","has_more":false,"data":[{"id":"m2","event_name":"api_calls","status":"active",` +
						`"default_aggregation":{"formula":"sum"}}]}`))
		case r.URL.Path == "/v1/billing/meters/m2/event_summaries" && after == "":
			_, _ = w.Write(
				[]byte(`{"object":"list","has_more":true,"data":[{"id":"s1","aggregated_value":3},{"id":"s2","aggregated_value":4}]}`))
		case r.URL.Path == "/v1/billing/meters/m2/event_summaries" && after == "s2":
			_, _ = w.Write([]byte(`{"object":"list","has_more":false,"data":[{"id":"s3","aggregated_value":5}]}`))
		default:
			t.Errorf("unexpected: %s", r.URL)
		}
	}))
	p := provider(t, pages.URL, pages.Close, slog.New(slog.DiscardHandler))
	if got, err := p.Total(context.Background(), "cus_1", "api_calls", november, december); err != nil || got.String() != "12" {
		t.Errorf("%s, %v", got, err)
	}
}

// TestTotalsThatCannotBeComparedAreErrors names the reason of each.
func TestTotalsThatCannotBeComparedAreErrors(t *testing.T) {
	s, p := account(t)
	s.AddMeter(stripetest.Meter{Event: "counted", Formula: "count"})
	s.AddMeter(stripetest.Meter{Event: "hourly", Window: "hour"})
	for _, c := range []struct {
		customer, event string
		from, to        time.Time
		want            string
	}{
		{"cus_1", "api_calls", november.Add(time.Second), december, "whole minutes"},
		{"cus_1", "api_calls", november, december.Add(time.Millisecond), "whole minutes"},
		{"cus_1", "api_calls", december, november, "whole minutes"},
		{"cus_1", "none", november, december, "no meter of Stripe has the event name none"},
		{"cus_1", "counted", november, december, `the formula "count"`},
		{"cus_1", "hourly", november, december, `the time window "hour"`},
		{"cus_9", "api_calls", november, december, "status 400: No such customer: 'cus_9'"},
	} {
		if got, err := p.Total(context.Background(), c.customer, c.event, c.from, c.to); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %s, %v", c.want, got, err)
		}
	}
}

// TestTheActiveMeterOfAnEventIsFoundOnAnyPage: Stripe lists 100 meters a page, the newest first, and inactive ones too.
func TestTheActiveMeterOfAnEventIsFoundOnAnyPage(t *testing.T) {
	s, p := account(t)
	for i := range 230 {
		s.AddMeter(stripetest.Meter{Event: fmt.Sprintf("other_%d", i)})
	}
	s.AddMeter(stripetest.Meter{Event: "api_calls", Formula: "count", Inactive: true})
	p.Send(context.Background(), pushOf(1, 7), events.TracedEvent{})
	if got, err := p.Total(context.Background(), "cus_1", "api_calls", november, december); err != nil || got.String() != "7" {
		t.Errorf("%s, %v", got, err)
	}
}

// TestATotalIsReadAsAnInteger: numbers have any notation, and no float is between.
func TestATotalIsReadAsAnInteger(t *testing.T) {
	value := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/billing/meters" {
			fmt.Fprint(w,
				`{"object":"list","has_more":false,"data":[{"id":"m","event_name":"api_calls","status":"active",`+
					`"default_aggregation":{"formula":"sum"},"event_time_window":null}]}`)
			return
		}
		fmt.Fprintf(w, `{"object":"list","has_more":false,"data":[{"id":"s","aggregated_value":%s}]}`, value)
	}))
	p := provider(t, server.URL, server.Close, slog.New(slog.DiscardHandler))
	for text, want := range map[string]string{"0": "0", "-3": "-3", "9007199254740993": "9007199254740993", "28600.0": "28600",
		"3e5": "300000", "1.5E1": "15",
		"2.5": "", "1e-1": "", "1e999999999": "", `"x"`: "", "null": "", "{}": ""} {
		value = text
		got, err := p.Total(context.Background(), "cus_1", "api_calls", november, december)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("%s: %s, %v; want %q", text, got, err, want)
		}
	}
	value = `1}], "object":"other", "x":[{"y":1`
	if got, err := p.Total(context.Background(), "cus_1", "api_calls", november, december); err == nil {
		t.Errorf("an answer that is no list: %s", got)
	}
}
