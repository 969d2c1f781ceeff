package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/internal/must"
)

// client is a tenant's producer. It retries events without a verdict.
type client struct {
	w      *deployment
	tenant *tenant
	to     func() string // base URL to send to now, "" if there is no instance

	mu      sync.Mutex
	answers []answer
	lost    int // requests without an answer, or with 503
	refused int // requests that the service did not begin, because it was overloaded
}

// answer is when a request was answered and how long that took.
type answer struct {
	at   time.Time
	took time.Duration
}

// sendOnce sends a batch once. ok is false if the events have no verdict yet.
func (c *client) sendOnce(ctx context.Context, batch []event) (verdicts []verdict, ok bool) {
	base := c.to()
	if base == "" {
		return nil, false
	}
	c.tenant.ledger.sending(batch)
	start := time.Now()
	status, body, err := c.w.call(ctx, c.tenant.key, http.MethodPost, base+"/api/v1/usage/events", map[string]any{"events": batch})
	if bytes.Contains(body, []byte("SQLSTATE")) {
		c.w.t.Errorf("a database error reached a client: %d %s", status, body)
	}
	switch {
	case status == http.StatusTooManyRequests, bytes.Contains(body, []byte(`"code":"overloaded"`)):
		c.note(func() { c.refused++ })
		return nil, false
	case err != nil, status == http.StatusServiceUnavailable:
		c.note(func() { c.lost++ })
		return nil, false
	}
	var response struct{ Events []verdict }
	if err := json.Unmarshal(body, &response); err != nil || status != http.StatusAccepted {
		c.w.t.Errorf("ingest answered %d: %s", status, body)
		return nil, false
	}
	if err := c.tenant.ledger.answered(batch, response.Events); err != nil {
		c.w.t.Errorf("answer to a batch: %v", err)
	}
	end := time.Now()
	c.note(func() { c.answers = append(c.answers, answer{end, end.Sub(start)}) })
	return response.Events, true
}

func (c *client) note(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// send retries a batch until it has an answer. It returns nil when ctx ends.
func (c *client) send(ctx context.Context, batch []event) []verdict {
	for ctx.Err() == nil {
		if verdicts, ok := c.sendOnce(ctx, batch); ok {
			return verdicts
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// settle sends events without a verdict again until each has one. It returns the verdicts.
func (w *deployment) settle(at *instance, tenants ...*tenant) (verdicts []verdict) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for _, x := range tenants {
		c := &client{w: w, tenant: x, to: at.url}
		for open := x.ledger.unknown(); len(open) > 0; open = x.ledger.unknown() {
			got := c.send(ctx, open[:min(len(open), 1000)])
			if got == nil {
				w.t.Fatalf("%d events have no verdict", len(open))
			}
			verdicts = append(verdicts, got...)
		}
	}
	return verdicts
}

// ingest sends events and checks that each gets the status want.
func (w *deployment) ingest(at *instance, x *tenant, want string, batch ...event) []verdict {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	verdicts := (&client{w: w, tenant: x, to: at.url}).send(ctx, batch)
	if verdicts == nil {
		w.t.Fatalf("a batch of %d was not answered", len(batch))
	}
	for _, v := range verdicts {
		if v.Status != want {
			w.t.Fatalf("%s: %s %s, want %s", v.EventID, v.Status, v.Code, want)
		}
	}
	return verdicts
}

// events returns n events of usage of a feature, with amounts from 1 to 7.
func events(prefix string, n int, feature string) []event {
	now := time.Now().UTC().Truncate(time.Microsecond)
	batch := make([]event, n)
	for i := range batch {
		batch[i] = event{fmt.Sprint(prefix, "-", i), feature, int64(i%7 + 1), now.Add(-time.Duration(i) * time.Millisecond)}
	}
	return batch
}

func jsonOf(t testing.TB, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	must.OK(t, err)
	return raw
}
