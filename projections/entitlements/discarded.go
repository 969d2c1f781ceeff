package entitlements

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// discard subtracts the verdict in a discarded dead letter, unless it is that on admitted usage.
func (f *State) discard(e *events.Envelope) error {
	var end events.Closed
	if err := json.Unmarshal(e.Payload, &end); err != nil {
		return fmt.Errorf("read the end of a dead letter: %w", err)
	}
	if v, parked := f.parked[end.DeadLetterID]; parked && end.Status == events.StatusDiscarded && !v.admitted {
		f.count(e, v.featureType, v.feature, v.periodKey, -v.amount)
	}
	return nil
}

// parkedVerdict is a verdict that the aggregates could not count: its fold failed, or it was withheld from the topic.
type parkedVerdict struct {
	feature, periodKey, featureType string
	amount                          int64
	admitted                        bool
}

// readParked reads the verdicts in dead letters, by the letters' ids. The first failure of a dead letter has its id. Failures of
// other consumers than the aggregator do not keep a verdict from the figures.
var readParked = events.SQL(`
SELECT a.letter, a.tenant_id, v.dedupe_key, v.occurred_at, v.body
FROM unnest($1::smallint[], $2::uuid[], $3::uuid[], $4::text[]) AS a (partition, tenant_id, letter, dedupe_key)
CROSS JOIN LATERAL (
  SELECT l.subject, l.origin, l.payload FROM event_log_rows l
  WHERE l.partition = a.partition AND l.tenant_id = a.tenant_id AND l.dedupe_key = a.dedupe_key LIMIT 1) f
JOIN log_origins o ON o.id = f.origin
CROSS JOIN LATERAL (
  SELECT l.subject, l.dedupe_key, l.occurred_at, l.body FROM event_log_rows l
  WHERE l.partition = a.partition AND l.position = (f.payload ->> 'sourcePosition')::bigint LIMIT 1) v
WHERE v.subject = {usage.event.validated}
  AND (f.subject = {usage.event.publish_failed} OR f.subject = {usage.event.aggregation_failed} AND o.actor_id = $5)`)

// loadParked reads the verdicts in the dead letters that the batch closes as discarded.
func loadParked(ctx context.Context, tx pgx.Tx, batch []events.Envelope) (map[uuid.UUID]parkedVerdict, error) {
	var partitions []int16
	var tenants, letters []uuid.UUID
	var keys []string
	for i := range batch {
		var end events.Closed
		if e := &batch[i]; e.Subject == events.DeadLetterClosed && json.Unmarshal(e.Payload, &end) == nil &&
			end.Status == events.StatusDiscarded {
			partitions, tenants = append(partitions, e.Position.Partition), append(tenants, e.TenantID)
			letters, keys = append(letters, end.DeadLetterID), append(keys, events.KeyEvent(end.DeadLetterID))
		}
	}
	if len(letters) == 0 {
		return nil, nil
	}
	if _, err := tx.Exec(ctx, planAnew); err != nil {
		return nil, fmt.Errorf("plan the statement again: %w", err)
	}
	rows, err := tx.Query(ctx, readParked, partitions, tenants, letters, keys, events.GroupAggregator)
	if err != nil {
		return nil, fmt.Errorf("read discarded verdicts: %w", err)
	}
	parked := make(map[uuid.UUID]parkedVerdict, len(letters))
	var letter uuid.UUID
	e := events.Envelope{Subject: events.UsageValidated}
	_, err = pgx.ForEachRow(rows, []any{&letter, &e.TenantID, &e.DedupeKey, &e.OccurredAt, &e.Payload}, func() error {
		// A verdict that cannot be read was never added.
		if v, err := codec.VerdictOf(&e); err == nil {
			parked[letter] = parkedVerdict{v.Feature, v.PeriodKey, v.FeatureType, v.Amount, v.Admitted}
		}
		e.Payload = nil
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read discarded verdicts: %w", err)
	}
	return parked, nil
}
