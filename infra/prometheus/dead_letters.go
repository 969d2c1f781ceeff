package prometheus

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/overview"
)

// countRefusals counts the dead letters that are not failures of a fold: refusals, and records that could
// not be decoded. The dead letter handler is the first to see the latter.
func (m *Metrics) countRefusals(c *projections.Consumer, applied []events.Envelope) {
	if c.Topic != events.TopicUsageDeadLetter {
		return
	}
	for i := range applied {
		switch applied[i].Subject {
		case events.UsageRejected:
			m.deadLetter.WithLabelValues(events.TopicUsageRaw.Name(), events.StageValidation).Inc()
		case events.UsageConflicted:
			m.deadLetter.WithLabelValues(events.TopicUsageRaw.Name(), events.StageIngestion).Inc()
		case events.UsageRefused:
			m.deadLetter.WithLabelValues(events.TopicUsageCommands.Name(), events.StageIngestion).Inc()
		case events.RecordParked:
			m.deadLetter.WithLabelValues(parkedOn(&applied[i]), events.StagePublishing).Inc()
		}
	}
}

// parkedOn returns the topic of a record that could not be decoded.
func parkedOn(e *events.Envelope) string {
	var parked events.ParkedRecord
	_ = json.Unmarshal(e.Payload, &parked) // on failure, the fold reports it
	if topic, known := events.TopicOf(parked.Topic); known {
		return topic.Name()
	}
	return e.Subject.Topic().Name()
}

const (
	// slowEach is the number of state reads per read of what is large or changes slowly.
	slowEach = 8
	// maxCounted bounds the rows counted per gauge, and fewCounted those of the reads between: they find the first failure at once, and leave a
	// larger count to the next complete read.
	maxCounted = 100_000
	fewCounted = 1_000
)

func newOpenLetters() *prom.GaugeVec {
	letters := prom.NewGaugeVec(prom.GaugeOpts{Name: "meterplex_dead_letters",
		Help: "Dead letters that are FAILED or RETRYING; counted up to 100,000 of each."}, []string{"status", "stage"})
	for _, status := range []string{"FAILED", "RETRYING"} {
		for _, stage := range []string{events.StageIngestion, events.StagePublishing, events.StageValidation, events.StageAggregation} {
			letters.WithLabelValues(status, stage)
		}
	}
	return letters
}

// openLettersSQL uses the index of open dead letters, which is ordered by status, stage and id. The id has the time of the first failure, so that
// the first one is the oldest.
const openLettersSQL = `WITH live AS MATERIALIZED (
  SELECT p.generation FROM projection_pointers p
  WHERE p.live AND p.projection = '` + projections.ProjectionDeadLetters + `' AND p.tenant_id = '00000000-0000-0000-0000-000000000000')
 SELECT status, stage, (SELECT count(*) FROM (
  SELECT FROM dead_letter_events d
  WHERE d.generation = (SELECT generation FROM live) AND d.status = a.status AND d.status IN ('FAILED', 'RETRYING') AND d.stage = b.stage LIMIT $1) d),
 (SELECT d.first_failed_at FROM dead_letter_events d
  WHERE d.generation = (SELECT generation FROM live) AND d.status = a.status AND d.status IN ('FAILED', 'RETRYING') AND d.stage = b.stage ORDER BY d.id LIMIT 1)
 FROM unnest(ARRAY['FAILED', 'RETRYING']) AS a (status), unnest(ARRAY['INGESTION', 'PUBLISHING', 'VALIDATION', 'AGGREGATION']) AS b (stage)`

// readOpenLetters counts the open dead letters, up to a number of each.
func (m *Metrics) readOpenLetters(ctx context.Context, pool *pgxpool.Pool, most int64) error {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	rows, err := pool.Query(ctx, openLettersSQL, most)
	if err != nil {
		return fmt.Errorf("counting dead letters: %w", err)
	}
	var status, stage string
	var count int64
	var oldest *time.Time
	counts, failed := map[string]int64{}, []overview.Attention{}
	if _, err := pgx.ForEachRow(rows, []any{&status, &stage, &count, &oldest}, func() error {
		of := status + " " + stage
		if count == most {
			count = max(count, m.lettersCounted[of])
		}
		counts[of] = count
		m.letters.WithLabelValues(status, stage).Set(float64(count))
		if status == "FAILED" && stage != events.StageIngestion { // those are errors of a producer, and no work for an operator
			failed = append(failed, overview.Item(overview.FailedDeadLetters, stage, count, oldest, "/api/v1/dead-letters?status=FAILED&stage="+stage)...)
		}
		return nil
	}); err != nil {
		return fmt.Errorf("counting dead letters: %w", err)
	}
	m.lettersCounted = counts
	m.board.SetAttention(overview.FailedDeadLetters, failed)
	return nil
}
