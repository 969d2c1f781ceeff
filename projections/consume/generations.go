package consume

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// fed is a generation at a partition's checkpoint.
type fed struct {
	projections.Generation
	serving bool
}

const readGenerations = `
SELECT generation, fold_version, tenant_id, period_key FROM projection_generations WHERE projection = $1`

// generations caches a projection's generations, which never change.
type generations struct {
	mu    sync.Mutex
	known map[int]projections.Generation
}

// define completes the generations of the checkpoints, which have only numbers.
func (g *generations) define(ctx context.Context, tx pgx.Tx, c *projections.Consumer, checkpoints map[int16]checkpoint) error {
	if c.Projection == "" {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range checkpoints {
		for i := range s.fed {
			known, ok := g.known[s.fed[i].Number]
			if !ok {
				if err := g.read(ctx, tx, c.Projection); err != nil {
					return err
				}
				known, ok = g.known[s.fed[i].Number]
			}
			if !ok || !slices.Contains(c.Versions, known.FoldVersion) {
				return fmt.Errorf("generation %d of %s is bound to %q, which this binary does not hold (it holds %q)", s.fed[i].Number,
					c.Projection, known.FoldVersion, c.Versions)
			}
			s.fed[i].Generation = known
		}
	}
	return nil
}

func (g *generations) read(ctx context.Context, tx pgx.Tx, projection string) error {
	rows, err := tx.Query(ctx, readGenerations, projection)
	if err != nil {
		return fmt.Errorf("read generations: %w", err)
	}
	known := make(map[int]projections.Generation)
	var one projections.Generation
	_, err = pgx.ForEachRow(rows, []any{&one.Number, &one.FoldVersion, &one.TenantID, &one.PeriodKey}, func() error {
		known[one.Number] = one
		return nil
	})
	if err != nil {
		return fmt.Errorf("read generations: %w", err)
	}
	g.known = known
	return nil
}

// generationsOf lists the generations fed in any of the runs, by number.
func generationsOf(runs []*partitionRun, serving bool) (all []projections.Generation) {
	for _, l := range runs {
		for _, f := range l.checkpoint.fed {
			if f.serving == serving && !slices.ContainsFunc(all, func(g projections.Generation) bool { return g.Number == f.Number }) {
				all = append(all, f.Generation)
			}
		}
	}
	slices.SortFunc(all, func(a, b projections.Generation) int { return a.Number - b.Number })
	return all
}

// eventsFor returns the events to feed to a generation: in its scope, in partitions where
// it has joined, not failed.
func eventsFor(g projections.Generation, batch []events.Envelope, runs []*partitionRun, failed []projections.Failure) []events.Envelope {
	var joined [events.Partitions]bool
	all := g.TenantID == uuid.Nil && len(failed) == 0
	for _, l := range runs {
		joined[l.partition] = slices.ContainsFunc(l.checkpoint.fed, func(f fed) bool { return f.Number == g.Number })
		all = all && joined[l.partition]
	}
	if all {
		return batch
	}
	var own []events.Envelope
	for i := range batch {
		e := &batch[i]
		if joined[e.Position.Partition] && g.HasTenant(e.TenantID) && !projections.HasFailed(failed, e.Position) {
			own = append(own, *e)
		}
	}
	return own
}

// A broken generation is no longer fed in these partitions, so it can never be promoted
// or rolled back to.
const (
	partGeneration = `UPDATE consumer_checkpoints SET joined = false WHERE consumer = $1 AND generation = $2 AND joined
		AND partition = ANY ($3::smallint[])`
	markBroken = `UPDATE projection_generations SET broken = $3 WHERE projection = $1 AND generation = $2 AND broken IS NULL`
)

// detach stops feeding a generation in the runs' partitions: it failed on events that the
// serving generations accepted, and readers must not wait for it.
func (r *Runner) detach(ctx context.Context, tx pgx.Tx, g projections.Generation, runs []*partitionRun, f projections.Failure) error {
	var partitions []int16
	for _, l := range runs {
		partitions = append(partitions, l.partition)
		l.checkpoint.fed = slices.DeleteFunc(slices.Clone(l.checkpoint.fed), func(f fed) bool { return f.Number == g.Number })
	}
	why := fmt.Sprintf("%s cannot apply %s: %s: %s", g.FoldVersion, f.Event.Position, f.Code, projections.Bounded(f.Reason))
	if _, err := tx.Exec(ctx, partGeneration, r.Consumer.Name, g.Number, partitions); err != nil {
		return fmt.Errorf("part from generation %d: %w", g.Number, err)
	}
	if err := BreakGeneration(ctx, tx, r.Consumer.Projection, g.Number, why); err != nil {
		return fmt.Errorf("part from generation %d: %w", g.Number, err)
	}
	r.Logger.Error("the rows of a rebuild are no longer updated", "projection", r.Consumer.Projection, "generation", g.Number, "why", why)
	return nil
}

const (
	nextGeneration = `SELECT max(generation) + 1 FROM projection_generations WHERE projection = $1`
	newGeneration  = `INSERT INTO projection_generations (projection, generation, fold_version, tenant_id, period_key) VALUES ($1, $2, $3,
		$4, $5)`
	markDropped = `UPDATE projection_generations SET dropped_at = now() WHERE projection = $1 AND generation = $2`
	markPurged  = `UPDATE projection_generations SET purged = true WHERE projection = $1 AND generation = $2`
)

// AddGeneration adds a generation to a projection. The caller holds the projection's first
// pointer, so that no other one takes the number.
func AddGeneration(ctx context.Context, tx pgx.Tx, projection, foldVersion string, scope projections.Scope) (projections.Generation,
	error) {
	g := projections.Generation{FoldVersion: foldVersion, Scope: scope}
	if err := tx.QueryRow(ctx, nextGeneration, projection).Scan(&g.Number); err != nil {
		return g, fmt.Errorf("numbering a generation: %w", err)
	}
	if _, err := tx.Exec(ctx, newGeneration, projection, g.Number, g.FoldVersion, g.TenantID, g.PeriodKey); err != nil {
		return g, fmt.Errorf("keeping a generation: %w", err)
	}
	return g, nil
}

// MarkDropped marks a generation as dropped, after its last checkpoint: its rows may be deleted.
func MarkDropped(ctx context.Context, tx pgx.Tx, projection string, number int) error {
	_, err := tx.Exec(ctx, markDropped, projection, number)
	return err
}

// Executor is a pool or a transaction.
type Executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// MarkPurged records that all rows of a dropped generation are deleted.
func MarkPurged(ctx context.Context, on Executor, projection string, number int) error {
	_, err := on.Exec(ctx, markPurged, projection, number)
	return err
}

// BreakGeneration marks a generation as broken: it can never be promoted or rolled back to.
func BreakGeneration(ctx context.Context, tx pgx.Tx, projection string, number int, why string) error {
	_, err := tx.Exec(ctx, markBroken, projection, number, why)
	return err
}
