// Package rebuild folds a new generation of a projection from the log beside the live one,
// compares the two, and drops unused generations. It knows projections by their definition only.
package rebuild

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/loop"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/query"
)

// Rebuilder folds new generations from the log, beside the live ones and without a
// pipe. A unit of work is a partition; its lease is the lock of its checkpoint row,
// held by the transaction that folds a chunk and moves the checkpoint. So a worker that
// crashes leaves no trace, the next one continues where the last chunk ended, and no event
// is folded twice, by any number of workers in any number of instances.
type Rebuilder struct {
	Pool        Pool
	Log         projections.Log
	Projections []projections.Projection
	NewID       func() uuid.UUID
	Logger      *slog.Logger
	Instance    string
	// Appended is called after a commit with the partitions that may hold new events.
	Appended func(partitions []int16)
	// Requests is the hint that a rebuild was requested; may be nil.
	Requests <-chan struct{}
	// Verify compares a verify's READY generation with the live one and records the result.
	Verify func(ctx context.Context, r domain.Rebuild) error

	Keep  time.Duration // how long a replaced generation is kept, 0: DefaultKeep
	Ticks loop.Ticks    // the moments of polls for work
	Every time.Duration // their interval, 0: DefaultRebuildEvery
	Chunk int64         // positions that one transaction folds, 0: DefaultChunk
	Join  int64         // how near it comes before it folds the rest under the live one's lock, 0: joinWithin
	Share int64         // percent of the time that a worker works, 0: all of it
	// Patience is how long others may keep a generation from being dropped before a warning
	// is logged, 0: an hour.
	Patience time.Duration

	working sync.Map // ids of the rebuilds that this instance works on
	once    sync.Once
	seat    chan struct{}
	purging atomic.Bool // a goroutine of Run deletes rows
	failed  failedMemo
	kept    map[numbered]time.Time // since when others have blocked a drop; used by Run only
}

// Pool is the part of a connection pool that a rebuilder uses.
type Pool interface {
	consume.Pool
	consume.Executor
	Config() *pgxpool.Config
}

// Bounds of the rebuilder.
const (
	DefaultKeep         = 24 * time.Hour
	DefaultRebuildEvery = 250 * time.Millisecond
	DefaultChunk        = 100_000 // some 0.3 s: lost in a crash, and the delay of a stop

	// joinWithin is how near a unit comes to the live checkpoint before it takes that
	// checkpoint's lock: the rest is folded under it, in some milliseconds.
	joinWithin = 2000
)

// backoff is the pause of a worker after a failure.
var backoff = domain.Backoff{First: 100 * time.Millisecond, Longest: 5 * time.Second}

// Run works until the context ends. It retries after outages.
func (b *Rebuilder) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	defer workers.Wait()
	cleaned := time.Time{}
	looks := loop.Loop{Every: cmp.Or(b.Every, DefaultRebuildEvery), Ticks: b.Ticks, Wake: b.Requests, Logger: b.Logger,
		Failed: "looking for rebuilds; will try again"}
	return looks.Run(ctx, func(ctx context.Context) error {
		open, err := openRebuilds(ctx, b.Pool)
		for i := range open {
			b.begin(ctx, &workers, open[i])
		}
		if err == nil && time.Since(cleaned) > cleanEvery {
			err, cleaned = b.clean(ctx), time.Now()
			b.beginPurge(ctx, &workers)
		}
		return err
	})
}

// begin works on a rebuild, once in this instance.
func (b *Rebuilder) begin(ctx context.Context, workers *sync.WaitGroup, r domain.Rebuild) {
	c, err := b.consumerOf(&r)
	if err != nil {
		b.Logger.Debug("a rebuild is another instance's work", "rebuild", r.ID, "why", err)
		return
	}
	if _, already := b.working.LoadOrStore(r.ID, true); already {
		return
	}
	workers.Go(func() {
		defer b.working.Delete(r.ID)
		if r.State == domain.RebuildReady {
			err := b.verifyWithSeat(ctx, r)
			if refusal := (*domain.Error)(nil); errors.As(err, &refusal) && !errors.Is(err, query.ErrOverloaded) {
				// it would be refused every time
				err = b.end(ctx, &r, refusal.Message)
			}
			if err != nil && ctx.Err() == nil {
				b.Logger.Warn("comparing a projection with the log; will try again", "rebuild", r.ID, "error", err)
			}
			return
		}
		var team sync.WaitGroup
		workers := r.Workers
		if r.TenantID != uuid.Nil {
			workers = 1 // there is one unit
		}
		for n := range workers {
			team.Go(func() { b.Work(ctx, c, r, fmt.Sprintf("%s/%d", b.Instance, n+1)) })
		}
		team.Wait()
	})
}

// consumerOf returns the consumer of the rebuild's projection; an error if this binary
// does not have the version of the fold.
func (b *Rebuilder) consumerOf(r *domain.Rebuild) (*projections.Consumer, error) {
	p, err := projections.Find(b.Projections, r.Projection)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(p.Consumer.Versions, r.FoldVersion) {
		return nil, fmt.Errorf("unknown fold version %q: this binary has %q", r.FoldVersion, p.Consumer.Versions)
	}
	return &p.Consumer, nil
}

// Work processes units until all are done, and waits while other workers hold them.
func (b *Rebuilder) Work(ctx context.Context, c *projections.Consumer, r domain.Rebuild, worker string) {
	failures := 0
	for ctx.Err() == nil {
		u := unit{rebuild: &r, consumer: c, worker: worker}
		did, err := b.foldWithSeat(ctx, &u)
		switch {
		case ctx.Err() != nil:
			return
		case u.failure != nil:
			err = b.fail(ctx, &r, u.failure)
		case err == nil && !did:
			var over bool
			if over, err = b.finish(ctx, &r); over {
				return
			}
			loop.Sleep(ctx, query.PollLast)
		}
		if err == nil {
			failures = 0
			continue
		}
		failures++
		wait := backoff.After(failures)
		b.Logger.Warn("a rebuild's worker will try again", "rebuild", r.ID, "worker", worker, "in", wait, "error", err)
		loop.Sleep(ctx, wait)
	}
}

// claimUnit reads the rebuild's row again with each unit, so that an abandoned rebuild ends here.
const claimUnit = `
SELECT c.partition, c.position
FROM projection_rebuilds r
JOIN projection_generations g ON g.projection = r.projection AND g.generation = r.generation AND g.broken IS NULL
JOIN rebuild_units u ON u.rebuild_id = r.id
JOIN consumer_checkpoints c ON c.consumer = r.consumer AND c.generation = r.generation AND c.partition = u.partition
WHERE r.id = $1 AND r.state IN ('FOLDING', 'CATCHING_UP') AND NOT c.joined
ORDER BY c.partition
LIMIT 1
FOR UPDATE OF c SKIP LOCKED`

const readLive = `
SELECT position, epoch FROM consumer_checkpoints
WHERE consumer = $1 AND partition = $2 AND joined ORDER BY generation LIMIT 1`

const lockLive = `
SELECT position, epoch FROM consumer_checkpoints
WHERE consumer = $1 AND partition = $2 AND joined ORDER BY generation FOR UPDATE`

const countFolded = `
UPDATE rebuild_units SET events = events + $3, worker = $4, updated_at = now()
WHERE rebuild_id = $1 AND partition = $2`

// unit is a partition of a rebuild while a worker holds it.
type unit struct {
	rebuild   *domain.Rebuild
	consumer  *projections.Consumer
	worker    string
	partition int16
	position  int64
	pace      Pace
	failure   *projections.Failure // set if an event could not be folded: the chunk is rolled back
}

func (u *unit) generation() projections.Generation {
	r := u.rebuild
	return projections.Generation{Number: r.Generation, FoldVersion: r.FoldVersion, Scope: projections.Scope{TenantID: r.TenantID,
		PeriodKey: r.PeriodKey}}
}

// foldWithSeat calls foldUnit with a bound on the workers of this instance, so that connections
// remain for others.
func (b *Rebuilder) foldWithSeat(ctx context.Context, u *unit) (bool, error) {
	leave, err := b.acquireSeat(ctx)
	if err != nil {
		return false, err
	}
	defer leave()
	return b.foldUnit(ctx, u)
}

// verifyWithSeat calls Verify within the same bound: it reads for as long as a projection needs.
func (b *Rebuilder) verifyWithSeat(ctx context.Context, r domain.Rebuild) error {
	leave, err := b.acquireSeat(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return b.Verify(ctx, r)
}

func (b *Rebuilder) acquireSeat(ctx context.Context) (leave func(), err error) {
	seats := b.seats()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case seats <- struct{}{}:
		return func() { <-seats }, nil
	}
}

func (b *Rebuilder) seats() chan struct{} {
	b.once.Do(func() { b.seat = make(chan struct{}, max(1, b.Pool.Config().MaxConns/4)) })
	return b.seat
}

// foldUnit folds a chunk of a unit, or the rest of it and joins; it returns false if no unit
// was free.
func (b *Rebuilder) foldUnit(ctx context.Context, u *unit) (did bool, err error) {
	err = pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, claimUnit, u.rebuild.ID)
		if err != nil {
			return fmt.Errorf("claim a unit: %w", err)
		}
		if _, err = pgx.ForEachRow(rows, []any{&u.partition, &u.position}, func() error { did = true; return nil }); err != nil || !did {
			return err
		}
		var live int64
		var epoch int32
		if err := tx.QueryRow(ctx, readLive, u.consumer.Name, u.partition).Scan(&live, &epoch); err != nil {
			return fmt.Errorf("read the live generation's position: %w", err)
		}
		joining := live-u.position <= cmp.Or(b.Join, joinWithin)
		if joining {
			// Behind the lock only the dead letters since then are read: the live consumer waits meanwhile.
			if _, err := b.failed.since(ctx, tx, u.consumer.Name, u.partition); err != nil {
				return err
			}
			if err := tx.QueryRow(ctx, lockLive, u.consumer.Name, u.partition).Scan(&live, &epoch); err != nil {
				return fmt.Errorf("lock the live generation's position: %w", err)
			}
		}
		if !joining {
			u.pace.share = b.Share // no rests under the live one's lock
		}
		upTo := min(live, u.position+cmp.Or(b.Chunk, DefaultChunk))
		joined := joining && upTo == live
		n, err := b.foldChunk(ctx, tx, u, upTo)
		if err != nil {
			return err
		}
		if u.failure != nil {
			return errChunkFailed
		}
		to := events.Position{Partition: u.partition, Number: upTo}
		if err := consume.MoveCheckpoint(ctx, tx, u.consumer.Name, u.rebuild.Generation, to, epoch, joined); err != nil {
			return fmt.Errorf("move a unit: %w", err)
		}
		if _, err := tx.Exec(ctx, countFolded, u.rebuild.ID, u.partition, n, u.worker); err != nil {
			return fmt.Errorf("move a unit: %w", err)
		}
		return nil
	})
	if u.failure != nil {
		return did, nil
	}
	return did, err
}

const readOpenRebuilds = `
SELECT id, projection, consumer, generation, fold_version, purpose, repair, tenant_id, period_key, reason, state, workers
FROM projection_rebuilds
WHERE state IN ('FOLDING', 'CATCHING_UP') OR state = 'READY' AND purpose = 'verify'
ORDER BY created_at`

// openRebuilds lists the open rebuilds.
func openRebuilds(ctx context.Context, pool consume.Pool) ([]domain.Rebuild, error) {
	rows, err := pool.Query(ctx, readOpenRebuilds)
	if err != nil {
		return nil, fmt.Errorf("read rebuilds: %w", err)
	}
	open, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[domain.Rebuild])
	if err != nil {
		return nil, fmt.Errorf("read rebuilds: %w", err)
	}
	return open, nil
}

// stateEvent makes the event that records a rebuild's change of state.
func (b *Rebuilder) stateEvent(r *domain.Rebuild, subject events.Subject, reason string) events.Pending {
	cause := events.Envelope{TenantID: events.Platform, EventID: r.ID, OccurredAt: time.Now().UTC().Truncate(time.Microsecond)}
	return projections.FollowUp(&cause, b.NewID(), subject, events.RebuildStep{RebuildID: r.ID, Projection: r.Projection,
		Generation: r.Generation, Reason: reason}, rebuilderName)
}

// rebuilderName is the actor of state changes that the rebuilder makes itself.
const rebuilderName = "meterplex-rebuilder"
