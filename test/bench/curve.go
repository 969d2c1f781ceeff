package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"
)

// Curve is latency by throughput.
type Curve struct {
	Panel  string  `json:"panel"` // curves of one panel share their axes
	Name   string  `json:"name"`
	Points []Point `json:"points"`
}

// Point is an open-loop load of a few seconds.
type Point struct {
	Rate    float64  `json:"eventsPerSecond"` // offered
	Latency *Latency `json:"latency"`
}

const (
	ingestPanel = "Ingest: request to 202 (role api)"
	freshPanel  = "Freshness: 202 to readable (all roles)"
)

// curveShares are the offered shares of the greatest rate of a closed loop.
func curveShares() []float64 { return []float64{0.10, 0.25, 0.50, 0.70, 0.85, 0.95} }

// ingestCurves offers B1's and B2's loads at shares of their greatest rates.
func (r *run) ingestCurves(ctx context.Context, s *subject) error {
	for _, kind := range []struct {
		figure, name  string
		clients, size int
	}{
		{"B2", "single events", singleClients, 1},
		{"B1", "batches of 1,000", batchClients, batchSize},
	} {
		l, err := r.warmLoad(ctx, s, kind.clients, kind.size)
		if err != nil {
			return err
		}
		defer l.close()
		if r.maxRates[kind.figure] == 0 {
			did, err := closed(ctx, kind.clients, r.times.round, l.send)
			if err != nil {
				return err
			}
			r.maxRates[kind.figure] = did.perSecond()
		}
		c := Curve{Panel: ingestPanel, Name: kind.name}
		for _, share := range curveShares() {
			if err := s.markPublished(ctx); err != nil {
				return err
			}
			offered := r.maxRates[kind.figure] * share
			h, _, err := openOver(offered/float64(kind.size), r.times.point, kind.clients, l.sendOne).run(ctx)
			if err != nil {
				return err
			}
			r.plot(&c, offered, h)
		}
		r.report.Curves = append(r.report.Curves, c)
	}
	return nil
}

// backlogSeen is how soon an instance notices a change of the backlog.
const backlogSeen = 3 * time.Second

const passRelaySQL = `UPDATE relay_cursors c SET position = h.position, fence = fence + 1 FROM log_heads h WHERE h.partition = c.partition`

// markPublished marks all events as published, and waits until the instance notices.
func (s *subject) markPublished(ctx context.Context) error {
	if err := s.moveRelayToHeads(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(backlogSeen):
	}
	return ctx.Err()
}

// moveRelayToHeads moves the relay's cursors to the heads: an instance without a relay
// refuses usage, rightly, when ten million events wait to be published.
func (s *subject) moveRelayToHeads(ctx context.Context) error {
	address, err := inDatabase(s.servers.database.AdminURL(), s.database)
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, passRelaySQL); err != nil {
		return fmt.Errorf("move the relay's cursors: %w", err)
	}
	return nil
}

// freshCurves offers several rates and measures freshness.
func (r *run) freshCurves(ctx context.Context, s *subject) error {
	for _, kind := range []struct {
		name  string
		size  int
		rates []float64
	}{
		{"single events", 1, []float64{100, 250, 500, 1000}},
		{"requests of 100", streamSize, []float64{1000, 2500, 5000, 10_000, 15_000}},
	} {
		l, err := r.warmLoad(ctx, s, steadyClients, kind.size)
		if err != nil {
			return err
		}
		defer l.close()
		c := Curve{Panel: freshPanel, Name: kind.name}
		for _, rate := range kind.rates {
			if err := s.settled(ctx); err != nil {
				return err
			}
			w, err := l.withFreshness(ctx, rate/float64(kind.size), r.times.point)
			if err != nil {
				return err
			}
			r.plot(&c, rate, w.fresh)
		}
		r.report.Curves = append(r.report.Curves, c)
	}
	return s.settled(ctx)
}

func (r *run) plot(c *Curve, offered float64, h *hdrhistogram.Histogram) {
	p := Point{Rate: math.Round(offered), Latency: latencyOf(h)}
	c.Points = append(c.Points, p)
	r.cfg.logf("  %s, %s at %s events/s: %s", c.Panel, c.Name, short(p.Rate), p.Latency)
}

// curveRows returns the table rows of the curves.
func (r *Report) curveRows() string {
	var rows string
	for _, c := range r.Curves {
		for _, p := range c.Points {
			rows += fmt.Sprintf("| %s | %s | %s | %s |\n", c.Panel, c.Name, short(p.Rate), p.Latency.cells())
		}
	}
	return rows
}
