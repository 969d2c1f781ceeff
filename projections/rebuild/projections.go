package rebuild

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

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
	topicOf     events.Topic
}

// LastRebuild names the newest rebuild of a projection.
type LastRebuild struct {
	ID        uuid.UUID `json:"id"`
	State     string    `json:"state"`
	Purpose   string    `json:"purpose"`
	CreatedAt time.Time `json:"createdAt"`
}

// ScopedGeneration is the generation that readers of one tenant, or of one period, see instead.
type ScopedGeneration struct {
	TenantID   *uuid.UUID `json:"tenantId"`
	PeriodKey  *string    `json:"periodKey"`
	Generation int        `json:"generation"`
}

// States of a generation.
const (
	GenerationLive       = "live"
	GenerationKept       = "kept"       // replaced, but still fed for a rollback
	GenerationRebuilding = "rebuilding" // behind the live one
	GenerationReady      = "ready"      // fed with the live one, awaits a decision
	GenerationBroken     = "broken"     // no longer fed
)

// GenerationStatus is a generation whose rows are kept.
type GenerationStatus struct {
	Generation  int        `json:"generation"`
	FoldVersion string     `json:"foldVersion"`
	TenantID    *uuid.UUID `json:"tenantId"`
	PeriodKey   *string    `json:"periodKey"`
	State       string     `json:"state"`
	Why         *string    `json:"why"` // if broken
	CreatedAt   time.Time  `json:"createdAt"`
}

// readProjectionLag reads the lag between the live checkpoints and the last position of
// their source; $2 is the source's topic by projection, 0 for the whole log. Positions of
// other topics in between count, too: the checkpoint passes them the same way.
var readProjectionLag = `
SELECT a.projection, p.generation, g.fold_version, sum(c.position)::bigint,
       sum(greatest(s.source - c.position, 0))::bigint,
       greatest(coalesce(extract(epoch FROM now() - min(n.recorded_at)), 0), 0)::float8
FROM unnest($1::text[], $2::smallint[], $3::text[]) AS a (projection, topic, consumer)
JOIN projection_pointers p ON p.live AND p.projection = a.projection AND p.tenant_id = '00000000-0000-0000-0000-000000000000' AND p.period_key = ''
JOIN projection_generations g ON g.projection = p.projection AND g.generation = p.generation
JOIN consumer_checkpoints c ON c.consumer = a.consumer AND c.generation = p.generation
JOIN log_heads h ON h.partition = c.partition
CROSS JOIN LATERAL (SELECT CASE WHEN a.topic = 0 THEN h.position ELSE h.topic_positions[a.topic] END AS source) s
CROSS JOIN LATERAL (SELECT ` + projections.FirstWaiting("c.partition", "c.position", "s.source", "NULLIF(a.topic, 0)") + ` AS recorded_at) n
GROUP BY a.projection, p.generation, g.fold_version`

const readGenerationStates = `
SELECT g.projection, g.generation, g.fold_version, NULLIF(g.tenant_id, '00000000-0000-0000-0000-000000000000'), NULLIF(g.period_key, ''), g.created_at, g.broken,
       EXISTS (SELECT FROM projection_pointers p WHERE p.live AND p.projection = g.projection AND p.generation = g.generation), coalesce(r.state, '')
FROM projection_generations g LEFT JOIN projection_rebuilds r USING (projection, generation)
WHERE g.projection = ANY ($1::text[]) AND g.dropped_at IS NULL
ORDER BY g.projection, g.generation`

const readScoped = `
SELECT p.projection, NULLIF(p.tenant_id, '00000000-0000-0000-0000-000000000000'), NULLIF(p.period_key, ''), p.generation
FROM projection_pointers p
WHERE p.live AND p.projection = ANY ($1::text[]) AND (p.tenant_id <> '00000000-0000-0000-0000-000000000000' OR p.period_key <> '')
ORDER BY p.projection, p.flip`

const readLastRebuilds = `
SELECT DISTINCT ON (r.projection) r.projection, r.id, r.state, r.purpose, r.created_at,
       (SELECT v.differs FROM projection_rebuilds v WHERE v.projection = r.projection AND v.differs IS NOT NULL ORDER BY v.ended_at DESC, v.id DESC LIMIT 1)
FROM projection_rebuilds r
WHERE r.projection = ANY ($1::text[])
ORDER BY r.projection, r.id DESC`

// known lists the projections by name, with the source and the folds of each: a page of the list begins behind a name.
func (r *Reads) known() []ProjectionStatus {
	var all []ProjectionStatus
	for _, p := range r.List {
		all = append(all, ProjectionStatus{
			Name: p.Name, Consumer: p.Consumer.Name, topicOf: p.Consumer.Topic, Versions: slices.Sorted(slices.Values(p.Consumer.Versions)),
			Scoped: []ScopedGeneration{}, Generations: []GenerationStatus{},
		})
	}
	slices.SortFunc(all, func(a, b ProjectionStatus) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Projections lists the projections by name, from one snapshot.
func (r *Reads) Projections(ctx context.Context) ([]ProjectionStatus, error) {
	all := r.known()
	byName := make(map[string]*ProjectionStatus)
	var names, consumers []string
	var topics []int16
	for i := range all {
		byName[all[i].Name] = &all[i]
		names, topics, consumers = append(names, all[i].Name), append(topics, int16(all[i].topicOf)), append(consumers, all[i].Consumer)
	}
	var name string
	err := r.Snapshot(ctx, query.Viewer{Operator: true},
		query.New(readProjectionLag, []any{names, topics, consumers}, query.Each(func(rows pgx.Rows) error {
			var p ProjectionStatus
			err := rows.Scan(&name, &p.Generation, &p.FoldVersion, &p.Checkpoint, &p.LagEvents, &p.LagSeconds)
			of := byName[name]
			of.Generation, of.FoldVersion, of.Checkpoint, of.LagEvents, of.LagSeconds = p.Generation, p.FoldVersion, p.Checkpoint, p.LagEvents, p.LagSeconds
			return err
		})),
		query.New(readGenerationStates, []any{names}, query.Each(func(rows pgx.Rows) error {
			g, err := scanGeneration(rows, &name)
			byName[name].Generations = append(byName[name].Generations, g)
			return err
		})),
		query.New(readScoped, []any{names}, query.Each(func(rows pgx.Rows) error {
			var s ScopedGeneration
			err := rows.Scan(&name, &s.TenantID, &s.PeriodKey, &s.Generation)
			byName[name].Scoped = append(byName[name].Scoped, s)
			return err
		})),
		query.New(readLastRebuilds, []any{names}, query.Each(func(rows pgx.Rows) error {
			var last LastRebuild
			var drift *int64
			err := rows.Scan(&name, &last.ID, &last.State, &last.Purpose, &last.CreatedAt, &drift)
			last.CreatedAt = last.CreatedAt.UTC()
			byName[name].LastRebuild, byName[name].DriftRows = &last, drift
			return err
		})))
	return all, err
}

func scanGeneration(rows pgx.Rows, projection *string) (GenerationStatus, error) {
	var g GenerationStatus
	var live bool
	var state string
	err := rows.Scan(projection, &g.Generation, &g.FoldVersion, &g.TenantID, &g.PeriodKey, &g.CreatedAt, &g.Why, &live, &state)
	g.CreatedAt = g.CreatedAt.UTC()
	switch {
	case g.Why != nil:
		g.State = GenerationBroken
	case live:
		g.State = GenerationLive
	case state == domain.RebuildFolding || state == domain.RebuildCatchingUp:
		g.State = GenerationRebuilding
	case state == domain.RebuildReady:
		g.State = GenerationReady
	default:
		g.State = GenerationKept
	}
	return g, err
}
