package audit

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// One key look-up for each position; LIMIT 1 makes the planner use the key, even if
// outdated statistics say that the reading tenant has hardly any rows.
const readEnvelopes = `
SELECT l.partition, l.position, l.previous_position, l.recorded_at, l.occurred_at, l.event_id, l.tenant_id,
       coalesce(l.correlation_id, '00000000-0000-0000-0000-000000000000'), coalesce(l.causation_id, '00000000-0000-0000-0000-000000000000'),
       l.epoch, l.subject, l.dedupe_key, l.payload, coalesce(l.replay, ''),
       o.actor_type, o.actor_id, o.via, o.service, o.instance, o.commit, o.id, o.vocabulary
FROM unnest($1::smallint[], $2::bigint[]) WITH ORDINALITY AS place (partition, number, n)
CROSS JOIN LATERAL (SELECT e.*, e.payload FROM event_log e WHERE e.partition = place.partition AND e.position = place.number LIMIT 1) l
JOIN log_origins o ON o.id = l.origin
ORDER BY place.n`

// origin is the part of a row of log_origins that resolveOrigins completes.
type origin struct {
	id         int32
	vocabulary string // hash
}

// readEvents reads the events at positions, in their order, if the viewer may see
// them.
func readEvents(ctx context.Context, tx pgx.Tx, positions []events.Position) ([]events.Envelope, error) {
	list := make([]events.Envelope, 0, len(positions))
	if len(positions) == 0 {
		return list, nil
	}
	var origins []origin
	err := query.Run(ctx, tx, query.New(readEnvelopes, positionArgs(positions), query.Each(func(rows pgx.Rows) error {
		e, from, err := scanEnvelope(rows)
		list, origins = append(list, e), append(origins, from)
		return err
	})))
	if err != nil {
		return nil, err
	}
	return list, resolveOrigins(ctx, tx, list, origins)
}

func positionArgs(positions []events.Position) []any {
	partitions, numbers := make([]int16, len(positions)), make([]int64, len(positions))
	for i, p := range positions {
		partitions[i], numbers[i] = p.Partition, p.Number
	}
	return []any{partitions, numbers}
}

func scanEnvelope(rows pgx.Rows) (e events.Envelope, from origin, err error) {
	err = rows.Scan(&e.Position.Partition, &e.Position.Number, &e.Previous, &e.RecordedAt, &e.OccurredAt, &e.EventID, &e.TenantID,
		&e.CorrelationID, &e.CausationID, &e.Epoch, &e.Subject, &e.DedupeKey, (*[]byte)(&e.Payload), &e.Replay,
		&e.Actor.Type, &e.Actor.ID, &e.Actor.Via, &e.Producer.Service, &e.Producer.Instance, &e.Producer.Commit, &from.id, &from.vocabulary)
	if err != nil {
		return e, from, fmt.Errorf("read an event: %w", err)
	}
	return e, from, nil
}

// rendering is shared by the events of one origin.
type rendering struct {
	vocabulary *events.Vocabulary
	residency  string
}

const (
	readResidencies = `SELECT recorded_residencies($1, $2)`
	readVocabulary  = `SELECT document FROM log_vocabularies WHERE hash = $1`
)

// resolveOrigins sets the vocabulary and the residency under which each event was
// recorded. The tenants' role sees the residency of the tenant's own events only, so
// each origin is read by the position of one of its events.
func resolveOrigins(ctx context.Context, tx pgx.Tx, list []events.Envelope, origins []origin) error {
	known := map[int32]*rendering{}
	var order []*rendering
	var positions []events.Position
	for i, from := range origins {
		if known[from.id] != nil {
			continue
		}
		v, err := vocabularyOf(ctx, tx, from.vocabulary)
		if err != nil {
			return err
		}
		r := &rendering{vocabulary: v}
		known[from.id] = r
		order, positions = append(order, r), append(positions, list[i].Position)
	}
	n := 0
	err := query.Run(ctx, tx, query.New(readResidencies, positionArgs(positions), query.Each(func(rows pgx.Rows) error {
		n++
		return rows.Scan(&order[n-1].residency)
	})))
	if err != nil {
		return err
	}
	for i, from := range origins {
		list[i].Vocabulary, list[i].Residency = known[from.id].vocabulary, known[from.id].residency
	}
	return nil
}

// vocabularyOf returns the vocabulary of a hash: this binary's copy, else the log's.
func vocabularyOf(ctx context.Context, tx pgx.Tx, hash string) (*events.Vocabulary, error) {
	if v, ok := events.EmbeddedVocabulary(hash); ok {
		return v, nil
	}
	var document string
	if err := query.Run(ctx, tx, query.New(readVocabulary, []any{hash}, query.One(&document))); err != nil {
		return nil, err
	}
	if document == "" {
		return nil, fmt.Errorf("the vocabulary %s of recorded events is neither in this release nor in log_vocabularies", hash)
	}
	return events.ParseVocabulary(hash, document)
}
