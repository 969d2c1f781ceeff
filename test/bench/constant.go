package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
)

// constantDenial is the body of a denial, as long as that of the service.
const constantDenial = `{"type":"/docs#problem-quota_exceeded","title":"The limit of the feature does not allow the amount","status":409,` +
	`"detail":"The limit of bench_reached does not allow this amount: 0 of 0 remain in the period 2026-11; nothing was recorded",` +
	`"instance":"/api/v1/entitlements/bench_reached/consume","code":"quota_exceeded","errors":[{"pointer":"/amount","code":"quota_exceeded",` +
	`"detail":"The limit of bench_reached does not allow this amount: 0 of 0 remain in the period 2026-11; nothing was recorded"}],` +
	`"traceId":"0196f3a0c6f77c3f8b1e2d3c4b5a6978","limit":0,"used":0,"held":0,"remaining":0,"resetAt":"2026-12-01T00:00:00Z"}` + "\n"

// Constant is the handler of a server to compare with. It reads the body of a POST and answers a constant denial; other requests
// get an empty answer.
func Constant(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return // the client has gone
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Content-Length", strconv.Itoa(len(constantDenial)))
	w.WriteHeader(http.StatusConflict)
	_, _ = io.WriteString(w, constantDenial)
}

// constantLoad sends the requests of B7c to a server that answers each with the same denial: what the clients and HTTP cost on this
// machine, without a decision.
type constantLoad struct {
	run    *run
	server *instance
	load   *load
	rates  []float64
}

func (r *run) newConstantLoad(ctx context.Context, t *target) (*constantLoad, error) {
	server, err := startInstance(r.cfg.Empty(ctx), ownEnvironment())
	if err != nil {
		return nil, fmt.Errorf("start a server to compare with: %w", err)
	}
	at := *t
	at.urls = []string{server.url}
	l, err := at.newConsumeLoad(ctx, singleClients, doneFeature, http.StatusConflict)
	if err != nil {
		return nil, errors.Join(err, server.stop())
	}
	return &constantLoad{run: r, server: server, load: l}, nil
}

// before returns a measurement that measures the constant server first.
func (c *constantLoad) before(ctx context.Context, limit func() (float64, error)) func() (float64, error) {
	return func() (float64, error) {
		did, err := closed(ctx, singleClients, c.run.times.round, c.load.send)
		if err != nil {
			return 0, err
		}
		c.rates = append(c.rates, math.Round(did.perSecond()))
		return limit()
	}
}

// close stops the server and notes its rate beside a figure. A nil load does nothing.
func (c *constantLoad) close(f *Figure) {
	if c == nil {
		return
	}
	c.load.close()
	_ = c.server.stop()
	if most := median(c.rates); most > 0 {
		f.note("raw limit of HTTP", fmt.Sprintf("%s requests/s, by an HTTP server of another process that answers the same requests "+
			"with a constant denial (rounds: %s): %.2f of it, and it is %.2f times the single events",
			short(most), list(c.rates), f.Value/most, most/f.Limit))
	}
}
