package rebuild

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/consume"
)

// errChunkFailed rolls a chunk back; the unit holds the failure.
var errChunkFailed = errors.New("an event of the chunk cannot be folded")

// markReady marks a rebuild READY once all its units have joined.
const markReady = `
UPDATE projection_rebuilds r SET state = 'READY', ready_at = now()
FROM projection_generations g
WHERE r.id = $1 AND r.state IN ('FOLDING', 'CATCHING_UP') AND g.projection = r.projection AND g.generation = r.generation
AND g.broken IS NULL AND NOT EXISTS (
  SELECT FROM consumer_checkpoints c
  WHERE c.consumer = r.consumer AND c.generation = r.generation AND NOT c.joined)`

const rebuildState = `
SELECT r.state, coalesce(g.broken, '') FROM projection_rebuilds r JOIN projection_generations g USING (projection, generation)
WHERE r.id = $1`

// finish marks a rebuild READY if all events are folded; over means that no work on it
// remains here.
func (b *Rebuilder) finish(ctx context.Context, r *domain.Rebuild) (over bool, err error) {
	ready, broken := false, ""
	err = pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, markReady, r.ID)
		if err != nil {
			return fmt.Errorf("mark a rebuild ready: %w", err)
		}
		if ready = tag.RowsAffected() == 1; ready {
			if _, err := b.Log.AppendTx(ctx, tx,
				[]events.Pending{b.stateEvent(r, events.RebuildReady, "it has caught up with the live generation")}); err != nil {
				return fmt.Errorf("record that a rebuild is ready: %w", err)
			}
		}
		var state string
		switch err := tx.QueryRow(ctx, rebuildState, r.ID).Scan(&state, &broken); {
		case errors.Is(err, pgx.ErrNoRows):
			b.Logger.Warn("a rebuild is gone: the database lost it in a failover or restore; start it again", "rebuild", r.ID, "projection",
				r.Projection)
			over = true
			return nil
		case err != nil:
			return fmt.Errorf("read a rebuild's state: %w", err)
		}
		over = state != domain.RebuildFolding && state != domain.RebuildCatchingUp
		return nil
	})
	if err == nil && !over && broken != "" { // it failed on an event after it had joined
		return true, b.end(ctx, r, broken)
	}
	if err == nil && ready {
		b.Logger.Info("a rebuild is ready", "rebuild", r.ID, "projection", r.Projection, "generation", r.Generation)
		b.notify()
	}
	return over && err == nil, err
}

const markFailed = `
UPDATE projection_rebuilds SET state = 'FAILED', failure = $2, ended_at = now()
WHERE id = $1 AND (state IN ('FOLDING', 'CATCHING_UP') OR state = 'READY' AND purpose = 'verify')`

// fail ends a rebuild for an event that it cannot fold but the live generation folded.
func (b *Rebuilder) fail(ctx context.Context, r *domain.Rebuild, f *projections.Failure) error {
	return b.end(ctx, r, fmt.Sprintf("%s cannot apply %s: %s: %s", r.FoldVersion, f.Event.Position, f.Code, projections.Bounded(f.Reason)))
}

// end ends a rebuild as FAILED. It locks the head before the generation's row, as a
// consumer does that detaches one.
func (b *Rebuilder) end(ctx context.Context, r *domain.Rebuild, why string) error {
	err := pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, consume.LockHeads, []int16{events.PartitionOf(events.Platform)}); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, markFailed, r.ID, why)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		if err := consume.BreakGeneration(ctx, tx, r.Projection, r.Generation, why); err != nil {
			return err
		}
		_, err = b.Log.AppendTx(ctx, tx, []events.Pending{b.stateEvent(r, events.RebuildFailed, why)})
		return err
	})
	if err != nil {
		return fmt.Errorf("end a rebuild that failed: %w", err)
	}
	b.Logger.Error("a rebuild failed", "rebuild", r.ID, "why", why)
	b.notify()
	return nil
}

func (b *Rebuilder) notify() {
	if b.Appended != nil {
		b.Appended([]int16{events.PartitionOf(events.Platform)})
	}
}

// cleanEvery is how often unused generations are dropped.
const cleanEvery = 10 * time.Second

// findDroppable finds generations that were replaced longer ago than they are kept, and
// those abandoned or failed, unless a pointer shows them. Projections known only to a
// newer release are left to it.
const findDroppable = `
SELECT g.projection, g.generation
FROM projection_generations g
LEFT JOIN projection_rebuilds r USING (projection, generation)
WHERE g.dropped_at IS NULL AND g.projection = ANY ($2::text[])
  AND NOT EXISTS (SELECT FROM projection_pointers p WHERE p.live AND p.projection = g.projection AND p.generation = g.generation)
  AND (r.state IN ('ABANDONED', 'FAILED')
    OR r.state = 'ROLLED_BACK' AND r.ended_at < now() - $1::interval
    OR (r.state IS NULL OR r.state = 'PROMOTED') AND (
      SELECT max(p.flipped_at) FROM projection_pointers p WHERE p.live AND p.projection = g.projection) < now() - $1::interval)`

// A flip locks the first pointer. The live generation is read by a separate statement,
// after the wait: a statement that waits continues with its old snapshot.
const (
	holdFlips      = `SELECT FROM projection_pointers WHERE projection = $1 AND flip = 1 FOR UPDATE`
	stillDroppable = `SELECT NOT EXISTS (SELECT FROM projection_pointers p WHERE p.live AND p.projection = $1 AND p.generation = $2)`
)

// A generation leaves its partitions one by one: under load it is never free in all of them
// at once. A partition's row is locked while a batch or a chunk is folded; if that takes longer
// than consume.LockTimeout, the generation is dropped later.
const findPartitions = `SELECT partition FROM consumer_checkpoints WHERE consumer = $1 AND generation = $2 ORDER BY partition`

const findUnpurged = `SELECT projection, generation FROM projection_generations WHERE dropped_at IS NOT NULL AND NOT purged
	AND projection = ANY ($1::text[])`

// purgeSQL deletes a batch of a generation's rows, to keep locks and transactions short.
// The table is one of Projection.Tables.
func purgeSQL(table string) string {
	return fmt.Sprintf(`DELETE FROM %[1]s WHERE ctid = ANY (ARRAY(SELECT ctid FROM %[1]s WHERE generation = $1 LIMIT 5000))`,
		pgx.Identifier{table}.Sanitize())
}

// numbered is a generation of a projection.
type numbered struct {
	Projection string
	Generation int
}

// clean drops unused generations.
func (b *Rebuilder) clean(ctx context.Context) error {
	droppable, err := b.find(ctx, findDroppable, cmp.Or(b.Keep, DefaultKeep), b.names())
	if err != nil {
		return err
	}
	var errs []error // one per generation: an error does not stop the others
	kept := map[numbered]time.Time{}
	for _, g := range droppable {
		err := b.drop(ctx, g)
		if isLockNotHad(err) {
			since, again := b.kept[g]
			if !again {
				since = time.Now()
			}
			kept[g] = since
			err = b.warnInUse(time.Since(since), err)
		}
		errs = append(errs, err)
	}
	b.kept = kept
	return errors.Join(errs...)
}

func (b *Rebuilder) names() (names []string) {
	for i := range b.Projections {
		names = append(names, b.Projections[i].Name)
	}
	return names
}

// defaultPatience is many times the duration of a rebuild's chunk or a batch.
const defaultPatience = time.Hour

// warnInUse returns an error only after others have held a generation's lock at every
// attempt for long: under load it is often held, and a later attempt drops it.
func (b *Rebuilder) warnInUse(d time.Duration, err error) error {
	if d > cmp.Or(b.Patience, defaultPatience) {
		return fmt.Errorf("for %s others had a lock of it: %w", d.Round(time.Second), err)
	}
	b.Logger.Debug("the rows of a rebuild are in use and will be dropped later", "since", d, "error", err)
	return nil
}

func isLockNotHad(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "55P03"
}

func (b *Rebuilder) find(ctx context.Context, sql string, args ...any) ([]numbered, error) {
	rows, err := b.Pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("look for generations to drop: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[numbered])
	if err != nil {
		return nil, fmt.Errorf("look for generations to drop: %w", err)
	}
	return found, nil
}

// drop ends the feeding of a generation in each partition, then marks it as dropped. A
// flip refuses a generation that is not fed in all of its partitions.
func (b *Rebuilder) drop(ctx context.Context, g numbered) error {
	p, err := projections.Find(b.Projections, g.Projection)
	if err != nil {
		return fmt.Errorf("drop generation %d: %w", g.Generation, err)
	}
	dropped, err := b.dropParts(ctx, g, p.Consumer.Name)
	if err != nil {
		return fmt.Errorf("drop generation %d of %s: %w", g.Generation, g.Projection, err)
	}
	if dropped {
		b.Logger.Info("the rows of a rebuild were dropped", "projection", g.Projection, "generation", g.Generation)
	}
	return nil
}

func (b *Rebuilder) dropParts(ctx context.Context, g numbered, consumer string) (dropped bool, err error) {
	partitions, err := b.partitionsOf(ctx, consumer, g)
	if err != nil {
		return false, err
	}
	for _, partition := range partitions {
		_, err := b.unlessLive(ctx, g, func(tx pgx.Tx) error { return consume.DropCheckpoint(ctx, tx, consumer, g.Generation, partition) })
		if err != nil {
			return false, err
		}
	}
	return b.unlessLive(ctx, g, func(tx pgx.Tx) error { return consume.MarkDropped(ctx, tx, g.Projection, g.Generation) })
}

func (b *Rebuilder) partitionsOf(ctx context.Context, consumer string, g numbered) ([]int16, error) {
	rows, err := b.Pool.Query(ctx, findPartitions, consumer, g.Generation)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int16])
}

// unlessLive makes a change if no pointer shows the generation, and reports whether it did. No
// flip happens meanwhile.
func (b *Rebuilder) unlessLive(ctx context.Context, g numbered, change func(pgx.Tx) error) (done bool, err error) {
	err = pgx.BeginFunc(ctx, b.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, holdFlips, g.Projection); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, stillDroppable, g.Projection, g.Generation).Scan(&done); err != nil || !done {
			return err
		}
		if _, err := tx.Exec(ctx, consume.LockTimeout); err != nil {
			return err
		}
		return change(tx)
	})
	return done, err
}

// beginPurge deletes the rows of dropped generations beside the loop that begins rebuilds: a large generation has millions. One
// purge runs at a time.
func (b *Rebuilder) beginPurge(ctx context.Context, workers *sync.WaitGroup) {
	if b.purging.Swap(true) {
		return
	}
	workers.Go(func() {
		defer b.purging.Store(false)
		if err := b.purgeDropped(ctx); err != nil && ctx.Err() == nil {
			b.Logger.Warn("deleting the rows of dropped rebuilds; will retry", "error", err)
		}
	})
}

func (b *Rebuilder) purgeDropped(ctx context.Context) error {
	dropped, err := b.find(ctx, findUnpurged, b.names())
	if err != nil {
		return err
	}
	var errs []error // one per generation: an error does not stop the others
	for _, g := range dropped {
		errs = append(errs, b.purge(ctx, g))
	}
	return errors.Join(errs...)
}

// purge deletes the rows of a generation in batches, and rests after each as a worker of a rebuild does.
func (b *Rebuilder) purge(ctx context.Context, g numbered) error {
	p, err := projections.Find(b.Projections, g.Projection)
	if err != nil {
		return fmt.Errorf("delete the rows of generation %d: %w", g.Generation, err)
	}
	pace := Pace{share: b.Share}
	for _, table := range p.Tables {
		for deleted := int64(1); deleted > 0; pace.Rest(ctx) {
			pace.Work()
			tag, err := b.Pool.Exec(ctx, purgeSQL(table), g.Generation)
			if err != nil {
				return fmt.Errorf("delete the rows of generation %d of %s: %w", g.Generation, g.Projection, err)
			}
			deleted = tag.RowsAffected()
		}
	}
	if err := consume.MarkPurged(ctx, b.Pool, g.Projection, g.Generation); err != nil {
		return fmt.Errorf("delete the rows of generation %d of %s: %w", g.Generation, g.Projection, err)
	}
	return nil
}
