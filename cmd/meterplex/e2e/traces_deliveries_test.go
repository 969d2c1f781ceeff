package e2e

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/infra/stripe/stripetest"
	"github.com/meterplex/meterplex/internal/tier"
)

// The request to close a period, its figures, its push to Stripe and its webhook are one trace. The requests to other services name the event that they
// deliver, also if the instance exports no traces.
func TestADeliveryIsInTheTraceOfItsEvent(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w, c := newDeployment(t), newCollector(t)
	w.pipe = "postgres"
	fake := stripetest.New("sk_test_traces", time.Now().UTC())
	fake.Real = true
	t.Cleanup(fake.Close)
	fake.AddMeter(stripetest.Meter{Event: "api_calls"})
	fake.AddCustomer("cus_1")
	var mu sync.Mutex
	var received []http.Header
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		received = append(received, r.Header)
	}))
	t.Cleanup(receiver.Close)
	settings := []string{"METERPLEX_STRIPE_KEY=sk_test_traces", "METERPLEX_STRIPE_URL=" + fake.URL, "METERPLEX_WEBHOOK_ALLOW=127.0.0.0/8"}
	for n, more := range [][]string{nil, c.settings()} {
		at := w.serve("", append(settings, more...)...)
		if n == 0 {
			w.catalogue(at)
		}
		x := w.createTenants(at, 1)[0]
		w.ask(w.operator, http.MethodPut, at, "/api/v1/tenants/"+x.id+"/billing", object{"provider": "stripe", "customer": "cus_1"}, nil, http.StatusOK)
		w.ask(w.operator, http.MethodPost, at, "/api/v1/tenants/"+x.id+"/webhooks", object{"url": receiver.URL, "events": []string{"period.closed"}}, nil, http.StatusCreated)
		w.ingest(at, x, "accepted", events("in-time", 3, "api_calls")...)
		w.settle(at, x)
		trace := [2]string{"4bf92f3577b34da6a3ce929d0e0e4736", "5bf92f3577b34da6a3ce929d0e0e4736"}[n]
		w.ask(w.operator, http.MethodPost, at, "/api/v1/tenants/"+x.id+"/periods/"+time.Now().UTC().Format("2006-01")+"/close", object{"reason": "a test", "early": true}, nil,
			http.StatusAccepted, "Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
		requested, closed := ofType(w, at, trace, "meterplex.billing.period.close_requested"), ofType(w, at, trace, "meterplex.billing.period.closed")
		delivered := ofType(w, at, trace, "meterplex.billing.push.delivered")
		want := "00-" + trace + "-" + closed.span() + "-00"
		mu.Lock()
		hooks := received
		received = nil
		mu.Unlock()
		for len(hooks) == 0 {
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			hooks = append(hooks, received...)
			received = nil
			mu.Unlock()
		}
		requests := fake.Requests()
		if got := requests[len(requests)-1].Header.Values("Traceparent"); len(requests) != n+1 || len(got) != 1 || got[0] != want {
			t.Errorf("Stripe has %d requests, the last with the traceparent %q, want %s", len(requests), got, want)
		}
		if got := hooks[0].Values("Traceparent"); len(hooks) != 1 || len(got) != 1 || got[0] != want {
			t.Errorf("the webhook has %d requests, the first with the traceparent %q, want %s", len(hooks), got, want)
		}
		if more == nil {
			at.stop()
			continue
		}
		request := awaitSpan(t, c, trace, "the request", func(s *span) bool { return s.Parent == "00f067aa0ba902b7" })
		awaitSpan(t, c, trace, "the request to close", appendOf(&requested, request.ID))
		awaitSpan(t, c, trace, "the close, below its request", appendOf(&closed, requested.span()))
		for _, name := range []string{"send push", "send webhook"} {
			awaitSpan(t, c, trace, name, func(s *span) bool { return s.Name == name && s.Trace == trace && s.Parent == closed.span() })
		}
		awaitSpan(t, c, trace, "the delivery", appendOf(&delivered, closed.span()))
	}
	w.finish()
}
