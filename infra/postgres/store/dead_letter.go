package store

import (
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
)

// A dead letter is read from the projection, which may lag behind on its later events.
// Those are looked up in the log itself, by the keys of each fate, under the head's
// lock: a retry that would count twice cannot be granted.
// The verdict that a retry folds again is in its payload. Corrections that the validator has not reached name their target, too: it will
// count them as known at their own positions.
var deadLettersSQL = events.SQL(`WITH waiting AS MATERIALIZED (
  SELECT r.tenant_id, coalesce(r.payload ->> 'correctionRef', r.payload -> 'usage' ->> 'correctionRef') AS target FROM event_log_rows r
  WHERE r.partition = $2 AND r.position > (SELECT min(position) FROM consumer_checkpoints WHERE consumer = '` + events.GroupValidator +
	`' AND partition = $2 AND joined)
   AND r.subject IN ({usage.event.corrected}, {usage.event.retracted}, {usage.event.retried}))
 SELECT d.id, d.tenant_id, d.stage, d.source_position AS source, l.subject AS source_subject,
 coalesce((v.verdict ->> 'rawPosition')::bigint, l.position) AS raw_position,
 CASE WHEN l.topic = {usage.validated} THEN l.payload END AS payload,
 l.topic = {usage.validated} AND (v.verdict ->> 'targetPosition' IS NOT NULL
  OR EXISTS (SELECT FROM usage_corrections c WHERE c.tenant_id = d.tenant_id AND c.target = (v.verdict ->> 'rawPosition')::bigint)
  OR EXISTS (SELECT FROM waiting w WHERE w.tenant_id = d.tenant_id AND w.target = v.verdict ->> 'eventId')) AS corrected,
 EXISTS (SELECT FROM offboardings o WHERE o.tenant_id = d.tenant_id AND o.state = '` + domain.OffboardingArchived + `') AS archived
 FROM unnest($1::uuid[]) AS a (id)
 CROSS JOIN LATERAL (SELECT d.* FROM projection_pointers p JOIN dead_letter_events d ON d.generation = p.generation AND d.id = a.id
  WHERE p.live AND p.projection = '` + projections.ProjectionDeadLetters +
	`' AND p.tenant_id IN (d.tenant_id, '00000000-0000-0000-0000-000000000000')
   AND d.partition = $2 ORDER BY p.tenant_id DESC LIMIT 1) d
 CROSS JOIN LATERAL (SELECT l.*, l.payload FROM event_log_rows l WHERE l.partition = $2 AND l.position = d.source_position LIMIT 1) l
 CROSS JOIN LATERAL (SELECT CASE WHEN l.subject = {usage.event.reaggregated} THEN l.payload -> 'validated'
 ELSE l.payload END AS verdict) v`)

// fatesSQL returns a row for each later event of the letters. '0' is the character
// after '/', so that a pair of bounds is a prefix. The limits exceed the possible number
// of events (MaxRetries); they force a look-up for each letter, whatever size of the
// table the planner assumes.
var fatesSQL = events.SQL(`SELECT a.id, f.dedupe_key, f.position, coalesce(f.causation_id, '00000000-0000-0000-0000-000000000000'),
 CASE WHEN f.subject = {dead_letters.dead_letter.closed} THEN f.payload ->> 'status' ELSE '' END
 FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS a (id, tenant_id, raw)
 CROSS JOIN LATERAL (
  (SELECT l.*, l.payload FROM event_log_rows l WHERE l.partition = $4 AND l.tenant_id = a.tenant_id
    AND l.dedupe_key > 'r/' || a.id || '/' AND l.dedupe_key < 'r/' || a.id || '0' LIMIT 10000)
  UNION ALL
  (SELECT l.*, l.payload FROM event_log_rows l WHERE l.partition = $4 AND l.tenant_id = a.tenant_id AND l.dedupe_key = 'v/' || a.raw
  LIMIT 1)
  UNION ALL
  (SELECT l.*, l.payload FROM event_log_rows l WHERE l.partition = $4 AND l.tenant_id = a.tenant_id
    AND l.dedupe_key > 'x/' || a.raw || '/' AND l.dedupe_key < 'x/' || a.raw || '0' LIMIT 10000)) f
 ORDER BY a.id, f.position`)

// executedSQL returns the position up to which requests for retries are executed.
const executedSQL = `SELECT min(position) FROM consumer_checkpoints WHERE consumer = $1 AND partition = $2 AND joined`

// DeadLetters implements repair.DeadLetterTx.
func (t *Tx) DeadLetters(ids []uuid.UUID) (map[uuid.UUID]*domain.DeadLetter, error) {
	letters := make(map[uuid.UUID]*domain.DeadLetter, len(ids))
	if len(ids) == 0 {
		return letters, nil
	}
	b := &pgx.Batch{}
	b.Queue(deadLettersSQL, ids, t.partition)
	b.Queue(executedSQL, events.GroupCommands, t.partition)
	results := t.tx.SendBatch(t.ctx, b)
	defer results.Close()
	rows, err := results.Query()
	if err != nil {
		return nil, fmt.Errorf("looking up dead letters: %w", err)
	}
	type letter struct {
		domain.DeadLetter
		Payload []byte // of a verdict
	}
	list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByNameLax[letter])
	if err != nil {
		return nil, fmt.Errorf("reading dead letters: %w", err)
	}
	for _, d := range list {
		if d.Payload != nil {
			// A verdict that cannot be read is discarded like any other; verify shows that its account differs.
			v, err := codec.VerdictOf(&events.Envelope{Subject: d.SourceSubject, Payload: d.Payload})
			if err == nil && v.FeatureType == domain.FeatureQuota && !v.Admitted {
				d.Counted = &events.AccountChange{Feature: v.Feature, PeriodKey: v.PeriodKey, Used: v.Amount}
			}
		}
		letters[d.ID] = &d.DeadLetter
	}
	var executed int64
	if err := results.QueryRow().Scan(&executed); err != nil {
		return nil, fmt.Errorf("reading how far retries are executed: %w", err)
	}
	if err := results.Close(); err != nil {
		return nil, fmt.Errorf("looking up dead letters: %w", err)
	}
	return letters, t.fates(letters, executed)
}

// fates completes the letters from their later events in the log.
func (t *Tx) fates(letters map[uuid.UUID]*domain.DeadLetter, executed int64) error {
	var ids, tenants []uuid.UUID
	var raws []int64
	for id, d := range letters {
		ids, tenants, raws = append(ids, id), append(tenants, d.TenantID), append(raws, d.RawPosition)
	}
	rows, err := t.tx.Query(t.ctx, fatesSQL, ids, tenants, raws, t.partition)
	if err != nil {
		return fmt.Errorf("looking up the fates of dead letters: %w", err)
	}
	var id uuid.UUID
	var e domain.LaterEvent
	later := make(map[uuid.UUID][]domain.LaterEvent, len(letters))
	_, err = pgx.ForEachRow(rows, []any{&id, &e.Key, &e.Position, &e.Cause, &e.Closed}, func() error {
		later[id] = append(later[id], e)
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading the fates of dead letters: %w", err)
	}
	for id, d := range letters {
		d.Evolve(later[id], executed)
	}
	return nil
}

// Approved implements repair.DeadLetterTx.
func (t *Tx) Approved(tenant uuid.UUID, recorded int64) ([]domain.Closing, error) {
	return FindAll(t.ctx, t.tx, "reading approved adjustments", pgx.RowToStructByName[domain.Closing],
		`SELECT DISTINCT tenant_id, period_key, snapshot FROM adjustments WHERE tenant_id = $1 AND recorded = $2 AND state = 'APPROVED'
			ORDER BY 2, 3`, tenant, recorded)
}

// Events implements repair.DeadLetterTx.
func (t *Tx) Events(numbers []int64) (map[int64]events.Envelope, error) {
	if len(numbers) == 0 {
		return nil, nil
	}
	list, err := t.log.ReadAtTx(t.ctx, t.tx, t.partition, numbers)
	found := make(map[int64]events.Envelope, len(list))
	for _, e := range list {
		found[e.Position.Number] = e
	}
	return found, err
}
