package usage

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/rebuild"
)

// The verdicts of a stretch, in the columns that the fold needs: bodies are read
// unchanged. 2 is the topic usage.validated; the stretch is read once through the
// primary key.
var (
	readStretch = events.SQL(`
SELECT l.position, l.tenant_id, l.subject, l.occurred_at, l.dedupe_key, l.body FROM event_log_rows l
WHERE l.partition = $1 AND l.position > $2 AND l.position <= $3 AND l.topic = {usage.validated} ORDER BY l.position`)
	readStretchOf = events.SQL(`
SELECT l.position, l.tenant_id, l.subject, l.occurred_at, l.dedupe_key, l.body FROM event_log_rows l
WHERE l.partition = $1 AND l.position > $2 AND l.position <= $3 AND l.topic = {usage.validated} AND l.tenant_id = $4 ORDER BY l.position`)
)

var _ rebuild.BulkFolder = (*Handler)(nil)

// postgresEpoch is the start of the server's timestamps, in Unix microseconds.
const postgresEpoch = 946684800_000_000

// FoldStretch implements rebuild.BulkFolder: sums in memory, piece by piece, then one upsert.
// Figures with many verdicts are upserted earlier, too, so that their running totals are dense.
func (u *Handler) FoldStretch(ctx context.Context, tx pgx.Tx, g projections.Generation, s events.Stretch, leftOut map[int64]bool,
	p *rebuild.Pace) (folded int64, failure *projections.Failure, err error) {
	sums, err := u.sums(g)
	if err != nil {
		return 0, nil, err
	}
	for upTo := s.UpTo; s.After < upTo; s.After = s.UpTo {
		p.Work()
		s.UpTo = p.Piece(s.After, upTo)
		n, failure, err := sums.stretch(ctx, tx, g, s, leftOut)
		if err != nil || failure != nil {
			return 0, failure, err
		}
		folded += n
		if err := sums.upsertLarge(ctx, tx, g.Number, s.UpTo); err != nil {
			return 0, nil, err
		}
		p.Rest(ctx)
	}
	return folded, nil, sums.upsert(ctx, tx, g.Number, func(int16) int64 { return s.UpTo })
}

// upsertLarge upserts the figures whose running totals are due, and removes their sums.
func (s *usageSums) upsertLarge(ctx context.Context, tx pgx.Tx, generation int, folded int64) error {
	large := make(map[figure]bool)
	for key, sum := range s.byKey {
		if sum.applied >= s.every {
			large[figureOf(key)] = true
		}
	}
	if len(large) == 0 {
		return nil
	}
	some := usageSums{every: s.every, byKey: make(map[Key]*usageSum)}
	for key, sum := range s.byKey {
		if large[figureOf(key)] {
			some.byKey[key] = sum
			delete(s.byKey, key)
		}
	}
	return some.upsert(ctx, tx, generation, func(int16) int64 { return folded })
}

// stretch adds the verdicts of a stretch of the log.
func (s *usageSums) stretch(ctx context.Context, tx pgx.Tx, g projections.Generation, of events.Stretch, leftOut map[int64]bool) (int64,
	*projections.Failure, error) {
	sql, args := readStretch, []any{pgx.QueryResultFormats{pgx.BinaryFormatCode}, of.Partition, of.After, of.UpTo}
	if g.TenantID != uuid.Nil {
		sql, args = readStretchOf, append(args, g.TenantID)
	}
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return 0, nil, fmt.Errorf("read verdicts: %w", err)
	}
	defer rows.Close()
	var folded int64
	e := events.Envelope{Position: events.Position{Partition: of.Partition}}
	for rows.Next() {
		raw := rows.RawValues()
		e.Position.Number = int64(binary.BigEndian.Uint64(raw[0]))
		if leftOut[e.Position.Number] {
			continue
		}
		e.TenantID = uuid.UUID(raw[1])
		e.Subject = events.Subject(binary.BigEndian.Uint16(raw[2]))
		e.OccurredAt = time.UnixMicro(int64(binary.BigEndian.Uint64(raw[3])) + postgresEpoch)
		e.DedupeKey = string(raw[4])
		e.Payload = raw[5]
		if failure := s.add(&e); failure != nil {
			return 0, failure, nil
		}
		folded++
	}
	if err := rows.Err(); err != nil {
		return 0, nil, fmt.Errorf("read verdicts: %w", err)
	}
	return folded, nil, nil
}
