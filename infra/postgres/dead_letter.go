package postgres

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
)

// The projection says what a dead letter is; it may be behind on what became of
// it. That is asked of the log itself, by the keys of each fate, under the head's
// lock: a retry that would count twice cannot be granted.
const deadLetterSQL = `SELECT d.tenant_id, d.stage, d.source_position, l.subject, l.event_id,
 coalesce((l.payload ->> 'rawPosition')::bigint, l.position)
 FROM dead_letter_events d JOIN event_log_rows l ON l.partition = d.partition AND l.position = d.source_position
 WHERE d.id = $1 AND d.partition = $2 AND d.generation = (SELECT generation FROM projection_pointers
  WHERE projection = 'dead_letter_events' AND tenant_id = '00000000-0000-0000-0000-000000000000')`

// DeadLetter implements commands.Tx: nil where the partition has no such letter.
func (t *changeTx) DeadLetter(id uuid.UUID) (*commands.DeadLetter, error) {
	d := &commands.DeadLetter{ID: id}
	err := t.tx.QueryRow(t.ctx, deadLetterSQL, id, t.partition).
		Scan(&d.TenantID, &d.Stage, &d.Source, &d.SourceSubject, &d.SourceEventID, &d.RawPosition)
	if found, err := one(d, "dead letter", err); found == nil || err != nil {
		return nil, err
	}
	keys := []string{events.KeyClosed(id), events.KeyValidated(d.RawPosition)}
	for n := 1; n <= commands.MaxRetries; n++ {
		keys = append(keys, events.KeyRetry(id, n), events.KeyFailedAgain(id, n), events.KeyRejected(d.RawPosition, n))
	}
	pending := make([]events.Pending, len(keys))
	for i, key := range keys {
		pending[i] = events.Pending{TenantID: d.TenantID, DedupeKey: key}
	}
	known, err := probe(t.ctx, t.tx, pending)
	if err != nil {
		return nil, fmt.Errorf("looking up a dead letter's fate: %w", err)
	}
	has := func(key string) bool { _, ok := known[logKey{d.TenantID, key}]; return ok }
	for d.Attempts < commands.MaxRetries && has(events.KeyRetry(id, d.Attempts+1)) {
		d.Attempts++
	}
	d.Status, d.Parked = fate(d, has), parked(d, has)
	return d, nil
}

// parked says how the last failure was counted. A rejection is none of the parked,
// neither is what is on no way to the aggregates.
func parked(d *commands.DeadLetter, has func(string) bool) bool {
	if d.Attempts > 0 {
		return has(events.KeyFailedAgain(d.ID, d.Attempts))
	}
	topic := d.SourceSubject.Topic()
	return d.Stage != events.StageValidation && (topic == events.TopicUsageRaw || topic == events.TopicUsageValidated)
}

func fate(d *commands.DeadLetter, has func(string) bool) string {
	validated := d.Stage != events.StageAggregation && d.SourceSubject.Topic() == events.TopicUsageRaw && has(events.KeyValidated(d.RawPosition))
	switch {
	case has(events.KeyClosed(d.ID)) || validated:
		return events.StatusResolved
	case d.Attempts == 0 || has(events.KeyFailedAgain(d.ID, d.Attempts)) || has(events.KeyRejected(d.RawPosition, d.Attempts)):
		return events.StatusFailed
	default:
		return events.StatusRetrying
	}
}
