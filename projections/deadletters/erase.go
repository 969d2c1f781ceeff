package deadletters

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
)

// erasedLetters bounds the rows that one call of erase reads.
const erasedLetters = 500

// PersonalData erases the copies of payloads.
func PersonalData() projections.PersonalData {
	return projections.PersonalData{Name: projections.ProjectionDeadLetters, Consumer: events.GroupDeadLetter, Topic: events.TopicUsageDeadLetter, Erase: erase}
}

const (
	nextGeneration = `SELECT coalesce(min(generation), 0) FROM projection_generations WHERE projection = '` + projections.ProjectionDeadLetters + `' AND generation > $1 AND NOT purged`
	lettersToErase = `SELECT id FROM dead_letter_events WHERE generation = $1 AND tenant_id = $2 AND id > $3 ORDER BY id LIMIT $4`
	hashAt         = `SELECT coalesce((SELECT encode(substring(l.payload_hash FROM 2), 'hex') FROM event_log_rows l WHERE l.partition = $1 AND l.position = $2), '')`
)

// erase erases the next rows. A place is a generation and an id in it.
func erase(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, eraser *domain.Eraser, after string) (next string, err error) {
	number, id, _ := strings.Cut(after, "/")
	generation, _ := strconv.Atoi(number) // "": the first
	last, _ := uuid.Parse(id)
	if last == uuid.Nil {
		if err := tx.QueryRow(ctx, nextGeneration, generation).Scan(&generation); err != nil || generation == 0 {
			return "", err
		}
	}
	rows, err := tx.Query(ctx, lettersToErase, generation, tenant, last, erasedLetters)
	if err != nil {
		return "", fmt.Errorf("read dead_letter_events: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return "", fmt.Errorf("read dead_letter_events: %w", err)
	}
	next = strconv.Itoa(generation)
	if len(ids) == erasedLetters {
		next += "/" + ids[len(ids)-1].String()
	}
	h, in := new(Handler), projections.Generation{Number: generation}
	letters, err := h.load(ctx, tx, in, ids)
	if err != nil {
		return "", err
	}
	var changed []*Row
	for _, id := range ids {
		if d := letters[id]; d.payload != nil || d.stage == events.StageIngestion {
			if err := d.erase(ctx, tx, eraser); err != nil {
				return "", err
			}
			changed = append(changed, d)
		}
	}
	return next, h.write(ctx, tx, in, slices.Clip(changed))
}

// erase changes a letter with a copy of a payload to that of the erased event.
func (d *Row) erase(ctx context.Context, tx pgx.Tx, eraser *domain.Eraser) error {
	subject := domain.SubjectNamed(d.details.SourceSubject)
	switch {
	case d.details.SourceSubject != "":
	case d.details.ConflictHash != "":
		payload, hash := eraser.Conflicting(json.RawMessage(*d.payload))
		d.payload, d.details.ConflictHash = text(payload), hash
		return tx.QueryRow(ctx, hashAt, d.partition, d.source).Scan(&d.details.FirstHash)
	case d.stage == events.StageIngestion: // the payload of a refused message
		d.payload, d.reason = nil, events.ErasedName
		return nil
	default:
		subject = events.RecordParked
	}
	payload, err := eraser.Payload(subject, []byte(*d.payload), "")
	if err == nil {
		d.payload = text(payload)
	}
	return err
}
