package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/examples/webhooks"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/stripetest"
	"github.com/meterplex/meterplex/internal/tier"
)

// hookReceiver keeps the requests that an endpoint gets, by their webhook-id, without the parts of one attempt.
type hookReceiver struct {
	url    string
	mu     sync.Mutex
	got    map[string]string
	twice  []string
	secret string
}

func newHookReceiver(t *testing.T) *hookReceiver {
	r := &hookReceiver{got: map[string]string{}}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, sent *http.Request) {
		body, err := io.ReadAll(sent.Body)
		must.OK(t, err)
		r.mu.Lock()
		defer r.mu.Unlock()
		if !webhooks.Verify(r.secret, sent.Header, body, time.Now()) {
			t.Errorf("a request is not signed with the secret: %v", sent.Header)
		}
		id := sent.Header.Get("webhook-id")
		if r.got[id] != "" {
			r.twice = append(r.twice, id)
		}
		sent.Header.Del("webhook-timestamp")
		sent.Header.Del("webhook-signature")
		r.got[id] = fmt.Sprintf("%v\n%s", sent.Header, body)
	}))
	t.Cleanup(s.Close)
	r.url = s.URL + "/hook"
	return r
}

func (r *hookReceiver) all() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.got)
}

// lines is the output of a command that runs.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// The listener of a developer sends the requests of the service, once each, although its connection breaks: all types of events, with the
// headers and the bytes of the bodies. It ends with 0 by Ctrl-C.
func TestAListenerSendsTheRequestsOfTheService(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	w := newDeployment(t)
	w.pipe = "postgres"
	stripe := stripetest.New("sk_test_listen", time.Now().UTC()) // it knows no meter
	t.Cleanup(stripe.Close)
	at := w.serve("", hooksAllowed, "METERPLEX_STRIPE_KEY="+stripe.Key, "METERPLEX_STRIPE_URL="+stripe.URL)
	front := newProxy(t, func() string { return hostOf(at.url()) })
	front.start()
	w.catalogue(at)
	x := w.createTenants(at, 1)[0]
	key, of := w.keyOf(at, x, "entitlements:reserve", "events:read"), "/api/v1/tenants/"+x.id
	services, listeners := newHookReceiver(t), newHookReceiver(t)
	var made struct{ Secret string }
	w.ask(w.operator, http.MethodPost, at, of+"/webhooks", object{"url": services.url, "events": webhook.Events()}, &made,
		http.StatusCreated)
	services.secret = made.Secret

	c := w.cli(at, key)
	c.env = append(c.env, "METERPLEX_URL="+front.url())
	cmd := c.command(t.Context(), "webhooks", "listen", "--forward-to", listeners.url)
	var out, errs lines
	cmd.Stdout, cmd.Stderr = &out, &errs
	must.OK(t, cmd.Start())
	within(t, "the listener runs", func(context.Context) (bool, string) {
		_, secret, _ := strings.Cut(errs.String(), "The signing secret is ")
		listeners.mu.Lock()
		defer listeners.mu.Unlock()
		listeners.secret, _, _ = strings.Cut(secret, "\n")
		return strings.Contains(errs.String(), "until Ctrl-C"), errs.String()
	})

	broken := func() {
		within(t, "the connection of the listener breaks", func(context.Context) (bool, string) {
			front.set(cuts)
			defer front.set(passes)
			return front.hits.Load() > 0, ""
		})
	}
	w.ask(w.operator, http.MethodPost, at, of+"/thresholds", object{"amount": 5}, nil, http.StatusCreated)
	w.ask(key, http.MethodPost, at, "/api/v1/entitlements/calls/consume", object{"eventId": "crosses", "amount": 6}, nil, http.StatusOK)
	broken()
	w.ask(key, http.MethodPost, at, "/api/v1/entitlements/calls/reservations", object{"reservationId": "r", "amount": 1, "ttlSeconds": 1},
		nil, http.StatusCreated)
	w.ask(x.key, http.MethodPost, at, "/api/v1/usage/events", object{"events": []object{{"eventId": "refused", "feature": "none",
		"amount": 1, "timestamp": time.Now().UTC().Format(time.RFC3339)}}}, nil, http.StatusAccepted)
	w.ingest(at, x, "accepted", events("in-time", 1, "api_calls")...)
	w.ask(w.operator, http.MethodPut, at, of+"/billing", object{"provider": "stripe", "customer": "cus_unknown"}, nil, http.StatusOK)
	w.ask(w.operator, http.MethodPatch, at, of, object{"lateUsage": "ADJUST"}, nil, http.StatusOK)
	broken()
	w.ask(w.operator, http.MethodPost, at, of+"/periods/"+time.Now().UTC().Format("2006-01")+"/close",
		object{"reason": "a test", "early": true}, nil, http.StatusAccepted)
	within(t, "the period is closed", func(context.Context) (bool, string) {
		return w.count(`SELECT count(*) FROM event_log_rows WHERE tenant_id = $1 AND subject = 72`, x.id) > 0, ""
	})
	w.ingest(at, x, "accepted", events("late", 1, "api_calls")...)
	types := func(all map[string]string) (kinds []string) {
		for _, text := range all {
			_, kind, _ := strings.Cut(text, `{"type":"`)
			kind, _, _ = strings.Cut(kind, `"`)
			kinds = append(kinds, kind)
		}
		slices.Sort(kinds)
		return slices.Compact(kinds)
	}
	want := slices.Sorted(slices.Values(webhook.Events()))
	within(t, "both have events of all types", func(context.Context) (bool, string) {
		s, l := services.all(), listeners.all()
		return slices.Equal(types(s), want) && len(s) == len(l), fmt.Sprint(types(s), types(l), "\n", out.String(), errs.String())
	})
	w.drain()
	s, l := services.all(), listeners.all()
	for id := range s {
		if s[id] != l[id] {
			t.Errorf("the service sends\n%s\nand the listener\n%s", s[id], l[id])
		}
	}
	if len(s) != len(l) || len(listeners.twice) > 0 || strings.Count(out.String(), "  200  ") != len(l) {
		t.Errorf("%d and %d requests, twice %q\n%s", len(s), len(l), listeners.twice, out.String())
	}
	must.OK(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err != nil {
		t.Errorf("Ctrl-C: %v\n%s", err, errs.String())
	}
	w.finish()
}
