package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// readRate is the number of reads in a second, with the rebuild and without it.
const readRate = 200

// rebuild is B8: the aggregates of a long history are rebuilt while readers read the live ones, and
// again by workers that do not rest.
func (r *run) rebuild(ctx context.Context, s *subject) error {
	total := r.times.history
	if _, err := r.writeHistory(ctx, s, total, manyFigures()); err != nil {
		return err
	}
	alone, err := s.rebuilt(ctx, aggregates, total, rebuildWorkers, nil)
	if err != nil {
		return err
	}
	f := figureB8(total)
	if f.LimitLatency, err = s.readFor(ctx, r.times.latency/2, nil); err != nil {
		return err
	}
	limit, err := s.copyOut(ctx, total)
	if err != nil {
		return err
	}
	err = r.measureRebuild(ctx, &f, limit, func() (rate, error) {
		return s.rebuilt(ctx, aggregates, total, 0, func(during context.Context) (err error) {
			f.Latency, err = s.readFor(during, time.Hour, during)
			return err
		})
	})
	if err != nil {
		return err
	}
	f.LatencyAt = fmt.Sprintf("of a read of the aggregates during a rebuild, at %d reads/s; the limit is without a rebuild", readRate)
	f.note("no reads beside it", fmt.Sprintf("%s events/s with %d workers, %.2f of the limit", short(alone.perSecond()), rebuildWorkers,
		alone.perSecond()/limit.perSecond()))
	r.addFigure(f)
	return r.rebuildWithoutRests(ctx, s, limit)
}

// rebuildWithoutRests is B8 with METERPLEX_REBUILD_SHARE=100: it has the machine to itself.
func (r *run) rebuildWithoutRests(ctx context.Context, s *subject, limit rate) error {
	if err := s.restart(ctx, "METERPLEX_REBUILD_SHARE=100"); err != nil {
		return err
	}
	f := figureB8Alone()
	err := r.measureRebuild(ctx, &f, limit, func() (rate, error) {
		return s.rebuilt(ctx, aggregates, limit.events, rebuildWorkers, nil)
	})
	if err != nil {
		return err
	}
	r.addFigure(f)
	return nil
}

// measureRebuild measures a rebuild's rate and its cost.
func (r *run) measureRebuild(ctx context.Context, f *Figure, limit rate, rebuild func() (rate, error)) error {
	end, err := r.servers.measure(ctx)
	if err != nil {
		return err
	}
	did, err := rebuild()
	if err != nil {
		return err
	}
	took, err := end(did)
	if err != nil {
		return err
	}
	f.Value, f.Limit = did.perSecond(), limit.perSecond()
	f.Ratio = f.Value / f.Limit
	f.cost(took, r.servers.meter.memory())
	return nil
}

// Paths of the rebuilds of a projection.
const (
	aggregates  = "/projections/usage_aggregates/rebuilds"
	deadLetters = "/projections/dead_letter_events/rebuilds"
)

// rebuilt rebuilds and promotes a projection, and returns the rate of the fold of a number of events.
// The function beside runs until the rebuild is ready.
func (s *subject) rebuilt(ctx context.Context, rebuilds string, total, workers int, beside func(context.Context) error) (rate, error) {
	a := s.operatorAPI()
	var made struct{ ID string }
	body := map[string]any{"reason": "bench"}
	if workers > 0 {
		body["workers"] = workers
	}
	began := time.Now()
	if err := a.call(ctx, "POST", rebuilds, body, &made); err != nil {
		return rate{}, err
	}
	during, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() {
		if beside == nil {
			done <- nil
			return
		}
		done <- beside(during)
	}()
	path := "/rebuilds/" + made.ID
	for state := ""; state != "READY"; time.Sleep(20 * time.Millisecond) {
		var now struct{ State, Failure string }
		if err := a.call(ctx, "GET", path, nil, &now); err != nil {
			return rate{}, err
		}
		if state = now.State; state == "FAILED" {
			return rate{}, errors.New("the rebuild failed: " + now.Failure)
		}
	}
	took := time.Since(began)
	stop()
	if err := <-done; err != nil {
		return rate{}, err
	}
	if err := a.call(ctx, "POST", path+"/promote", map[string]any{"reason": "bench"}, nil); err != nil {
		return rate{}, err
	}
	return rate{events: total, took: took}, nil
}

// rebuildWorkers use the whole machine.
const rebuildWorkers = 2

// readFor reads aggregates in an open loop, for a duration or until a context ends.
func (s *subject) readFor(ctx context.Context, d time.Duration, until context.Context) (*Latency, error) {
	h := newHistogram()
	tenants := make([]*api, len(s.tenants))
	for i := range s.tenants {
		tenants[i] = &api{s.urls[0], s.tenants[i].secret, http.DefaultClient}
	}
	var turn atomic.Int64
	for began := time.Now(); time.Since(began) < d && (until == nil || until.Err() == nil); {
		part, _, err := openOver(readRate, time.Second, 16, func(_, _ int) error {
			var page struct{ Data []any }
			return tenants[turn.Add(1)%int64(len(tenants))].call(context.WithoutCancel(ctx), "GET", "/usage/aggregates", nil, &page)
		}).run(context.WithoutCancel(ctx))
		if err != nil {
			return nil, err
		}
		h.Merge(part)
	}
	return latencyOf(h), nil
}

// copyOutSQL reads only the columns that the fold needs.
var copyOutSQL = events.SQL(`COPY (SELECT position, tenant_id, subject, occurred_at, dedupe_key, body FROM event_log_rows
	WHERE topic = {usage.validated} AND partition %% %d = %d) TO STDOUT (FORMAT binary)`)

func (s *subject) copyOut(ctx context.Context, total int) (rate, error) {
	began := time.Now()
	err := all(rebuildWorkers, func(i int) error {
		conn, err := pgx.Connect(ctx, s.databaseURL)
		if err != nil {
			return fmt.Errorf("reach the database: %w", err)
		}
		defer conn.Close(context.WithoutCancel(ctx))
		if _, err := conn.PgConn().CopyTo(ctx, io.Discard, fmt.Sprintf(copyOutSQL, rebuildWorkers, i)); err != nil {
			return fmt.Errorf("copy the verdicts out: %w", err)
		}
		return nil
	})
	return rate{events: total, took: time.Since(began)}, err
}
