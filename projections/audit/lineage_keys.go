package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// references holds the fields by which payloads refer to other events.
type references struct {
	RawPosition    int64     `json:"rawPosition"`
	SourcePosition int64     `json:"sourcePosition"`
	DeadLetterID   uuid.UUID `json:"deadLetterId"`
	CorrectionRef  string    `json:"correctionRef"`
	TargetPosition int64     `json:"targetPosition"`
	Validated      struct {
		RawPosition int64 `json:"rawPosition"`
	} `json:"validated"`
}

func referencesOf(e *events.Envelope) (s references) {
	_ = json.Unmarshal(e.Payload, &s) // other payloads have no references
	return s
}

// hints say where an event or its relatives may be: keys, ranges of keys, positions.
type hints struct {
	keys      []string
	ranges    []keyRange
	positions []int64
}

func (h *hints) letter(id uuid.UUID) {
	if id != uuid.Nil {
		h.keys = append(h.keys, events.KeyEvent(id))
		h.ranges = append(h.ranges, retriesOf(id.String()))
	}
}

// hintsOf returns hints of an event's cause.
func hintsOf(e *events.Envelope) (h hints) {
	s := referencesOf(e)
	h.letter(s.DeadLetterID)
	for _, n := range []int64{s.RawPosition, s.SourcePosition, s.Validated.RawPosition} {
		if n > 0 {
			h.positions = append(h.positions, n)
		}
	}
	return h
}

// effectsOf returns hints of an event's effects.
func effectsOf(e *events.Envelope) (h hints) {
	s := referencesOf(e)
	h.letter(s.DeadLetterID)
	raw := s.RawPosition
	if e.Subject.IsUsage() || e.Subject.IsCorrection() {
		raw = e.Position.Number
		h.ranges = append(h.ranges, keysUnder("k/"+strings.TrimPrefix(e.DedupeKey, events.KeyUsage(""))+"/"))
	}
	if raw > 0 {
		h.keys = append(h.keys, events.KeyValidated(raw))
		h.ranges = append(h.ranges, rejectionsOf(raw))
	}
	return h
}

// Events that the hints find and whose column is one of the ids.
const readHinted = `
SELECT $1::smallint, f.position FROM (
  SELECT l.position FROM unnest($3::text[]) AS given (key) CROSS JOIN LATERAL (
    SELECT e.position, e.%[1]s AS named FROM event_log e WHERE e.partition = $1 AND e.tenant_id = $2 AND e.dedupe_key = given.key LIMIT 1) l
  WHERE l.named = ANY ($5)
  UNION
  SELECT l.position FROM unnest($4::text[], $7::text[]) AS given (after, before) CROSS JOIN LATERAL (
    SELECT e.position, e.%[1]s AS named FROM event_log e WHERE e.partition = $1 AND e.tenant_id = $2
      AND e.dedupe_key > given.after AND e.dedupe_key < given.before LIMIT 1000) l
  WHERE l.named = ANY ($5)
  UNION
  SELECT l.position FROM unnest($6::bigint[]) AS given (number) CROSS JOIN LATERAL (
    SELECT e.position, e.%[1]s AS named, e.tenant_id FROM event_log e WHERE e.partition = $1 AND e.position = given.number LIMIT 1) l
  WHERE l.named = ANY ($5) AND l.tenant_id = $2) f
ORDER BY f.position`

// Columns of an event's id and of its cause's id.
const (
	byID    = "event_id"
	byCause = "causation_id"
)

// matching returns the positions of those hints whose event has, or was caused by, one of the ids.
func (l *lineage) matching(ctx context.Context, by string, h hints, ids ...uuid.UUID) ([]events.Position, error) {
	var positions []events.Position
	after, before := endsOf(h.ranges)
	args := []any{l.root.Position.Partition, l.root.TenantID, h.keys, after, ids, h.positions, before}
	err := query.Run(ctx, l.tx, query.New(fmt.Sprintf(readHinted, by), args, query.Into(&positions, scanPosition)))
	return positions, err
}

// keyed finds effects, however late, by the keys that they must have.
func (l *lineage) keyed(ctx context.Context, causes []*events.Envelope) ([]events.Envelope, error) {
	var h hints
	var names []string
	for _, e := range causes {
		more := effectsOf(e)
		h.keys, h.ranges = append(h.keys, more.keys...), append(h.ranges, more.ranges...)
		if name := codec.UsageIn(e.Payload).EventID; name != "" {
			names = append(names, name)
		}
	}
	letters, err := l.letters(ctx, names)
	if err != nil {
		return nil, err
	}
	for _, id := range letters {
		h.letter(id)
	}
	positions, err := l.matching(ctx, byCause, h, l.ids()...)
	if err != nil {
		return nil, err
	}
	corrections, err := l.corrections(ctx, causes)
	if err != nil {
		return nil, err
	}
	return readEvents(ctx, l.tx, append(positions, corrections...))
}

const readLettersOf = `
SELECT d.id FROM unnest($2::text[]) AS given (name)
CROSS JOIN LATERAL (
  SELECT d.id FROM projection_pointers p
  JOIN dead_letter_events d ON d.generation = p.generation AND d.tenant_id = $1 AND d.producer_event_id = given.name
  WHERE p.live AND p.projection = '` + projections.ProjectionDeadLetters +
	`' AND p.tenant_id IN ($1, '00000000-0000-0000-0000-000000000000')
  LIMIT 1000) d`

// letters returns the dead letters of producers' events: the first failure's key is
// its own id, which is the dead letter's id.
func (l *lineage) letters(ctx context.Context, names []string) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	if len(names) == 0 {
		return nil, nil
	}
	err := query.Run(ctx, l.tx, query.New(readLettersOf, []any{l.root.TenantID, names}, query.Values(&ids)))
	return ids, err
}
