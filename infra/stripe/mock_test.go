package stripe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stripe/stripe-mock/embedded"
	"github.com/stripe/stripe-mock/server"

	"github.com/meterplex/meterplex/domain/push"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/internal/must"
)

// stripeMock serves stripe-mock, which validates requests by Stripe's OpenAPI document, and returns the statuses of its answers by method
// and path.
func stripeMock(t testing.TB) (*httptest.Server, func() string) {
	t.Helper()
	document, err := server.LoadSpec(embedded.OpenAPISpec, "")
	must.OK(t, err)
	fixtures, err := server.LoadFixtures(embedded.OpenAPIFixtures, "")
	must.OK(t, err)
	stub, err := server.NewStubServer(fixtures, document, false, false)
	must.OK(t, err)
	var log strings.Builder
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := httptest.NewRecorder()
		stub.HandleRequest(answer, r)
		fmt.Fprintf(&log, "%s %s %d\n", r.Method, r.URL.Path, answer.Code)
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	t.Cleanup(s.Close)
	return s, log.String
}

// TestRequestsAndTheFakeFollowStripesDocument: stripe-mock accepts each request, refuses others, and answers with the members of the fake's
// answers.
func TestRequestsAndTheFakeFollowStripesDocument(t *testing.T) {
	mock, log := stripeMock(t)
	p := provider(t, mock.URL, func() {}, slog.New(slog.DiscardHandler))
	if r := p.Send(context.Background(), pushOf(1, -7), events.TracedEvent{}); r.Outcome != push.Delivered {
		t.Errorf("%+v", r)
	}
	listed := ask(t, mock.URL, "GET", "/v1/billing/meters", nil, 200).(map[string]any)["data"].([]any)[0].(map[string]any)
	if total, err := p.Total(context.Background(), "cus_1", listed["event_name"].(string), november, december); err != nil ||
		total.Sign() <= 0 {
		t.Errorf("%s, %v", total, err)
	}
	want := "POST /v1/billing/meter_events 200\nGET /v1/billing/meters 200\nGET /v1/billing/meters 200\nGET /v1/billing/meters/" +
		listed["id"].(string) + "/event_summaries 200\n"
	if got := log(); got != want {
		t.Errorf("stripe-mock answered\n%s, want\n%s", got, want)
	}
	fake, _ := account(t)
	for _, c := range []struct {
		method, path string
		form         url.Values
		status       int
	}{
		{"POST", "/v1/billing/meter_events", url.Values{"event_name": {"api_calls"}, "identifier": {"i"},
			"timestamp": {fmt.Sprint(november.Unix())}, "payload[stripe_customer_id]": {"cus_1"}, "payload[value]": {"7"}}, 200},
		{"POST", "/v1/billing/meter_events", url.Values{"event_name": {"api_calls"}, "timestamp": {"x"}, "payload[value]": {"7"}}, 400},
		{"GET", "/v1/billing/meters", url.Values{"limit": {"100"}}, 200},
		{"GET", "/v1/billing/meters/mtr_1/event_summaries", url.Values{"customer": {"cus_1"}, "start_time": {fmt.Sprint(november.Unix())},
			"end_time": {fmt.Sprint(december.Unix())}}, 200},
	} {
		of, real := ask(t, fake.URL, c.method, c.path, c.form, c.status), ask(t, mock.URL, c.method, c.path, c.form, c.status)
		if missing := members("", of, real); missing != "" && c.status == 200 {
			t.Errorf("%s %s: the fake's answer has the members%s, which Stripe's does not have", c.method, c.path, missing)
		}
	}
}

func ask(t testing.TB, base, method, path string, form url.Values, status int) (body any) {
	t.Helper()
	target, content := base+path+"?"+form.Encode(), io.Reader(nil)
	if method == http.MethodPost {
		target, content = base+path, strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(context.Background(), method, target, content)
	must.OK(t, err)
	req.Header.Set("Authorization", "Bearer "+canary)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	must.OK(t, err)
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&body); err != nil || res.StatusCode != status {
		t.Errorf("%s%s: %d %v, want %d: %v", base, path, res.StatusCode, body, status, err)
	}
	return body
}

// members returns the members of an answer that another does not have, or has with another type. A member without a value has any type.
func members(at string, of, real any) (missing string) {
	switch value := of.(type) {
	case map[string]any:
		other, _ := real.(map[string]any)
		for name, v := range value {
			if r, has := other[name]; !has {
				missing += " " + at + "." + name
			} else if name != "payload" {
				missing += members(at+"."+name, v, r)
			}
		}
	case []any:
		if other, _ := real.([]any); len(value) > 0 && len(other) > 0 {
			missing += members(at+"[]", value[0], other[0])
		}
	default:
		if of != nil && real != nil && fmt.Sprintf("%T", of) != fmt.Sprintf("%T", real) {
			missing += fmt.Sprintf(" %s (%T, %T)", at, of, real)
		}
	}
	return missing
}
