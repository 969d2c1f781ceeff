package repair

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Projection describes a projection that can be rebuilt.
type Projection struct {
	Name     string
	Consumer string
	Newest   string // the fold version that new generations are bound to
	ByPeriod bool   // it can be rebuilt for one period
}

// RebuildStore runs changes of the visible generations.
type RebuildStore interface {
	// ChangeRebuilds runs decide in one transaction that excludes other changes of the
	// projection's generations. An error of decide rolls back and is returned
	// unchanged.
	ChangeRebuilds(ctx context.Context, projection string, decide func(RebuildTx) error) error
	// Rebuild reads a rebuild; nil if the id is unknown.
	Rebuild(ctx context.Context, id uuid.UUID) (*domain.Rebuild, error)
}

// RebuildTx is the transaction of a change of rebuilds.
type RebuildTx interface {
	commands.Tx
	commands.SagaStarter
	Rebuilds(projection string) ([]domain.Rebuild, error) // those that are Open
	Rebuild(id uuid.UUID) (*domain.Rebuild, error)
	// LiveFolds returns the fold versions of the rows that readers of a scope see.
	LiveFolds(projection string, tenant uuid.UUID, periodKey string) ([]string, error)
	// StartRebuild saves a rebuild, its generation (the next number, which it
	// returns) and its units of work.
	StartRebuild(r domain.Rebuild) (generation int, err error)
	SaveRebuild(r domain.Rebuild) error
	// LockGenerations keeps the generations of the projection from being fed further,
	// broken or dropped before the transaction ends.
	LockGenerations(r *domain.Rebuild) error
	// Generations returns the rebuild's generation and those that readers see.
	Generations(r *domain.Rebuild) ([]domain.Generation, error)
	// MovesEvents reports whether the rebuild's generation counts other events in the
	// rebuild's period than the live one.
	MovesEvents(r *domain.Rebuild) (bool, error)
	// Covered reports whether a later flip covers a part of the rebuild's.
	Covered(r *domain.Rebuild) (bool, error)
	// Changed compares the rebuild's difference with the entity tags of those that were shown: nil if it is
	// one of them, else the present one.
	Changed(r *domain.Rebuild, shown []string) (*domain.Current, error)
	// Flip makes the rebuild's generation visible and returns the flip's number.
	Flip(r *domain.Rebuild) (flip int, err error)
	// Unflip reverts the rebuild's flip, and returns the number of this step.
	Unflip(r *domain.Rebuild) (flip int, err error)
}

// Rebuilds starts rebuilds and decides on their promotion and end. It never waits
// for the broker, because a rebuild needs only the log.
type Rebuilds struct {
	Store       RebuildStore
	Now         commands.Clock
	NewID       func() uuid.UUID
	Projections []Projection
}

// StartRebuild is a request for a rebuild. Scope: one tenant (Nil: all), one period
// ("": all).
type StartRebuild struct {
	Projection string
	TenantID   uuid.UUID
	PeriodKey  string
	Workers    int // 0: half the processors of the instance, so that readers have the rest
	Reason     string
	Verify     bool // compare with the log, then drop the generation
	Repair     bool // for a verify: promote it if they differ
}

// maxWorkers is the number of partitions.
const maxWorkers = 32

func (c *Rebuilds) changeOf(ctx context.Context, projection string) commands.Transaction[RebuildTx] {
	return func(decide func(RebuildTx) error) error { return c.Store.ChangeRebuilds(ctx, projection, decide) }
}

func (c *Rebuilds) now() time.Time { return c.Now().UTC().Truncate(time.Microsecond) }

// Start makes a new generation. The workers discover it on their own.
func (c *Rebuilds) Start(ctx context.Context, req commands.Request, in StartRebuild) (domain.Rebuild, error) {
	r, err := c.planned(in)
	if err != nil {
		return domain.Rebuild{}, err
	}
	return commands.Change(c.changeOf(ctx, r.Projection), req, func(tx RebuildTx) (domain.Rebuild, error) {
		if in.TenantID != uuid.Nil {
			if t, err := tx.Tenant(in.TenantID); err != nil || t == nil {
				return r, commands.OrRefuse(err, "tenant_not_found", "/tenantId", "no such tenant")
			}
		}
		open, err := tx.Rebuilds(r.Projection)
		if err != nil {
			return r, err
		}
		for i := range open {
			if open[i].Purpose == r.Purpose && open[i].Overlaps(&r) {
				return r, domain.Refuse("rebuild_in_progress", "",
					"rebuild %s of %s is %s and has figures in common with this one; promote or abandon it first", open[i].ID, r.Projection,
					open[i].State)
			}
		}
		if in.Verify { // compare the live rows with their own fold version: differences from another version are no drift
			if r.FoldVersion, err = liveFold(tx, &r); err != nil {
				return r, err
			}
		}
		if r.Generation, err = tx.StartRebuild(r); err != nil {
			return r, err
		}
		said := events.Rebuild{
			Projection: r.Projection, Generation: r.Generation, FoldVersion: r.FoldVersion, Purpose: r.Purpose,
			Repair: r.Repair, PeriodKey: r.PeriodKey, Reason: r.Reason,
		}
		if r.TenantID != uuid.Nil {
			said.TenantID = &r.TenantID
		}
		_, err = commands.AppendEvent(tx, &req, r.ID, r.CreatedAt, events.Platform, events.RebuildRequested, said)
		return r, err
	})
}

// planned checks a request and makes the requested rebuild.
func (c *Rebuilds) planned(in StartRebuild) (domain.Rebuild, error) {
	p := c.projection(in.Projection)
	if p == nil {
		return domain.Rebuild{}, domain.Refuse("projection_not_found", "", "there is no projection %.64q", in.Projection)
	}
	if refusal := domain.CheckReason(in.Reason); refusal != nil {
		return domain.Rebuild{}, refusal
	}
	if in.PeriodKey != "" && !p.ByPeriod {
		return domain.Rebuild{}, domain.Refuse("scope_invalid", "/periodKey", "%s cannot be rebuilt for one period", p.Name)
	}
	if refusal := domain.CheckUsagePeriod(in.PeriodKey); in.PeriodKey != "" && refusal != nil {
		return domain.Rebuild{}, refusal
	}
	if in.Workers < 0 || in.Workers > maxWorkers {
		return domain.Rebuild{}, domain.Refuse("workers_invalid", "/workers", "workers must be 1 to %d", maxWorkers)
	}
	if in.Workers == 0 {
		in.Workers = max(1, min(runtime.GOMAXPROCS(0)/2, maxWorkers))
	}
	r := domain.Rebuild{
		ID: c.NewID(), Projection: p.Name, Consumer: p.Consumer, FoldVersion: p.Newest, Purpose: events.PurposeRebuild,
		TenantID: in.TenantID, PeriodKey: in.PeriodKey, Reason: in.Reason, State: domain.RebuildFolding, Workers: in.Workers,
		CreatedAt: c.now(),
	}
	if in.Verify {
		r.Purpose, r.Repair = events.PurposeVerify, in.Repair
	}
	return r, nil
}

func (c *Rebuilds) projection(name string) *Projection {
	for i := range c.Projections {
		if c.Projections[i].Name == name {
			return &c.Projections[i]
		}
	}
	return nil
}

// byPeriod reports whether a projection has figures of periods, which may be closed.
func (c *Rebuilds) byPeriod(name string) bool {
	p := c.projection(name)
	return p != nil && p.ByPeriod
}

// Promote makes the new generation visible to readers.
func (c *Rebuilds) Promote(ctx context.Context, req commands.Request, id uuid.UUID, reason string) (domain.Rebuild, error) {
	return c.decide(ctx, req, id, reason, (*domain.Rebuild).Promotable, promoted)
}

// PromoteShown is Promote, unless the difference is none of those that were shown, by their entity tags.
func (c *Rebuilds) PromoteShown(ctx context.Context, req commands.Request, id uuid.UUID, reason string, shown []string) (domain.Rebuild,
	error) {
	return c.decide(ctx, req, id, reason, (*domain.Rebuild).Promotable, func(tx RebuildTx, r *domain.Rebuild) (events.Subject, error) {
		if err := tx.LockGenerations(r); err != nil {
			return 0, err
		}
		now, err := tx.Changed(r, shown)
		if err != nil {
			return 0, err
		}
		if now != nil {
			return 0, changedSince(now)
		}
		return promoted(tx, r)
	})
}

// changedSince refuses a promotion of another difference than the one that was shown.
func changedSince(now *domain.Current) *domain.Error {
	sum := ""
	if now.Delta != nil {
		sum = " with a sum of deltas of " + now.Delta.String()
	}
	if now.Closed != nil && *now.Closed > 0 {
		sum += fmt.Sprintf(", %d of closed periods", *now.Closed)
	}
	refusal := domain.Refuse("state_changed", "", "the difference is not the one that was shown: now %d keys differ%s", *now.Keys, sum)
	refusal.Current = now
	return refusal
}

// RollBack makes the generation before the promotion visible again.
func (c *Rebuilds) RollBack(ctx context.Context, req commands.Request, id uuid.UUID, reason string) (domain.Rebuild, error) {
	return c.decide(ctx, req, id, reason, (*domain.Rebuild).Revocable, rolledBack)
}

// Abandon drops the new generation.
func (c *Rebuilds) Abandon(ctx context.Context, req commands.Request, id uuid.UUID, reason string) (domain.Rebuild, error) {
	return c.decide(ctx, req, id, reason, (*domain.Rebuild).Abandonable, abandoned)
}

// decision changes the state of a rebuild and returns the subject of its event.
type decision func(RebuildTx, *domain.Rebuild) (events.Subject, error)

func promoted(tx RebuildTx, r *domain.Rebuild) (events.Subject, error) {
	if err := tx.LockGenerations(r); err != nil {
		return 0, err
	}
	generations, err := tx.Generations(r)
	if err != nil {
		return 0, err
	}
	moved := false
	if r.PeriodKey != "" {
		if moved, err = tx.MovesEvents(r); err != nil {
			return 0, err
		}
	}
	if refusal := r.Showable(generations, moved); refusal != nil {
		return 0, refusal
	}
	r.Flip, err = tx.Flip(r)
	r.State = domain.RebuildPromoted
	return events.RebuildPromoted, err
}

func rolledBack(tx RebuildTx, r *domain.Rebuild) (events.Subject, error) {
	if err := tx.LockGenerations(r); err != nil {
		return 0, err
	}
	covered, err := tx.Covered(r)
	if err != nil {
		return 0, err
	}
	if refusal := r.Uncovered(covered); refusal != nil {
		return 0, refusal
	}
	if r.Flip, err = tx.Unflip(r); err != nil {
		return 0, err
	}
	generations, err := tx.Generations(r)
	if err != nil {
		return 0, err
	}
	if refusal := r.Restorable(generations); refusal != nil {
		return 0, refusal
	}
	r.State = domain.RebuildRolledBack
	return events.RebuildRolledBack, nil
}

func abandoned(_ RebuildTx, r *domain.Rebuild) (events.Subject, error) {
	r.State = domain.RebuildAbandoned
	return events.RebuildAbandoned, nil
}

// FinishVerify records the result of a verify and drops its generation, or promotes
// it if there are differences and the verify is to repair them.
func (c *Rebuilds) FinishVerify(ctx context.Context, id uuid.UUID, differs int64) error {
	req := commands.Request{By: commands.Caller{TenantID: events.Platform, Actor: events.Actor{Type: "service", ID: "meterplex-rebuilder"}}}
	_, err := c.apply(ctx, req, id, "the live rows were compared with the log",
		func(tx RebuildTx, r *domain.Rebuild) (events.Subject, error) {
			if r.State != domain.RebuildReady {
				// another worker finished it first, or it was abandoned
				return 0, domain.Refuse("rebuild_not_ready", "", "the rebuild is %s", r.State)
			}
			if err := stillOf(tx, r); err != nil {
				return 0, err
			}
			r.Differs = &differs
			repair := r.Repair && differs > 0
			said := events.Verified{RebuildID: r.ID, Projection: r.Projection, Generation: r.Generation, Differs: differs, Repaired: repair}
			if _, err := commands.AppendEvent(tx, &req, c.NewID(), c.now(), events.Platform, events.ProjectionVerified, said); err != nil {
				return 0, err
			}
			if !repair {
				return abandoned(tx, r)
			}
			return promoted(tx, r)
		})
	return err
}

// stillOf refuses a verify of a fold version that readers no longer see. It would
// compare two fold versions, and a repair would revert a promotion.
func stillOf(tx RebuildTx, r *domain.Rebuild) error {
	version, err := liveFold(tx, r)
	if err == nil && version != r.FoldVersion {
		err = domain.Refuse("scope_changed", "", "the live rows were of version %s when the verify began and are of %s now; verify again",
			r.FoldVersion, version)
	}
	return err
}

// liveFold returns the fold version that readers of the rebuild's scope see.
func liveFold(tx RebuildTx, r *domain.Rebuild) (string, error) {
	versions, err := tx.LiveFolds(r.Projection, r.TenantID, r.PeriodKey)
	if err != nil {
		return "", err
	}
	version, refusal := domain.FoldOf(versions)
	if refusal != nil {
		return "", refusal
	}
	return version, nil
}

// decide applies a caller's decision on a rebuild, unless forbids returns a refusal.
func (c *Rebuilds) decide(ctx context.Context, req commands.Request, id uuid.UUID, reason string,
	forbids func(*domain.Rebuild) *domain.Error, do decision) (domain.Rebuild, error) {
	if refusal := domain.CheckReason(reason); refusal != nil {
		return domain.Rebuild{}, refusal
	}
	return c.apply(ctx, req, id, reason, func(tx RebuildTx, r *domain.Rebuild) (events.Subject, error) {
		if refusal := forbids(r); refusal != nil {
			return 0, refusal
		}
		return do(tx, r)
	})
}

// apply applies a decision on a rebuild and appends its event.
func (c *Rebuilds) apply(ctx context.Context, req commands.Request, id uuid.UUID, reason string, do decision) (domain.Rebuild, error) {
	known, err := c.Store.Rebuild(ctx, id)
	if err != nil || known == nil {
		return domain.Rebuild{}, commands.OrRefuse(err, "rebuild_not_found", "", "no such rebuild")
	}
	return commands.Change(c.changeOf(ctx, known.Projection), req, func(tx RebuildTx) (domain.Rebuild, error) {
		r, err := tx.Rebuild(id)
		if err != nil {
			return domain.Rebuild{}, err
		}
		subject, err := do(tx, r)
		if err != nil {
			return *r, err
		}
		if flips := subject == events.RebuildPromoted || subject == events.RebuildRolledBack; flips && c.byPeriod(r.Projection) {
			if err := billing.ReconcileFlip(tx, c.NewID(), r.TenantID, r.Flip, r.ID); err != nil {
				return *r, err
			}
		}
		now := c.now()
		r.EndedAt = &now
		if err := tx.SaveRebuild(*r); err != nil {
			return *r, err
		}
		_, err = commands.AppendEvent(tx, &req, c.NewID(), now, events.Platform, subject,
			events.RebuildStep{RebuildID: r.ID, Projection: r.Projection, Generation: r.Generation, Flip: r.Flip, Reason: reason})
		return *r, err
	})
}
