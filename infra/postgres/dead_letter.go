package postgres

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// A dead letter is read from the projection, which may lag behind on its later events.
// Those are looked up in the log itself, by the keys of each fate, under the head's
// lock: a retry that would count twice cannot be granted.
const deadLettersSQL = `SELECT d.id, d.tenant_id, d.stage, d.source_position, l.subject, coalesce((l.payload ->> 'rawPosition')::bigint, l.position)
 FROM unnest($1::uuid[]) AS a (id)
 CROSS JOIN LATERAL (SELECT d.* FROM projection_pointers p JOIN dead_letter_events d ON d.generation = p.generation AND d.id = a.id
  WHERE p.live AND p.projection = '` + projections.ProjectionDeadLetters + `' AND p.tenant_id IN (d.tenant_id, '00000000-0000-0000-0000-000000000000')
   AND d.partition = $2 ORDER BY p.tenant_id DESC LIMIT 1) d
 CROSS JOIN LATERAL (SELECT l.*, l.payload FROM event_log_rows l WHERE l.partition = $2 AND l.position = d.source_position LIMIT 1) l`

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
  (SELECT l.*, l.payload FROM event_log_rows l WHERE l.partition = $4 AND l.tenant_id = a.tenant_id AND l.dedupe_key = 'v/' || a.raw LIMIT 1)
  UNION ALL
  (SELECT l.*, l.payload FROM event_log_rows l WHERE l.partition = $4 AND l.tenant_id = a.tenant_id
    AND l.dedupe_key > 'x/' || a.raw || '/' AND l.dedupe_key < 'x/' || a.raw || '0' LIMIT 10000)) f
 ORDER BY a.id, f.position`)

// executedSQL returns the position up to which requests for retries are executed.
const executedSQL = `SELECT min(position) FROM consumer_checkpoints WHERE consumer = $1 AND partition = $2 AND joined`

// DeadLetters implements commands.Tx.
func (t *changeTx) DeadLetters(ids []uuid.UUID) (map[uuid.UUID]*commands.DeadLetter, error) {
	letters := make(map[uuid.UUID]*commands.DeadLetter, len(ids))
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
	var d commands.DeadLetter
	_, err = pgx.ForEachRow(rows, []any{&d.ID, &d.TenantID, &d.Stage, &d.Source, &d.SourceSubject, &d.RawPosition}, func() error {
		found := d
		letters[d.ID] = &found
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading dead letters: %w", err)
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
func (t *changeTx) fates(letters map[uuid.UUID]*commands.DeadLetter, executed int64) error {
	var ids, tenants []uuid.UUID
	var raws []int64
	met := make(map[uuid.UUID]*met, len(letters))
	for id, d := range letters {
		ids, tenants, raws = append(ids, id), append(tenants, d.TenantID), append(raws, d.RawPosition)
		met[id] = newMet(d)
	}
	rows, err := t.tx.Query(t.ctx, fatesSQL, ids, tenants, raws, t.partition)
	if err != nil {
		return fmt.Errorf("looking up the fates of dead letters: %w", err)
	}
	var id, cause uuid.UUID
	var key, closed string
	var position int64
	_, err = pgx.ForEachRow(rows, []any{&id, &key, &position, &cause, &closed}, func() error {
		met[id].add(key, position, cause, closed, executed)
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading the fates of dead letters: %w", err)
	}
	for _, m := range met {
		m.decide()
	}
	return nil
}

// met collects the later events of a dead letter, by their keys in the log.
type met struct {
	*commands.DeadLetter
	keys     map[string]bool
	requests string // prefix of the keys of bulk requests
	closed   string // the status that it was closed with
}

func newMet(d *commands.DeadLetter) *met {
	return &met{DeadLetter: d, keys: map[string]bool{}, requests: strings.TrimSuffix(events.KeyRequested(d.ID, 0), "0")}
}

func (m *met) add(key string, position int64, cause uuid.UUID, closed string, executed int64) {
	m.keys[key] = true
	switch {
	case strings.HasPrefix(key, m.requests):
		m.Requests++
		m.Waiting = position > executed
	case key == events.KeyClosed(m.ID):
		m.closed = closed
	default:
		return
	}
	m.AskedBy = append(m.AskedBy, cause)
}

// decide sets the letter's attempts, its status and whether it counts as parked.
func (m *met) decide() {
	for m.Attempts < commands.MaxRetries && m.keys[events.KeyRetry(m.ID, m.Attempts+1)] {
		m.Attempts++
	}
	m.Status, m.Parked = m.fate(), m.parked()
}

// parked reports whether the last failure was counted as parked. Rejections are not,
// nor are events that were never accepted or do not lead to the aggregates.
func (m *met) parked() bool {
	if m.Attempts > 0 {
		return m.keys[events.KeyFailedAgain(m.ID, m.Attempts)]
	}
	topic := m.SourceSubject.Topic()
	parks := m.Stage == events.StagePublishing || m.Stage == events.StageAggregation
	return parks && (topic == events.TopicUsageRaw || topic == events.TopicUsageValidated)
}

func (m *met) fate() string {
	validates := m.Stage == events.StageValidation || m.Stage == events.StagePublishing
	validated := validates && m.SourceSubject.Topic() == events.TopicUsageRaw && m.keys[events.KeyValidated(m.RawPosition)]
	switch {
	case m.closed != "":
		return m.closed
	case validated:
		return events.StatusResolved
	case m.Attempts == 0 || m.keys[events.KeyFailedAgain(m.ID, m.Attempts)] || m.keys[events.KeyRejected(m.RawPosition, m.Attempts)]:
		return events.StatusFailed
	default:
		return events.StatusRetrying
	}
}

const eventsSQL = readColumns + ` WHERE l.partition = $1 AND l.position = ANY ($2::bigint[])`

// Events implements commands.Tx.
func (t *changeTx) Events(numbers []int64) (map[int64]events.Envelope, error) {
	if len(numbers) == 0 {
		return nil, nil
	}
	rows, err := t.tx.Query(t.ctx, eventsSQL, pgx.QueryResultFormats{pgx.BinaryFormatCode}, t.partition, numbers)
	if err != nil {
		return nil, fmt.Errorf("reading the log: %w", err)
	}
	list, err := t.log.envelopes(t.ctx, t.tx, rows, func(*rowReader) int16 { return t.partition })
	found := make(map[int64]events.Envelope, len(list))
	for _, e := range list {
		found[e.Position.Number] = e
	}
	return found, err
}

// AppendAll implements commands.Tx.
func (t *changeTx) AppendAll(list []events.Pending) error {
	_, err := t.log.AppendTx(t.ctx, t.tx, list)
	if err == nil {
		t.appended = append(t.appended, list...)
	}
	return err
}
