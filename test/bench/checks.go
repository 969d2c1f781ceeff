package main

import (
	"context"
	"fmt"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	checkClients = 32
	// checkRate is the rate at which latencies of checks are measured.
	checkRate = 5000
)

// checks is B6: entitlement checks over HTTP, compared with a server of the same kind
// with an empty handler.
func (r *run) checks(ctx context.Context, s *subject) error {
	empty, err := startInstance(r.cfg.Empty(ctx), ownEnvironment())
	if err != nil {
		return fmt.Errorf("start a server to compare with: %w", err)
	}
	defer func() { _ = empty.stop() }()
	idle := &target{urls: []string{empty.url}, feature: s.feature, tenants: s.tenants}
	bare, err := idle.newLoad(ctx, checkClients, func(url string) (*message, error) {
		return newMessage(url, idle, "GET", "/entitlements/"+s.feature+"/check", "")
	})
	if err != nil {
		return err
	}
	defer bare.close()
	l, err := s.newCheckLoad(ctx, checkClients, 1)
	if err != nil {
		return err
	}
	defer l.close()
	if err := s.settled(ctx); err != nil {
		return err
	}
	for _, one := range []*load{l, bare} {
		if err := r.warm(ctx, one); err != nil {
			return err
		}
	}
	f := figureB6()
	err = r.pair(ctx, &f, func() (float64, error) {
		did, err := closed(ctx, checkClients, r.times.round, bare.send)
		return did.perSecond(), err
	}, func() (rate, error) { return closed(ctx, checkClients, r.times.round, l.send) })
	if err != nil {
		return err
	}
	var limit, measured *hdrhistogram.Histogram
	if limit, _, err = openOver(checkRate, r.times.paced, checkClients, bare.sendOne).run(ctx); err != nil {
		return err
	}
	if measured, _, err = openOver(checkRate, r.times.paced, checkClients, l.sendOne).run(ctx); err != nil {
		return err
	}
	f.Latency, f.LimitLatency = latencyOf(measured), latencyOf(limit)
	f.LatencyAt = fmt.Sprintf("of a check, at %d checks/s", checkRate)
	r.addFigure(f)
	return nil
}

// newCheckLoad sends entitlement checks of some questions each.
func (t *target) newCheckLoad(ctx context.Context, clients, questions int) (*load, error) {
	return t.newLoad(ctx, clients, func(url string) (*message, error) { return newCheck(url, t, questions) })
}
