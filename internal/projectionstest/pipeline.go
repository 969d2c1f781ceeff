package projectionstest

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/consume"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/models"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/series"
)

// Pipeline is a fixture with every consumer and the reads.
type Pipeline struct {
	*Database
	Reads                                         *Reads
	Cached                                        *Reads // with a cache of grants
	Validating, Aggregating, Lettering, Entitling *consume.Runner
	Summing                                       *consume.Runner // usage_series
	Now                                           time.Time
}

// NewPipeline makes the fixture on a database of its own.
func NewPipeline(t testing.TB) *Pipeline {
	return PipelineOf(NewDatabase(t))
}

// PipelineOf adds the consumers and the reads to a database.
func PipelineOf(w *Database) *Pipeline {
	s := &Pipeline{Database: w, Now: May.Add(10 * 24 * time.Hour)}
	now := func() time.Time { return s.Now }
	s.Reads = NewReads(query.DB{Pool: w.Pool}, nil, now)
	s.Cached = NewReads(query.DB{Pool: w.Pool}, entitlements.NewCache(w.Pool, w.Pool), now)
	s.Validating, _ = w.Validator()
	s.Aggregating, _ = w.Aggregator(nil)
	s.Lettering, _ = w.Runner(deadletters.Consumer(models.DefaultFolds().DeadLetters))
	s.Entitling, _ = w.Runner(entitlements.Consumer(models.DefaultFolds().Entitlements, NewID))
	s.Summing, _ = w.Runner(series.Consumer(models.DefaultFolds().Series))
	return s
}

// Drain lets consumers read the log until each has reached its source's end.
func (s *Pipeline) Drain(runners ...*consume.Runner) {
	s.Helper()
	ctx := context.Background()
	for _, r := range runners {
		until := time.Now().Add(time.Minute)
		for {
			ahead, err := r.Ahead(ctx)
			s.Must(err)
			if len(ahead) == 0 {
				break
			}
			if time.Now().After(until) {
				s.stuck(r.Consumer.Name, len(ahead))
				break
			}
			if _, err := r.ReadUpTo(ctx, ahead); err != nil {
				time.Sleep(time.Millisecond) // a router pauses and sends them again
			}
		}
	}
}

// stuck reports a consumer that does not reach the end, and the cause if visible:
// generations of a partition move together or not at all.
func (s *Pipeline) stuck(consumer string, behind int) {
	s.Helper()
	var apart string
	s.Must(s.Pool.QueryRow(context.Background(), `SELECT coalesce(string_agg(format('%s-%s to %s', partition, low, high), ', '), '') FROM (
		SELECT partition, min(position) low, max(position) high FROM consumer_checkpoints WHERE consumer = $1 AND joined GROUP BY 1) c
		WHERE low < high`, consumer).Scan(&apart))
	s.Errorf("%s does not reach the end in %d partitions; generations stand apart in %q", consumer, behind, apart)
}

// Settle lets every consumer reach the end, those first that others follow.
func (s *Pipeline) Settle() {
	s.Helper()
	s.Drain(s.Validating, s.Aggregating, s.Lettering, s.Entitling)
	s.Drain(s.Lettering, s.Entitling, s.Summing) // the follow-ups of the others
}

// Letter reads a dead letter.
func (s *Pipeline) Letter(id uuid.UUID) deadletters.DeadLetter {
	s.Helper()
	d, err := s.Reads.DeadLetter(context.Background(), Operator, id)
	s.Must(err)
	return d
}

// Withhold withholds an event as the relay does if it alone cannot be published.
func (s *Pipeline) Withhold(tenant uuid.UUID, e events.Envelope) {
	s.Helper()
	letter := Plain(tenant, events.PublishFailed, events.Counts{Parked: 1}, events.Failed{SourcePosition: e.Position.Number,
		Topic: e.Subject.Topic().Name(),
		Stage: events.StagePublishing, Code: "publish_refused", Payload: e.Payload})
	s.Must(pgx.BeginFunc(context.Background(), s.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(context.Background(), `INSERT INTO withheld_records VALUES ($1, $2, $3, $4, $5, '')`,
			e.Position.Partition, e.Position.Number, int16(e.Subject.Topic()), tenant, letter.EventID)
		if err == nil {
			_, err = s.EventLog.AppendTx(context.Background(), tx, []events.Pending{letter})
		}
		return err
	}))
}

// ReadAtMost lets a consumer read no more than n records of a partition.
func (s *Pipeline) ReadAtMost(r *consume.Runner, partition int16, n int) {
	s.Helper()
	most := r.Consumer.MaxPerPartition
	defer func() { r.Consumer.MaxPerPartition = most }()
	r.Consumer.MaxPerPartition = min(most, n)
	records := s.Topic(r.Consumer.Topic, partition, s.Checkpoint(r.Consumer.Name, partition))
	s.Process(r, records[:min(n, len(records))])
}

// Head returns the last position of a tenant's partition.
func (s *Pipeline) Head(tenant uuid.UUID) events.Position {
	s.Helper()
	p := events.Position{Partition: events.PartitionOf(tenant)}
	s.Must(s.Pool.QueryRow(s.Context(), `SELECT position FROM log_heads WHERE partition = $1`, p.Partition).Scan(&p.Number))
	return p
}

// AddSeparateGeneration makes a second generation of a consumer's projection that is fed apart
// from the first, event by event.
func (s *Pipeline) AddSeparateGeneration(c projections.Consumer) *consume.Runner {
	s.Helper()
	c.Name, c.MaxPerPartition = "one by one", 1
	s.Must(Second(s.Pool.Exec(context.Background(), `INSERT INTO projection_generations (projection, generation, fold_version) VALUES ($1,
		2, $2) ON CONFLICT DO NOTHING`,
		c.Projection, c.Versions[0])))
	s.Must(Second(s.Pool.Exec(context.Background(), `INSERT INTO consumer_checkpoints (consumer, generation, partition)
		SELECT 'one by one', 2, p FROM generate_series(0, 31) p ON CONFLICT DO NOTHING`)))
	r, _ := s.Runner(c)
	return r
}

// Relayed marks all events as published, at offsets from a base on.
func (s *Pipeline) Relayed(base int64) {
	s.Helper()
	_, err := s.Pool.Exec(context.Background(), `
		WITH moved AS (UPDATE relay_cursors c SET position = h.position FROM log_heads h WHERE h.partition = c.partition)
		INSERT INTO outbox_publications (partition, topic, from_position, to_position, base_offset)
		SELECT partition, topic, min(position), max(position), $1 FROM event_log_rows GROUP BY partition, topic`, base)
	s.Must(err)
}

// Receipt reads the receipt of an event by its tenant's key.
func (s *Pipeline) Receipt(tenant uuid.UUID, eventID string) audit.Receipt {
	s.Helper()
	r, err := s.Reads.Receipt(context.Background(), TenantViewer(tenant), tenant, eventID, query.Wait{})
	s.Must(err)
	return r
}

// unlikeFigures lists the figures that are not the sum of their hours, of every tenant and feature. A feature has one
// reset period here.
const unlikeFigures = `
WITH hours AS (
  SELECT s.tenant_id, s.feature, f.period_key, sum(s.amount) AS amount, sum(s.event_count) AS events
  FROM usage_series s
  LEFT JOIN LATERAL (SELECT DISTINCT a.period_key FROM usage_aggregates a
    WHERE a.generation = live_generation('usage_aggregates', a.tenant_id, a.period_key) AND a.tenant_id = s.tenant_id
    AND a.feature = s.feature
      AND (a.period_start IS NULL OR s.hour >= a.period_start AND s.hour < a.period_end)) f ON true
  WHERE s.generation = live_generation('usage_series', s.tenant_id)
  GROUP BY 1, 2, 3 HAVING sum(s.event_count) <> 0 OR sum(s.amount) <> 0),
figures AS (
  SELECT a.tenant_id, a.feature, a.period_key, sum(a.amount) AS amount, sum(a.event_count) AS events
  FROM usage_aggregates a WHERE a.generation = live_generation('usage_aggregates', a.tenant_id, a.period_key) GROUP BY 1, 2, 3)
SELECT coalesce(string_agg(format('%s %s %s: hours %s in %s, figure %s in %s', tenant_id, feature, period_key, h.amount, h.events, f.amount,
f.events), E'\n'), ''),
       (SELECT count(*) FROM hours)
FROM hours h FULL JOIN figures f USING (tenant_id, feature, period_key)
WHERE h.amount IS DISTINCT FROM f.amount OR h.events IS DISTINCT FROM f.events`

// CheckHours compares the sums of the hours with the figures, and returns how many there are.
func (w *Database) CheckHours() (figures int) {
	w.Helper()
	var unlike string
	w.Must(w.Pool.QueryRow(context.Background(), unlikeFigures).Scan(&unlike, &figures))
	if unlike != "" {
		w.Fatalf("figures are not the sums of their hours:\n%s", unlike)
	}
	return figures
}

// Retry appends the event that the command router appends for a rejection.
func (s *Pipeline) Retry(tenant, letter uuid.UUID, raw int64, attempt int) {
	s.Helper()
	var payload json.RawMessage
	s.Must(s.Pool.QueryRow(context.Background(), `SELECT l.payload FROM event_log_rows l WHERE partition = $1 AND position = $2`,
		events.PartitionOf(tenant), raw).Scan(&payload))
	again := Plain(tenant, events.UsageRetried, events.Counts{Accepted: 1}, events.Retried{RawPosition: raw, DeadLetterID: letter,
		Attempt: attempt, Usage: payload})
	again.DedupeKey = events.KeyRetry(letter, attempt)
	s.Append(again, Plain(tenant, events.DeadLetterRetried, events.Counts{}, events.RetryDone{DeadLetterID: letter, Attempt: attempt}))
}
