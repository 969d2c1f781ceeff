package main

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// Rebuilt is the result of a rebuild.
type Rebuilt struct {
	Projection string  `json:"projection"`
	RebuildID  string  `json:"rebuildId"`
	State      string  `json:"state"`
	Events     int64   `json:"events"`
	Seconds    float64 `json:"seconds"`
	Reached    float64 `json:"perSecond"`
}

// Rebuild rebuilds a projection beside the live one until it has caught up, and abandons it.
func (m *Remote) Rebuild(ctx context.Context, projection string, workers int) (r *Rebuilt, err error) {
	a := &api{m.URL, m.Key, http.DefaultClient}
	body := map[string]any{"reason": "bench rebuild"}
	if workers > 0 {
		body["workers"] = workers
	}
	var now struct {
		ID, State, Failure string
		Progress           *struct{ EventsDone int64 }
	}
	began := time.Now()
	if err := a.call(ctx, "POST", "/projections/"+projection+"/rebuilds", body, &now); err != nil {
		return nil, err
	}
	r = &Rebuilt{Projection: projection, RebuildID: now.ID}
	path := "/rebuilds/" + now.ID
	ctx, cancel := context.WithTimeout(ctx, m.Duration)
	defer cancel()
	// Abandon it also after an interruption; otherwise it would stay.
	defer func() {
		if derr := a.call(context.WithoutCancel(ctx), "POST", path+"/abandon", map[string]any{"reason": "measured"}, nil); err == nil &&
			derr != nil {
			err = fmt.Errorf("the rebuild was measured, but not abandoned: %w; run meterplex projections abandon %s", derr, r.RebuildID)
		}
	}()
	for now.State != "READY" {
		pause(ctx, 20*time.Millisecond)
		if err := a.call(ctx, "GET", path, nil, &now); err != nil {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("the rebuild is not ready after %s: increase --duration", m.Duration)
			}
			return nil, err
		}
		if now.State == "FAILED" || now.State == "ABANDONED" {
			return nil, fmt.Errorf("the rebuild is %s: %s", now.State, now.Failure)
		}
	}
	r.State, r.Seconds = now.State, time.Since(began).Seconds()
	if now.Progress != nil {
		r.Events = now.Progress.EventsDone
	}
	r.Reached, r.Seconds = round(float64(r.Events)/r.Seconds, 1), round(r.Seconds, 3)
	return r, nil
}
