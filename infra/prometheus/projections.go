package prometheus

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/overview"
)

// projectionGauges report the lag of projections, their difference from the log, and the progress of
// rebuilds.
type projectionGauges struct {
	lag                    *prom.GaugeVec
	lagEvents, lagSeconds  *prom.GaugeVec
	drift, broken          *prom.GaugeVec
	rebuilds, done, wanted *prom.GaugeVec
	board                  *overview.Board
}

func newProjectionGauges(board *overview.Board) *projectionGauges {
	gauge := func(name, help string, labels ...string) *prom.GaugeVec {
		return prom.NewGaugeVec(prom.GaugeOpts{Name: "meterplex_" + name, Help: help}, labels)
	}
	g := &projectionGauges{
		board:      board,
		lag:        gauge("consumer_lag", "Log positions between a topic's consumer and the last event of the topic, including those of other topics.", "topic", "partition"),
		lagEvents:  gauge("projection_lag_events", "Log positions between a projection and the last event of its source; consumers without a projection have their own name.", "projection"),
		lagSeconds: gauge("projection_lag_seconds", "Age of the oldest event that is not in the projection yet.", "projection"),
		drift:      gauge("projection_drift_rows", "Keys whose live rows differed from the log in the last verify; NaN before the first one.", "projection"),
		broken:     gauge("projection_broken_generations", "Detached generations that are kept: they cannot be promoted or rolled back to.", "projection"),
		rebuilds:   gauge("rebuilds_open", "Rebuilds under way or waiting for a decision.", "projection", "state"),
		done:       gauge("rebuild_events_done", "Events folded by rebuilds that are not READY yet.", "projection"),
		wanted:     gauge("rebuild_events_total", "Events that these rebuilds must fold to reach the live generation.", "projection"),
	}
	g.createSeries()
	return g
}

// createSeries creates the series of this release's consumers and projections.
func (g *projectionGauges) createSeries() {
	projects := projectionsOfConsumers()
	for consumer, topic := range topicsOfConsumers() {
		for p := range events.Partitions {
			g.lag.WithLabelValues(events.Topic(topic).Name(), strconv.Itoa(p))
		}
		if projects[consumer] == "" && !events.Topic(topic).Outside() {
			projects[consumer] = consumer
		}
	}
	for _, name := range projects {
		g.lagEvents.WithLabelValues(name)
		g.lagSeconds.WithLabelValues(name)
		g.broken.WithLabelValues(name)
	}
	for _, p := range models.List(models.DefaultFolds(), nil) {
		g.drift.WithLabelValues(p.Name).Set(math.NaN())
	}
}

func (g *projectionGauges) all() []*prom.GaugeVec {
	return []*prom.GaugeVec{g.lag, g.lagEvents, g.lagSeconds, g.drift, g.broken, g.rebuilds, g.done, g.wanted}
}

// Describe implements prom.Collector.
func (g *projectionGauges) Describe(c chan<- *prom.Desc) {
	for _, v := range g.all() {
		v.Describe(c)
	}
}

// Collect implements prom.Collector.
func (g *projectionGauges) Collect(c chan<- prom.Metric) {
	for _, v := range g.all() {
		v.Collect(c)
	}
}

// lagSQL counts no generations that are being rebuilt. All joined generations are at the same position.
// $1 maps consumers to topics, $2 to projections.
var lagSQL = `SELECT c.consumer, $2::jsonb ->> c.consumer, coalesce(t.topic, 0)::smallint, c.partition,
  greatest(s.source - c.position, 0)::float8, coalesce(greatest(extract(epoch FROM now() - n.recorded_at), 0), 0)::float8
 FROM (SELECT consumer, partition, min(position) AS position FROM consumer_checkpoints WHERE joined GROUP BY consumer, partition) c
 JOIN log_heads h USING (partition)
 CROSS JOIN LATERAL (SELECT ($1::jsonb ->> c.consumer)::int AS topic) t
 CROSS JOIN LATERAL (SELECT CASE WHEN t.topic IS NULL THEN h.position ELSE h.topic_positions[t.topic] END AS source) s
 CROSS JOIN LATERAL (SELECT ` + projections.FirstWaiting("c.partition", "c.position", "s.source", "t.topic") + ` AS recorded_at) n`

// driftSQL returns NULL as the drift of a projection that was never verified.
const driftSQL = `SELECT g.projection, count(*) FILTER (WHERE g.broken IS NOT NULL AND g.dropped_at IS NULL)::float8,
  r.differs::float8, r.ended_at
 FROM projection_generations g
 LEFT JOIN LATERAL (SELECT v.differs, v.ended_at FROM projection_rebuilds v
  WHERE v.projection = g.projection AND v.differs IS NOT NULL ORDER BY v.ended_at DESC, v.id DESC LIMIT 1) r ON true
 GROUP BY g.projection, r.differs, r.ended_at`

const openRebuildsSQL = `SELECT r.projection, r.state, count(DISTINCT r.id)::float8,
  coalesce(sum(least(c.position, l.position)) FILTER (WHERE r.state <> 'READY'), 0)::float8, coalesce(sum(l.position) FILTER (WHERE r.state <> 'READY'), 0)::float8
 FROM projection_rebuilds r
 JOIN rebuild_units u ON u.rebuild_id = r.id
 JOIN consumer_checkpoints c ON c.consumer = r.consumer AND c.generation = r.generation AND c.partition = u.partition
 CROSS JOIN LATERAL (
  SELECT max(l.position) AS position FROM consumer_checkpoints l WHERE l.consumer = r.consumer AND l.partition = u.partition AND l.joined) l
 WHERE r.state IN ('FOLDING', 'CATCHING_UP', 'READY')
 GROUP BY r.projection, r.state`

func (g *projectionGauges) read(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	if err := g.readLag(ctx, pool); err != nil {
		return fmt.Errorf("reading the lag of projections: %w", err)
	}
	if err := g.readDrift(ctx, pool); err != nil {
		return fmt.Errorf("reading the drift of projections: %w", err)
	}
	if err := g.readRebuilds(ctx, pool); err != nil {
		return fmt.Errorf("reading the progress of rebuilds: %w", err)
	}
	return nil
}

func (g *projectionGauges) readLag(ctx context.Context, pool *pgxpool.Pool) error {
	rows, err := pool.Query(ctx, lagSQL, topicsOfConsumers(), projectionsOfConsumers())
	if err != nil {
		return err
	}
	var row overview.Consumer
	var topic events.Topic
	var partition int
	var behind, age float64
	lags := map[string]overview.Consumer{}
	_, err = pgx.ForEachRow(rows, []any{&row.Name, &row.Projection, &topic, &partition, &behind, &age}, func() error {
		lag := lags[row.Name]
		lag.Name, lag.Projection, lag.Positions, lag.Seconds = row.Name, row.Projection, lag.Positions+int64(behind), max(lag.Seconds, age)
		lags[row.Name] = lag
		if topic != 0 {
			g.lag.WithLabelValues(topic.Name(), strconv.Itoa(partition)).Set(behind)
		}
		return nil
	})
	if err != nil {
		return err
	}
	list := slices.SortedFunc(maps.Values(lags), func(a, b overview.Consumer) int { return strings.Compare(a.Name, b.Name) })
	for _, lag := range list {
		name := lag.Name
		if lag.Projection != nil {
			name = *lag.Projection
		}
		g.lagEvents.WithLabelValues(name).Set(float64(lag.Positions))
		g.lagSeconds.WithLabelValues(name).Set(lag.Seconds)
	}
	g.board.SetConsumers(list)
	return nil
}

func (g *projectionGauges) readDrift(ctx context.Context, pool *pgxpool.Pool) error {
	rows, err := pool.Query(ctx, driftSQL)
	if err != nil {
		return err
	}
	var name string
	var broken float64
	var drift *float64
	var verified *time.Time
	var drifting, detached []overview.Attention
	_, err = pgx.ForEachRow(rows, []any{&name, &broken, &drift, &verified}, func() error {
		g.broken.WithLabelValues(name).Set(broken)
		detached = append(detached, overview.Item(overview.BrokenGeneration, name, int64(broken), nil, "/api/v1/projections")...)
		if drift != nil {
			g.drift.WithLabelValues(name).Set(*drift)
			drifting = append(drifting, overview.Item(overview.ProjectionDrift, name, int64(*drift), verified, "/api/v1/rebuilds")...)
		}
		return nil
	})
	if err == nil {
		g.board.SetAttention(overview.ProjectionDrift, drifting)
		g.board.SetAttention(overview.BrokenGeneration, detached)
	}
	return err
}

func (g *projectionGauges) readRebuilds(ctx context.Context, pool *pgxpool.Pool) error {
	rows, err := pool.Query(ctx, openRebuildsSQL)
	if err != nil {
		return err
	}
	defer rows.Close()
	g.rebuilds.Reset()
	g.done.Reset()
	g.wanted.Reset()
	var name, state string
	var open, done, wanted float64
	_, err = pgx.ForEachRow(rows, []any{&name, &state, &open, &done, &wanted}, func() error {
		g.rebuilds.WithLabelValues(name, state).Set(open)
		if wanted > 0 {
			g.done.WithLabelValues(name).Add(done)
			g.wanted.WithLabelValues(name).Add(wanted)
		}
		return nil
	})
	return err
}

// projectionsOfConsumers returns the projection of each consumer that has one.
func projectionsOfConsumers() map[string]string {
	names := map[string]string{}
	for _, p := range models.List(models.DefaultFolds(), nil) {
		names[p.Consumer.Name] = p.Name
	}
	return names
}
