package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// streamSize is the number of events in a request of B4, as from clients that collect events
	// for some milliseconds.
	streamSize    = 100
	streamClients = 16
)

// progress is the state of the pipeline: events recorded, events in the aggregates, and the
// consumers' positions.
type progress struct {
	at                 time.Time
	recorded, applied  int64
	validated, settled int64
}

const progressSQL = `SELECT (SELECT sum(accepted) FROM log_heads)::bigint,
 (SELECT coalesce(sum(applied_count), 0) FROM usage_aggregates)::bigint,
 (SELECT sum(validated + rejected) FROM log_heads)::bigint,
 (SELECT count(*) FROM consumer_checkpoints c JOIN log_heads h USING (partition)
   WHERE c.consumer IN ('meterplex-entitlement-reads', 'meterplex-usage-series') AND c.position < h.position)`

func (s *subject) progress(ctx context.Context, conn *pgx.Conn) (p progress, err error) {
	err = conn.QueryRow(ctx, progressSQL).Scan(&p.recorded, &p.applied, &p.validated, &p.settled)
	p.at, p.applied = time.Now(), p.applied+s.history
	if err != nil {
		return p, fmt.Errorf("read the progress of the aggregates: %w", err)
	}
	return p, nil
}

func (p *progress) caughtUp() bool { return p.applied == p.recorded }

func (p *progress) behind() int64 { return p.recorded - p.applied }

// catchUpTime bounds the wait for a pipeline that does not catch up.
const catchUpTime = 30 * time.Minute

// pollProgress polls the pipeline until a condition holds.
func (s *subject) pollProgress(ctx context.Context, every time.Duration, until func(progress) bool) error {
	// Row level security hides the aggregates from their owner, so read them in the service's role.
	conn, err := pgx.Connect(ctx, s.databaseURL)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "SET ROLE meterplex_worker"); err != nil {
		return fmt.Errorf("set the service's role: %w", err)
	}
	end := time.Now().Add(catchUpTime)
	for {
		p, err := s.progress(ctx, conn)
		if err != nil || until(p) {
			return err
		}
		if time.Now().After(end) {
			return errors.New("the aggregates do not catch up with the log")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(every):
		}
	}
}

// settled waits until every recorded event is folded by every consumer.
func (s *subject) settled(ctx context.Context) error {
	return s.pollProgress(ctx, 50*time.Millisecond, func(p progress) bool { return p.caughtUp() && p.settled == 0 })
}

// endToEnd is B4.
func (r *run) endToEnd(ctx context.Context, s *subject) error {
	f := figureB4()
	if err := r.stream(ctx, s, &f); err != nil {
		return err
	}
	if err := s.disk(ctx, &f); err != nil {
		return err
	}
	r.addFigure(f)
	return nil
}

// correctedEndToEnd is B4 with corrections.
func (r *run) correctedEndToEnd(ctx context.Context, s *subject) error {
	f := figureB4c()
	if err := r.streamOf(ctx, s, &f, s.newCorrectedLoad); err != nil {
		return err
	}
	if f.Limit = r.maxRates["B4"]; f.Limit > 0 {
		f.Ratio = f.Value / f.Limit
	} else {
		f.note("no limit", "B4 was not measured in this run; select both: --only B4,B4c")
	}
	r.addFigure(f)
	return nil
}

// stream offers B4's load in an open loop, at the greatest rate at which no backlog grows.
func (r *run) stream(ctx context.Context, s *subject, f *Figure) error {
	return r.streamOf(ctx, s, f, s.newIngestLoad)
}

// newLoad makes a load, e.g. newIngestLoad.
type newLoad func(ctx context.Context, clients, size int, now time.Time) (*load, error)

func (r *run) streamOf(ctx context.Context, s *subject, f *Figure, of newLoad) error {
	l, err := of(ctx, streamClients, streamSize, r.cfg.Now())
	if err != nil {
		return err
	}
	defer l.close()
	if err := r.warm(ctx, l); err != nil {
		return err
	}
	perSecond, tried, err := sustainedRate(func(perSecond float64) (trial, error) { return r.try(ctx, s, l, perSecond) })
	if err != nil {
		return err
	}
	return r.pipeline(ctx, s, f, func() (rate, error) {
		h, sent, err := openOver(perSecond/streamSize, r.times.stream, streamClients, l.sendOne).run(ctx)
		if err == nil {
			f.Latency, f.LatencyAt = latencyOf(h), fmt.Sprintf("of a request of %d events, at %.0f events/s", streamSize, perSecond)
			f.note("rates tried, events/s", tried)
		}
		return sent, err
	})
}

// singlesEndToEnd is B12.
func (r *run) singlesEndToEnd(ctx context.Context, s *subject) error {
	f := figureB12()
	l, err := s.newIngestLoad(ctx, singleClients, 1, r.cfg.Now())
	if err != nil {
		return err
	}
	defer l.close()
	if err := r.warm(ctx, l); err != nil {
		return err
	}
	if err := r.pipeline(ctx, s, &f, func() (rate, error) { return closed(ctx, singleClients, r.times.stream, l.send) }); err != nil {
		return err
	}
	if f.Limit = r.maxRates["B2"]; f.Limit > 0 {
		f.Ratio = f.Value / f.Limit
	} else {
		f.note("no limit", "B2 was not measured in this run; select both: --only B2,B12")
	}
	r.addFigure(f)
	return nil
}

// pipeline measures a load until all its events are in the aggregates. Events that the pipeline cannot
// process in time queue in the log and are processed before the clock stops.
func (r *run) pipeline(ctx context.Context, s *subject, f *Figure, send func() (rate, error)) error {
	if err := r.calm(ctx, s); err != nil {
		return err
	}
	w := &pipelineObserver{run: r}
	looking, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.pollProgress(looking, 250*time.Millisecond, w.observe) }()
	end, err := r.servers.measure(ctx)
	if err != nil {
		return err
	}
	sent, err := send()
	if err != nil {
		return err
	}
	w.ended.Store(true)
	if err := <-done; err != nil {
		return err
	}
	did := rate{events: int(w.last.applied - w.first.applied), took: w.last.at.Sub(w.first.at)}
	took, err := end(did)
	if err != nil {
		return err
	}
	f.Value = did.perSecond()
	f.cost(took, w.memory)
	w.addNotes(f)
	f.refused(sent)
	return nil
}

// disk is a part of B11: the disk space of an event with its verdict and indexes.
func (s *subject) disk(ctx context.Context, f *Figure) error {
	conn, err := pgx.Connect(ctx, s.databaseURL)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var bytes, usage int64
	err = conn.QueryRow(ctx, `SELECT pg_total_relation_size('event_log_rows') + pg_total_relation_size('outbox_publications'),
	 (SELECT sum(accepted) FROM log_heads)::bigint`).Scan(&bytes, &usage)
	if err != nil {
		return fmt.Errorf("read the size of the log: %w", err)
	}
	f.note("disk for each usage event (aim of B11: < 900 B)", fmt.Sprintf("%d B with its verdict and all indexes, of %d",
		bytes/max(1, usage), usage))
	return nil
}

// mixed is B1's load while all roles run on the same cores.
func (r *run) mixed(ctx context.Context, s *subject) error {
	f := figureMixed()
	if err := r.closed(ctx, s, &f, batchClients, batchSize); err != nil {
		return err
	}
	r.addFigure(f)
	return nil
}

// ready warms up, and waits until all events are folded and on disk.
func (r *run) ready(ctx context.Context, s *subject, l *load) error {
	if err := r.warm(ctx, l); err != nil {
		return err
	}
	return r.calm(ctx, s)
}

// calm waits until every consumer has folded every event, and writes a checkpoint of the database.
func (r *run) calm(ctx context.Context, s *subject) error {
	if err := s.settled(ctx); err != nil {
		return err
	}
	return r.servers.checkpoint(ctx)
}

// closed measures the greatest rate of a service that has caught up.
func (r *run) closed(ctx context.Context, s *subject, f *Figure, clients, size int) error {
	l, err := s.newIngestLoad(ctx, clients, size, r.cfg.Now())
	if err != nil {
		return err
	}
	defer l.close()
	if err := r.ready(ctx, s, l); err != nil {
		return err
	}
	var took spent
	did, err := r.measured(ctx, &took, func() (rate, error) { return closed(ctx, clients, r.times.mixed, l.send) })
	if err != nil {
		return err
	}
	f.Value = did.perSecond()
	f.cost(took, r.servers.meter.memory())
	f.refused(did)
	return nil
}
