package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

const (
	batchClients  = 4
	batchSize     = 1000
	singleClients = 64
	// pacedShare is the share of a closed loop's rate that is offered in the open loop for
	// latencies: at the limit itself a queue has no stationary length.
	pacedShare = 0.7
)

// pair measures a limit and the service in turn, so that other work of the machine affects
// both, and sets the median of each and of their ratio.
func (r *run) pair(ctx context.Context, f *Figure, limit func() (float64, error), service func() (rate, error)) error {
	var ratios []float64
	var total, raw spent
	for range r.times.rounds {
		if err := r.servers.checkpoint(ctx); err != nil {
			return err
		}
		most, err := r.measured(ctx, &raw, func() (rate, error) {
			most, err := limit()
			return rate{events: int(most * r.times.round.Seconds()), took: r.times.round}, err
		})
		if err != nil {
			return err
		}
		if err := r.servers.checkpoint(ctx); err != nil {
			return err
		}
		did, err := r.measured(ctx, &total, service)
		if err != nil {
			return err
		}
		f.Runs, f.LimitRuns = append(f.Runs, math.Round(did.perSecond())), append(f.LimitRuns, math.Round(most.perSecond()))
		ratios = append(ratios, did.perSecond()/most.perSecond())
	}
	f.Value, f.Limit, f.Ratio = median(f.Runs), median(f.LimitRuns), median(ratios)
	f.cost(total, r.servers.meter.memory())
	f.refused(total.did)
	limitEach := writtenOf(raw).Each
	f.Written.Limit = &limitEach
	return nil
}

// measured adds the cost of a measurement to a sum.
func (r *run) measured(ctx context.Context, sum *spent, do func() (rate, error)) (rate, error) {
	end, err := r.servers.measure(ctx)
	if err != nil {
		return rate{}, err
	}
	did, err := do()
	if err != nil {
		return did, err
	}
	took, err := end(did)
	*sum = sum.plus(took)
	return did, err
}

func median(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// batches is B1.
func (r *run) batches(ctx context.Context, s *subject) error {
	l, err := r.warmLoad(ctx, s, batchClients, batchSize)
	if err != nil {
		return err
	}
	defer l.close()
	c, err := s.newCopiers(ctx, batchClients, batchSize)
	if err != nil {
		return err
	}
	defer c.close()
	f := figureB1()
	err = r.pair(ctx, &f, s.published(ctx, func() (float64, error) {
		did, err := c.measure(ctx, r.times.round)
		return did.perSecond(), err
	}), func() (rate, error) { return closed(ctx, batchClients, r.times.round, l.send) })
	if err != nil {
		return err
	}
	if err := r.paced(ctx, s, &f, l, batchSize); err != nil {
		return err
	}
	r.addFigure(f)
	return nil
}

// warmLoad returns a load that has warmed up, with size events in each request.
func (r *run) warmLoad(ctx context.Context, s *subject, clients, size int) (*load, error) {
	l, err := s.newIngestLoad(ctx, clients, size, r.cfg.Now())
	if err != nil {
		return nil, err
	}
	if err := r.warm(ctx, l); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// warm fills caches and connections before a measurement.
func (r *run) warm(ctx context.Context, l *load) error {
	_, err := closed(ctx, len(l.wires), time.Second, l.send)
	return err
}

// published wraps a limit's measurement and first marks all events as published, so that the
// backlog of the service stays far below its bound.
func (s *subject) published(ctx context.Context, limit func() (float64, error)) func() (float64, error) {
	return func() (float64, error) {
		if err := s.moveRelayToHeads(ctx); err != nil {
			return 0, err
		}
		return limit()
	}
}

// paced adds the latencies at a share of the measured rate.
func (r *run) paced(ctx context.Context, s *subject, f *Figure, l *load, size int) error {
	if err := s.markPublished(ctx); err != nil {
		return err
	}
	offered := f.Value * pacedShare
	h, did, err := openOver(offered/float64(size), r.times.paced, len(l.wires), l.sendOne).run(ctx)
	f.Latency = latencyOf(h)
	f.LatencyAt = fmt.Sprintf("of a request, at %.0f events/s", offered)
	if did.refused > 0 {
		f.note("refused at that rate", fmt.Sprint(did.refused))
	}
	return err
}

// singles is B2.
func (r *run) singles(ctx context.Context, s *subject) error {
	l, err := r.warmLoad(ctx, s, singleClients, 1)
	if err != nil {
		return err
	}
	defer l.close()
	scratch, err := os.MkdirTemp("", "meterplex-bench-")
	if err != nil {
		return fmt.Errorf("make a folder for pgbench's script: %w", err)
	}
	defer os.RemoveAll(scratch)
	in, err := s.newInserter(ctx, singleClients, filepath.Clean(scratch))
	if err != nil {
		return err
	}
	defer in.close()
	f := figureB2(in.how())
	err = r.pair(ctx, &f, s.published(ctx, func() (float64, error) { return in.measure(ctx, r.times.round) }),
		func() (rate, error) { return closed(ctx, singleClients, r.times.round, l.send) })
	if err != nil {
		return err
	}
	if err := r.paced(ctx, s, &f, l, 1); err != nil {
		return err
	}
	r.addFigure(f)
	return nil
}

const (
	latencyRate = 1000
	// steadyClients bounds the requests under way of a steady load of single requests; further
	// requests wait for a connection, and the wait counts.
	steadyClients = 32
)

// ingestLatency is B3, with all roles running.
func (r *run) ingestLatency(ctx context.Context, s *subject) error {
	l, err := r.warmLoad(ctx, s, steadyClients, 1)
	if err != nil {
		return err
	}
	defer l.close()
	if err := s.settled(ctx); err != nil {
		return err
	}
	bare, err := r.bareCommits(ctx, s)
	if err != nil {
		return err
	}
	end, err := r.servers.measure(ctx)
	if err != nil {
		return err
	}
	h, did, err := openOver(latencyRate, r.times.latency, steadyClients, l.sendOne).run(ctx)
	if err != nil {
		return err
	}
	took, err := end(did)
	if err != nil {
		return err
	}
	f := figureB3()
	f.cost(took, r.servers.meter.memory())
	f.Latency, f.LimitLatency = latencyOf(h), latencyOf(bare)
	f.LatencyAt = fmt.Sprintf("at %d requests/s", latencyRate)
	f.Value, f.Limit = f.Latency.P99, f.LimitLatency.P99
	r.addFigure(f)
	return nil
}

const commitSQL = `INSERT INTO bench_commit SELECT $1::bigint, previous_position, now(), occurred_at, event_id, tenant_id, correlation_id,
	causation_id,
 epoch, origin, partition, topic, subject, 'u/' || $1::bigint::text, hash, body, replay FROM bench_commit_sample`

// bareCommits runs the same load without a service: one insert and commit each. The row is
// one of the log's.
func (r *run) bareCommits(ctx context.Context, s *subject) (*hdrhistogram.Histogram, error) {
	if err := s.cloneTables(ctx, commitTable); err != nil {
		return nil, err
	}
	var conns []*pgx.Conn
	defer func() {
		for _, conn := range conns {
			_ = conn.Close(context.Background())
		}
	}()
	for range steadyClients {
		conn, err := pgx.Connect(ctx, s.databaseURL)
		if err != nil {
			return nil, fmt.Errorf("reach the database: %w", err)
		}
		conns = append(conns, conn)
	}
	_, err := conns[0].Exec(ctx, events.SQL(`CREATE TABLE IF NOT EXISTS bench_commit_sample AS SELECT * FROM event_log_rows
		WHERE topic = {usage.raw} LIMIT 1`))
	if err != nil {
		return nil, fmt.Errorf("copy a row of the log: %w", err)
	}
	h, _, err := openOver(latencyRate, r.times.latency, steadyClients, func(client, n int) error {
		_, err := conns[client].Exec(ctx, commitSQL, int64(n+1))
		return err
	}).run(ctx)
	return h, err
}
