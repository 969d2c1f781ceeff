package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// event returns a usage event with the current time. The demo sends only api_calls,
// so that the trace's totals stay as in the file.
func (d *demo) event() ([]byte, error) {
	return json.Marshal(map[string]any{
		"eventId": newEventID(), "feature": "api_calls", "amount": 1,
		"timestamp": d.now().UTC().Format(time.RFC3339Nano),
	})
}

func (d *demo) sendNow(ctx context.Context, n int) ([]verdict, error) {
	var b batch
	for range n {
		e, err := d.event()
		if err != nil {
			return nil, fmt.Errorf("write an event: %w", err)
		}
		b.add(e)
	}
	return d.tenant.ingest(ctx, b.events)
}

// figure is a row of the billing figures.
type figure struct {
	Feature    string
	PeriodKey  string
	Amount     int64
	EventCount int64
}

// figures sends one event after the trace and reads the totals up to and including it.
func (d *demo) figures(ctx context.Context) ([]figure, error) {
	verdicts, err := d.sendNow(ctx, 1)
	if err != nil {
		return nil, err
	}
	if v := verdicts[0]; !v.good() {
		return nil, fmt.Errorf("a usage event was not taken: %s: %s", v.Code, v.Reason)
	}
	raw, err := d.tenant.do(ctx, request{
		method: http.MethodGet, path: "/usage/aggregates", query: url.Values{"minPosition": {verdicts[0].Position}},
		header: http.Header{"Prefer": {"wait=30"}},
	})
	if err != nil {
		return nil, err
	}
	var answer struct{ Data []figure }
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, fmt.Errorf("read the figures: %w", err)
	}
	return answer.Data, nil
}

// drive sends d.rate events each second until ctx ends. It reports errors at most
// every 10 s and continues.
func (d *demo) drive(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var reported time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if d.rate == 0 {
			continue
		}
		if _, err := d.sendNow(ctx, d.rate); err != nil && ctx.Err() == nil && d.now().Sub(reported) > 10*time.Second {
			reported = d.now()
			d.say("Sending usage failed: %s", brief(err))
		}
	}
}
