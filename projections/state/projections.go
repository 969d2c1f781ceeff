package state

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/projections/query"
)

// GenerationStatus is a generation whose rows are kept.
type GenerationStatus struct {
	Projection  string     `json:"-"`
	Generation  int        `json:"generation"`
	FoldVersion string     `json:"foldVersion"`
	TenantID    *uuid.UUID `json:"tenantId"`
	PeriodKey   *string    `json:"periodKey"`
	State       string     `json:"state"`
	Why         *string    `json:"why"` // if broken
	CreatedAt   time.Time  `json:"createdAt"`
}

// States of a generation.
const (
	GenerationLive       = "live"
	GenerationKept       = "kept"       // replaced, but still fed for a rollback
	GenerationRebuilding = "rebuilding" // behind the live one
	GenerationReady      = "ready"      // fed with the live one, awaits a decision
	GenerationBroken     = "broken"     // no longer fed
)

// Generations are those of all projections, also of those that this binary does not know.
type Generations []GenerationStatus

// Statement reads the generations of all projections.
func (g *Generations) Statement() query.Statement {
	return rows((*[]GenerationStatus)(g), `
SELECT g.projection, g.generation, g.fold_version, NULLIF(g.tenant_id, '00000000-0000-0000-0000-000000000000'), NULLIF(g.period_key, ''),
       CASE WHEN g.broken IS NOT NULL THEN '`+GenerationBroken+`'
            WHEN EXISTS (SELECT FROM projection_pointers p WHERE p.live AND p.projection = g.projection
            AND p.generation = g.generation) THEN '`+GenerationLive+`'
            WHEN r.state IN ('FOLDING', 'CATCHING_UP') THEN '`+GenerationRebuilding+`' WHEN r.state = 'READY' THEN '`+GenerationReady+`'
            ELSE '`+GenerationKept+`' END, g.broken, g.created_at
FROM projection_generations g LEFT JOIN projection_rebuilds r USING (projection, generation)
WHERE g.dropped_at IS NULL
ORDER BY g.projection, g.generation`)
}

// Broken counts the broken generations of each projection that has one.
func (g Generations) Broken() map[string]int64 {
	broken := map[string]int64{}
	for i := range g {
		if g[i].State == GenerationBroken {
			broken[g[i].Projection]++
		}
	}
	return broken
}

// ScopedGeneration is the generation that readers of one tenant, or of one period, see instead.
type ScopedGeneration struct {
	Projection string     `json:"-"`
	TenantID   *uuid.UUID `json:"tenantId"`
	PeriodKey  *string    `json:"periodKey"`
	Generation int        `json:"generation"`
}

// Pointers name the generations that readers see, in the order of their flips. One of each projection has no scope.
type Pointers []ScopedGeneration

// Statement reads the pointers of all projections.
func (p *Pointers) Statement() query.Statement {
	return rows((*[]ScopedGeneration)(p), `
SELECT projection, NULLIF(tenant_id, '00000000-0000-0000-0000-000000000000'), NULLIF(period_key, ''), generation
FROM projection_pointers WHERE live ORDER BY projection, flip`)
}

// LastRebuild names the newest rebuild of a projection, and the result of the last verify.
type LastRebuild struct {
	Projection string     `json:"-"`
	ID         uuid.UUID  `json:"id"`
	State      string     `json:"state"`
	Purpose    string     `json:"purpose"`
	CreatedAt  time.Time  `json:"createdAt"`
	Differs    *int64     `json:"-"` // keys that differed from the log in the last verify; nil: never verified
	VerifiedAt *time.Time `json:"-"`
}

// LastRebuilds are those of all projections.
type LastRebuilds []LastRebuild

// Statement reads the last rebuild and the last verify of each projection.
func (l *LastRebuilds) Statement() query.Statement {
	return rows((*[]LastRebuild)(l), `
SELECT p.projection, r.id, r.state, r.purpose, r.created_at, v.differs, v.ended_at
FROM (SELECT DISTINCT projection FROM projection_rebuilds) p
CROSS JOIN LATERAL (SELECT id, state, purpose, created_at FROM projection_rebuilds WHERE projection = p.projection ORDER BY id DESC
LIMIT 1) r
LEFT JOIN LATERAL (SELECT differs, ended_at FROM projection_rebuilds
  WHERE projection = p.projection AND differs IS NOT NULL ORDER BY ended_at DESC, id DESC LIMIT 1) v ON true
ORDER BY p.projection`)
}

// Unit is a partition of a rebuild's work. Position is its own position, Live that of the generation readers see, Target the value of Live
// when the rebuild began.
type Unit struct {
	RebuildID  uuid.UUID `json:"-"`
	Projection string    `json:"-"`
	State      string    `json:"-"` // of the rebuild
	Partition  int16     `json:"partition"`
	Position   int64     `json:"position"`
	Target     int64     `json:"target"`
	Live       int64     `json:"live"`
	Joined     bool      `json:"joined"`
}

// Units are those of the rebuilds under way or waiting for a decision.
type Units []Unit

const unitsSQL = `
SELECT u.rebuild_id, r.projection, r.state, u.partition, c.position, u.target, coalesce(l.position, c.position), c.joined
FROM rebuild_units u
JOIN projection_rebuilds r ON r.id = u.rebuild_id
JOIN consumer_checkpoints c ON c.consumer = r.consumer AND c.generation = r.generation AND c.partition = u.partition
LEFT JOIN LATERAL (
  SELECT max(l.position) AS position FROM consumer_checkpoints l
  WHERE l.consumer = r.consumer AND l.partition = u.partition AND l.joined) l ON true
WHERE `

// Statement reads the units of all open rebuilds.
func (u *Units) Statement() query.Statement {
	return rows((*[]Unit)(u), unitsSQL+`r.state IN ('FOLDING', 'CATCHING_UP', 'READY') ORDER BY u.rebuild_id`)
}

// Of reads the units of some rebuilds whose generations are kept.
func (u *Units) Of(rebuilds []uuid.UUID) query.Statement {
	return rows((*[]Unit)(u), unitsSQL+`u.rebuild_id = ANY ($1::uuid[]) ORDER BY u.rebuild_id, u.partition`, rebuilds)
}

// ProjectionStatus is a projection: the generation readers see, and how current it is.
// Generation and FoldVersion hold for all readers without a generation of their own.
type ProjectionStatus struct {
	Name        string             `json:"name"`
	Consumer    string             `json:"consumer"`
	Generation  int                `json:"generation"`
	FoldVersion string             `json:"foldVersion"`
	Versions    []string           `json:"versions"` // of the fold, in this binary
	Checkpoint  int64              `json:"checkpoint"`
	LagEvents   int64              `json:"lagEvents"`
	LagSeconds  float64            `json:"lagSeconds"`
	DriftRows   *int64             `json:"driftRows"` // of the last verify; null if never verified
	LastRebuild *LastRebuild       `json:"lastRebuild"`
	Scoped      []ScopedGeneration `json:"scoped"`
	Generations []GenerationStatus `json:"generations"`
}

// Projections lists the projections of this binary by name, from one snapshot.
func (r *Reads) Projections(ctx context.Context) ([]ProjectionStatus, error) {
	var lags Lags
	var generations Generations
	var pointers Pointers
	var last LastRebuilds
	err := r.Snapshot(ctx, query.Viewer{Operator: true}, lags.Statement(), generations.Statement(), pointers.Statement(), last.Statement())
	var all []ProjectionStatus
	for _, known := range r.List {
		p := ProjectionStatus{Name: known.Name, Consumer: known.Consumer.Name,
			Versions: slices.Sorted(slices.Values(known.Consumer.Versions)),
			Scoped:   []ScopedGeneration{}, Generations: []GenerationStatus{}}
		p.follow(lags)
		p.point(pointers)
		for _, g := range generations {
			if g.Projection != p.Name {
				continue
			}
			if g.Generation == p.Generation {
				p.FoldVersion = g.FoldVersion
			}
			p.Generations = append(p.Generations, g)
		}
		for i := range last {
			if of := &last[i]; of.Projection == p.Name {
				p.LastRebuild, p.DriftRows = of, of.Differs
			}
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b ProjectionStatus) int { return strings.Compare(a.Name, b.Name) })
	return all, err
}

func (p *ProjectionStatus) follow(lags Lags) {
	for _, c := range lags.Consumers(nil) {
		if c.Name == p.Consumer {
			p.Checkpoint, p.LagEvents, p.LagSeconds = c.Checkpoint, c.Positions, c.Seconds
		}
	}
}

func (p *ProjectionStatus) point(pointers Pointers) {
	for _, at := range pointers {
		switch {
		case at.Projection != p.Name:
		case at.TenantID == nil && at.PeriodKey == nil:
			p.Generation = at.Generation
		default:
			p.Scoped = append(p.Scoped, at)
		}
	}
}
