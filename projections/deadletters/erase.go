package deadletters

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// erasedLetters bounds the rows that one call of erase reads.
const erasedLetters = 500

// PersonalData erases the copies of payloads, and the reasons and hashes of their contents.
func PersonalData() projections.PersonalData {
	return projections.PersonalData{Name: projections.ProjectionDeadLetters, Consumer: events.GroupDeadLetter,
		Topic: events.TopicUsageDeadLetter, Erase: erase}
}

const nextGeneration = `SELECT coalesce(min(generation), 0) FROM projection_generations WHERE projection = '` +
	projections.ProjectionDeadLetters + `' AND generation > $1 AND NOT purged`

// eraseLetters turns letters into those that the fold makes of their erased events.
var eraseLetters = events.SQL(`
WITH batch AS MATERIALIZED (
  SELECT generation, id FROM dead_letter_events WHERE generation = $1 AND tenant_id = $2 AND id > $3 ORDER BY id LIMIT $4),
erased AS (
  UPDATE dead_letter_events d SET
    reason = CASE WHEN d.stage = '` + events.StageValidation + `' OR d.details ->> 'conflictHash' <> '' THEN d.reason ELSE '` +
	events.ErasedName + `' END,
    details = regexp_replace(d.details::text, '("(first|conflict)Hash":")[0-9a-f]{64}"', '\1' || repeat('0', 64) || '"', 'g')::json,
    payload = CASE
      WHEN d.details ->> 'conflictHash' <> '' THEN erased_body({usage.event.admitted}::smallint, d.payload::text)::json
      WHEN d.details ->> 'sourceSubject' <> '' THEN erased_copy(d.details ->> 'sourceSubject', d.payload::text)::json END
  FROM batch b WHERE d.generation = b.generation AND d.id = b.id)
SELECT id FROM batch ORDER BY id DESC`)

// eraseCounts deletes rows without a dead letter: a fingerprint is a hash of a reason.
const eraseCounts = `DELETE FROM dead_letter_counts WHERE generation = $1 AND tenant_id = $2 AND failed = 0 AND retrying = 0
	AND resolved = 0 AND discarded = 0`

// erase erases the next rows. A cursor is a generation and an id in it.
func erase(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, after string) (next string, err error) {
	number, id, _ := strings.Cut(after, "/")
	generation, _ := strconv.Atoi(number) // "": the first
	last, _ := uuid.Parse(id)
	if last == uuid.Nil {
		if err := tx.QueryRow(ctx, nextGeneration, generation).Scan(&generation); err != nil || generation == 0 {
			return "", err
		}
	}
	rows, err := tx.Query(ctx, eraseLetters, generation, tenant, last, erasedLetters)
	if err != nil {
		return "", fmt.Errorf("erase dead_letter_events: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return "", fmt.Errorf("erase dead_letter_events: %w", err)
	}
	next = strconv.Itoa(generation)
	if len(ids) == erasedLetters {
		return next + "/" + ids[0].String(), nil
	}
	if _, err := tx.Exec(ctx, eraseCounts, generation, tenant); err != nil {
		return "", fmt.Errorf("erase dead_letter_counts: %w", err)
	}
	return next, nil
}
