package commands

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// Projection is what there is to rebuild.
type Projection struct {
	Name     string
	Consumer string
	Newest   string // the fold version that new generations are bound to
	ByPeriod bool   // it can be rebuilt for one period
}

// RebuildStore runs changes of what readers see.
type RebuildStore interface {
	// ChangeRebuilds runs decide in one transaction that no other change of the
	// projection's generations runs beside. An error of decide rolls back and is
	// returned as it is.
	ChangeRebuilds(ctx context.Context, projection string, decide func(RebuildTx) error) error
	// Rebuild reads one; nil where there is none.
	Rebuild(ctx context.Context, id uuid.UUID) (*domain.Rebuild, error)
}

// RebuildTx is what a change of rebuilds can load and keep besides.
type RebuildTx interface {
	Tx
	Rebuilds(projection string) ([]domain.Rebuild, error) // those that are Open
	Rebuild(id uuid.UUID) (*domain.Rebuild, error)
	// LiveFold is the version that what readers of a scope see is folded by; refused
	// where that is more than one.
	LiveFold(projection string, tenant uuid.UUID, periodKey string) (string, error)
	// StartRebuild keeps a rebuild, its generation (the next number, which it
	// returns) and its units of work.
	StartRebuild(r domain.Rebuild) (generation int, err error)
	SaveRebuild(r domain.Rebuild) error
	// Flip lets readers see the rebuild's generation, and tells the flip's number; a
	// generation that is broken or not fed with the live one is refused.
	Flip(r *domain.Rebuild) (flip int, err error)
	// Unflip takes the rebuild's flip back; refused where what was before is gone,
	// or where a later one lies over it.
	Unflip(r *domain.Rebuild) (flip int, err error)
}

// Rebuilds starts rebuilds and decides what becomes of them. Nothing here waits for
// a pipe: a rebuild needs the log alone.
type Rebuilds struct {
	Store       RebuildStore
	Now         Clock
	NewID       func() uuid.UUID
	Projections []Projection
}

// StartRebuild asks for a rebuild. Scope: one tenant (Nil: all), one period ("": all).
type StartRebuild struct {
	Projection string
	TenantID   uuid.UUID
	PeriodKey  string
	Workers    int // 0: half as many as the instance has processors, so that readers have the rest
	Reason     string
	Verify     bool // compare with the log and drop
	Repair     bool // of a verify: promote it where they differ
}

// Bounds of what a rebuild may be asked for.
const (
	maxReason  = 500
	maxWorkers = 32 // no more than there are partitions
)

func (c *Rebuilds) now() time.Time { return c.Now().UTC().Truncate(time.Microsecond) }

// Start makes a new generation; the workers find it by themselves.
func (c *Rebuilds) Start(ctx context.Context, by Caller, once Once, in StartRebuild) (domain.Rebuild, error) {
	r, err := c.planned(in)
	if err != nil {
		return domain.Rebuild{}, err
	}
	return c.change(ctx, by, once, r.Projection, func(tx RebuildTx) (domain.Rebuild, error) {
		if in.TenantID != uuid.Nil {
			if t, err := tx.Tenant(in.TenantID); err != nil || t == nil {
				return r, orRefuse(err, "tenant_not_found", "/tenantId", "no such tenant")
			}
		}
		open, err := tx.Rebuilds(r.Projection)
		if err != nil {
			return r, err
		}
		for i := range open {
			if open[i].Purpose == r.Purpose && open[i].Overlaps(&r) {
				return r, refuse("rebuild_in_progress", "", "rebuild %s of %s is %s and has figures in common with this one; promote or abandon it first", open[i].ID, r.Projection, open[i].State)
			}
		}
		if in.Verify { // the live rows are compared with their own fold: another one's differences are no drift
			if r.FoldVersion, err = tx.LiveFold(r.Projection, r.TenantID, r.PeriodKey); err != nil {
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
		_, err = appendAs(tx, r.ID, r.CreatedAt, by.actor(), by, once, events.Platform, events.RebuildRequested, said)
		return r, err
	})
}

func orRefuse(err error, code, pointer, message string) error {
	if err != nil {
		return err
	}
	return refuse(code, pointer, "%s", message)
}

// planned checks a request and makes the rebuild that it asks for.
func (c *Rebuilds) planned(in StartRebuild) (domain.Rebuild, error) {
	p := c.projection(in.Projection)
	if p == nil {
		return domain.Rebuild{}, refuse("projection_not_found", "", "there is no projection %.64q", in.Projection)
	}
	if err := checkReason(in.Reason); err != nil {
		return domain.Rebuild{}, err
	}
	if in.PeriodKey != "" && !p.ByPeriod {
		return domain.Rebuild{}, refuse("scope_invalid", "/periodKey", "%s cannot be rebuilt for one period", p.Name)
	}
	if _, _, ok := domain.PeriodBounds(in.PeriodKey); in.PeriodKey != "" && !ok && in.PeriodKey != domain.PeriodLifetime {
		return domain.Rebuild{}, refuse("period_key_invalid", "/periodKey", "a period key is a month such as 2026-05, a year such as 2026, or lifetime")
	}
	if in.Workers < 0 || in.Workers > maxWorkers {
		return domain.Rebuild{}, refuse("workers_invalid", "/workers", "workers must be 1 to %d", maxWorkers)
	}
	if in.Workers == 0 {
		in.Workers = max(1, min(runtime.GOMAXPROCS(0)/2, maxWorkers))
	}
	r := domain.Rebuild{
		ID: c.NewID(), Projection: p.Name, Consumer: p.Consumer, FoldVersion: p.Newest, Purpose: events.PurposeRebuild,
		TenantID: in.TenantID, PeriodKey: in.PeriodKey, Reason: in.Reason, State: domain.RebuildFolding, Workers: in.Workers, CreatedAt: c.now(),
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

func checkReason(reason string) error {
	if strings.TrimSpace(reason) == "" {
		return refuse("reason_required", "/reason", "say why; it is kept in the log")
	}
	if len(reason) > maxReason {
		return refuse("reason_invalid", "/reason", "a reason has at most %d bytes", maxReason)
	}
	return nil
}

// Promote lets readers see the new generation.
func (c *Rebuilds) Promote(ctx context.Context, by Caller, once Once, id uuid.UUID, reason string) (domain.Rebuild, error) {
	return c.decide(ctx, by, once, id, reason, (*domain.Rebuild).Promotable, promoted)
}

// RollBack lets readers see what they saw before the rebuild was promoted.
func (c *Rebuilds) RollBack(ctx context.Context, by Caller, once Once, id uuid.UUID, reason string) (domain.Rebuild, error) {
	return c.decide(ctx, by, once, id, reason, (*domain.Rebuild).Revocable, rolledBack)
}

// Abandon drops the new generation.
func (c *Rebuilds) Abandon(ctx context.Context, by Caller, once Once, id uuid.UUID, reason string) (domain.Rebuild, error) {
	return c.decide(ctx, by, once, id, reason, (*domain.Rebuild).Abandonable, abandoned)
}

// decision takes a rebuild a step on and names the event that says so.
type decision func(RebuildTx, *domain.Rebuild) (events.Subject, error)

func promoted(tx RebuildTx, r *domain.Rebuild) (_ events.Subject, err error) {
	r.Flip, err = tx.Flip(r)
	r.State = domain.RebuildPromoted
	return events.RebuildPromoted, err
}

func rolledBack(tx RebuildTx, r *domain.Rebuild) (_ events.Subject, err error) {
	r.Flip, err = tx.Unflip(r)
	r.State = domain.RebuildRolledBack
	return events.RebuildRolledBack, err
}

func abandoned(_ RebuildTx, r *domain.Rebuild) (events.Subject, error) {
	r.State = domain.RebuildAbandoned
	return events.RebuildAbandoned, nil
}

// FinishVerify records what a verify found, and drops its generation, or promotes
// it where it is to repair what differs.
func (c *Rebuilds) FinishVerify(ctx context.Context, id uuid.UUID, differs int64) error {
	by, rebuilder := Caller{TenantID: events.Platform}, events.Actor{Type: "service", ID: "meterplex-rebuilder"}
	_, err := c.decideAs(ctx, by, rebuilder, Once{}, id, "the live rows were compared with the log",
		func(tx RebuildTx, r *domain.Rebuild) (events.Subject, error) {
			if r.State != domain.RebuildReady {
				return 0, refuse("rebuild_not_ready", "", "the rebuild is %s", r.State) // another worker was faster, or it was abandoned
			}
			if err := c.stillOf(tx, r); err != nil {
				return 0, err
			}
			r.Differs = &differs
			repair := r.Repair && differs > 0
			said := events.Verified{RebuildID: r.ID, Projection: r.Projection, Generation: r.Generation, Differs: differs, Repaired: repair}
			if _, err := appendAs(tx, c.NewID(), c.now(), rebuilder, by, Once{}, events.Platform, events.ProjectionVerified, said); err != nil {
				return 0, err
			}
			if !repair {
				return abandoned(tx, r)
			}
			return promoted(tx, r)
		})
	return err
}

// stillOf refuses a verify of what readers see no longer: its differences are those
// of two folds, and repairing them would take a promotion back.
func (c *Rebuilds) stillOf(tx RebuildTx, r *domain.Rebuild) error {
	version, err := tx.LiveFold(r.Projection, r.TenantID, r.PeriodKey)
	if err == nil && version != r.FoldVersion {
		err = refuse("scope_changed", "", "what readers see was folded by %s when the verify began and is by %s now; verify again", r.FoldVersion, version)
	}
	return err
}

// decide takes a rebuild a step on that a caller asks for, where nothing forbids it.
func (c *Rebuilds) decide(ctx context.Context, by Caller, once Once, id uuid.UUID, reason string, forbids func(*domain.Rebuild) *domain.Error, do decision) (domain.Rebuild, error) {
	if err := checkReason(reason); err != nil {
		return domain.Rebuild{}, err
	}
	return c.decideAs(ctx, by, by.actor(), once, id, reason, func(tx RebuildTx, r *domain.Rebuild) (events.Subject, error) {
		if no := forbids(r); no != nil {
			return 0, no
		}
		return do(tx, r)
	})
}

// decideAs takes a rebuild one step on, with the event that says so.
func (c *Rebuilds) decideAs(ctx context.Context, by Caller, actor events.Actor, once Once, id uuid.UUID, reason string, do decision) (domain.Rebuild, error) {
	known, err := c.Store.Rebuild(ctx, id)
	if err != nil || known == nil {
		return domain.Rebuild{}, orRefuse(err, "rebuild_not_found", "", "no such rebuild")
	}
	return c.change(ctx, by, once, known.Projection, func(tx RebuildTx) (domain.Rebuild, error) {
		r, err := tx.Rebuild(id)
		if err != nil {
			return domain.Rebuild{}, err
		}
		subject, err := do(tx, r)
		if err != nil {
			return *r, err
		}
		now := c.now()
		r.EndedAt = &now
		if err := tx.SaveRebuild(*r); err != nil {
			return *r, err
		}
		_, err = appendAs(tx, c.NewID(), now, actor, by, once, events.Platform, subject,
			events.RebuildStep{RebuildID: r.ID, Projection: r.Projection, Generation: r.Generation, Flip: r.Flip, Reason: reason})
		return *r, err
	})
}

// change is change with the transaction that rebuilds need.
func (c *Rebuilds) change(ctx context.Context, by Caller, once Once, projection string, decide func(RebuildTx) (domain.Rebuild, error)) (domain.Rebuild, error) {
	return changeOne(ctx, rebuildStore{c.Store, projection}, events.Platform, by, once, func(tx Tx) (domain.Rebuild, error) {
		wide, ok := tx.(RebuildTx)
		if !ok {
			return domain.Rebuild{}, fmt.Errorf("a %T cannot change rebuilds", tx)
		}
		return decide(wide)
	})
}

// rebuildStore lets a change of rebuilds be repeated as any other is.
type rebuildStore struct {
	RebuildStore
	projection string
}

func (s rebuildStore) Change(ctx context.Context, _ uuid.UUID, decide func(Tx) error) error {
	return s.ChangeRebuilds(ctx, s.projection, func(tx RebuildTx) error { return decide(tx) })
}
