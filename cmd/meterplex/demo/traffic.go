package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// event returns a usage event with the current time. The demo sends only api_calls,
// so that the trace's totals stay as in the file.
func (d *Demo) event() ([]byte, error) {
	return json.Marshal(map[string]any{
		"eventId": client.NewEventID(), "feature": "api_calls", "amount": 1,
		"timestamp": d.Now().UTC().Format(time.RFC3339Nano),
	})
}

func (d *Demo) sendNow(ctx context.Context, n int) ([]client.Verdict, error) {
	var b client.Batch
	for range n {
		e, err := d.event()
		if err != nil {
			return nil, fmt.Errorf("write an event: %w", err)
		}
		b.Add(e)
	}
	return d.tenant.Ingest(ctx, b.Events)
}

// figure is a row of the billing figures.
type figure struct {
	Feature    string
	PeriodKey  string
	Amount     int64
	EventCount int64
}

// figures sends one event after the trace and reads the totals up to and including it.
func (d *Demo) figures(ctx context.Context) ([]figure, error) {
	verdicts, err := d.sendNow(ctx, 1)
	if err != nil {
		return nil, err
	}
	if v := verdicts[0]; !v.Good() {
		return nil, fmt.Errorf("a usage event was not accepted: %s: %s", v.Code, v.Reason)
	}
	raw, err := d.tenant.Do(ctx, client.Request{
		Method: http.MethodGet, Path: "/usage/aggregates", Query: url.Values{"minPosition": {verdicts[0].Position}},
		Header: http.Header{"Prefer": {"wait=30"}},
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
func (d *Demo) drive(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var reported time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if d.Rate == 0 {
			continue
		}
		if _, err := d.sendNow(ctx, d.Rate); err != nil && ctx.Err() == nil && d.Now().Sub(reported) > 10*time.Second {
			reported = d.Now()
			d.Report("Sending usage failed: %s", client.Brief(err))
		}
	}
}
