package usage

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// A figure with many verdicts is read by one statement over the index event_log_verdicts, whose condition it repeats, in columns that are
// read unchanged. $3 is the hash of the figure; a verdict of another figure with the same hash is left out by its content.
var readFigureStream = events.SQL(`
SELECT l.position, l.subject, l.occurred_at, l.dedupe_key, l.body FROM event_log_rows l
WHERE l.subject IN ({usage.event.validated}, {usage.event.reaggregated})
  AND uuid_hash_extended(l.tenant_id, hashtextextended(CASE WHEN l.body::text LIKE '[%' THEN split_part(l.body::text, '"', 2) WHEN ` +
	projections.Unreadable("l") + ` THEN NULL ELSE coalesce(l.body ->> 'feature', l.body #>> '{validated,feature}') END COLLATE "C",
    hashtextextended(CASE WHEN l.body::text LIKE '[%' THEN split_part(l.body::text, '"', -2) WHEN ` + projections.Unreadable("l") +
	` THEN NULL ELSE coalesce(l.body ->> 'periodKey', l.body #>> '{validated,periodKey}') END COLLATE "C", 0))) = $3
  AND l.position > $4 AND l.partition IS NOT DISTINCT FROM $1 AND l.tenant_id IS NOT DISTINCT FROM $2`)

const (
	readFigureHash = `SELECT uuid_hash_extended($1::uuid, hashtextextended($2::text COLLATE "C", hashtextextended($3::text COLLATE "C",
		0)))`

	// A planner that has no statistics of the index would read the table.
	preferIndexes = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)`
)

// readAllFailures reads the verdicts of a tenant that failed to fold, or that the pipe did not carry.
var readAllFailures = events.SQL(`
SELECT (` + projections.FailureSource("l") + `)::bigint FROM event_log_rows l
WHERE l.tenant_id = $2 AND l.partition IS NOT DISTINCT FROM $1 AND ` + projections.UncountedVerdict("l") + `
  AND (` + projections.FailureSource("l") + `) IS NOT NULL`)

// rest adds the verdicts of one feature behind a position.
func (p *periodCut) rest(ctx context.Context, tx pgx.Tx, feature string, after int64) error {
	t := p.verdicts
	if err := p.readFailures(ctx, tx); err != nil {
		return err
	}
	var hash int64
	err := query.Run(ctx, tx, query.New(readFigureHash, []any{t.tenant, feature, p.closing.PeriodKey}, query.One(&hash)))
	if err != nil {
		return err
	}
	rows, err := tx.Query(ctx, readFigureStream, pgx.QueryResultFormats{pgx.BinaryFormatCode}, t.partition, t.tenant, hash, after)
	if err != nil {
		return fmt.Errorf("read verdicts: %w", err)
	}
	defer rows.Close()
	var behind []countedUsage // the cut
	e := events.Envelope{TenantID: t.tenant, Position: events.Position{Partition: t.partition}}
	for rows.Next() {
		raw := rows.RawValues()
		e.Position.Number = int64(binary.BigEndian.Uint64(raw[0]))
		if p.failed[e.Position.Number] {
			continue
		}
		e.Subject = events.Subject(binary.BigEndian.Uint16(raw[1]))
		e.OccurredAt = time.UnixMicro(int64(binary.BigEndian.Uint64(raw[2])) + postgresEpoch)
		e.DedupeKey, e.Payload = string(raw[3]), raw[4]
		if c, counts := p.fold(&e, feature); counts && e.Position.Number > p.cut {
			behind = append(behind, c)
		} else if counts {
			c.delta.Grant = c.grant(p.subscriptions)
			addTo(p.lines, t.partition, c.key, c.delta)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read verdicts: %w", err)
	}
	for piece := range slices.Chunk(behind, closePiece) {
		if err := p.add(ctx, tx, piece); err != nil {
			return err
		}
	}
	return nil
}

// readFailures reads the failures of the tenant, once.
func (p *periodCut) readFailures(ctx context.Context, tx pgx.Tx) (err error) {
	if p.failed != nil {
		return nil
	}
	if err := query.Run(ctx, tx, query.New(preferIndexes, nil, query.Each(func(pgx.Rows) error { return nil }))); err != nil {
		return err
	}
	p.failed, err = p.verdicts.failures(ctx, tx)
	return err
}

// failures reads which verdicts of the tenant failed to fold, or were not carried by the pipe.
func (t *tenantVerdicts) failures(ctx context.Context, tx pgx.Tx) (map[int64]bool, error) {
	failed := map[int64]bool{}
	return failed, query.Run(ctx, tx, query.New(readAllFailures, []any{t.partition, t.tenant}, query.Each(func(rows pgx.Rows) error {
		var source int64
		err := rows.Scan(&source)
		failed[source] = true
		return err
	})))
}

// fold folds a verdict, which does not count if it is of another figure, or if the fold refuses it.
func (p *periodCut) fold(e *events.Envelope, feature string) (c countedUsage, counts bool) {
	failure := projections.Try(*e, func() (err error) {
		if c.verdict, err = codec.VerdictOf(e); err == nil {
			c.key, c.delta, err = p.verdicts.fold(e, c.verdict)
		}
		return err
	})
	c.position, c.again, c.folds = e.Position.Number, e.Subject == events.Reaggregated, failure == nil
	return c, c.folds && c.key.Feature == feature && c.key.PeriodKey == p.closing.PeriodKey
}
