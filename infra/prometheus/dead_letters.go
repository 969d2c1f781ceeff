package prometheus

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// refusedBefore counts the dead letters that no fold made: the refusals, and the
// records that could not be read, which the dead letter handler is the first to see.
func (m *Metrics) refusedBefore(c *projections.Consumer, applied []events.Envelope) {
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

// parkedOn is the topic on which a record could not be read.
func parkedOn(e *events.Envelope) string {
	var parked events.ParkedRecord
	_ = json.Unmarshal(e.Payload, &parked) // the fold says it where that fails
	if topic, known := events.TopicOf(parked.Topic); known {
		return topic.Name()
	}
	return e.Subject.Topic().Name()
}

const (
	// lettersEach is how many readings of the state there are for one of the letters.
	lettersEach = 8
	// maxCounted bounds the rows that are counted for each gauge.
	maxCounted = 100_000
)

func newOpenLetters() *prom.GaugeVec {
	return prom.NewGaugeVec(prom.GaugeOpts{Name: "meterplex_dead_letters",
		Help: "Dead letters that are FAILED or RETRYING; counted up to 100,000 of each."}, []string{"status", "stage"})
}

// Letters that are open are in an index of their own, in the order of these two.
const openLettersSQL = `SELECT status, stage, (SELECT count(*) FROM (
  SELECT FROM dead_letter_events d
  WHERE d.generation = (SELECT p.generation FROM projection_pointers p
                        WHERE p.live AND p.projection = 'dead_letter_events' AND p.tenant_id = '00000000-0000-0000-0000-000000000000')
    AND d.status = a.status AND d.status IN ('FAILED', 'RETRYING') AND d.stage = b.stage LIMIT $1) d)
 FROM unnest(ARRAY['FAILED', 'RETRYING']) AS a (status), unnest(ARRAY['INGESTION', 'PUBLISHING', 'VALIDATION', 'AGGREGATION']) AS b (stage)`

func readOpenLetters(ctx context.Context, pool *pgxpool.Pool, gauge *prom.GaugeVec) error {
	ctx, cancel := context.WithTimeout(ctx, stateTime)
	defer cancel()
	rows, err := pool.Query(ctx, openLettersSQL, maxCounted)
	if err != nil {
		return fmt.Errorf("counting dead letters: %w", err)
	}
	var status, stage string
	var count int64
	if _, err := pgx.ForEachRow(rows, []any{&status, &stage, &count}, func() error {
		gauge.WithLabelValues(status, stage).Set(float64(count))
		return nil
	}); err != nil {
		return fmt.Errorf("counting dead letters: %w", err)
	}
	return nil
}
