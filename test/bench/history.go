package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// historyRun is the length of a tenant's run in the log: that many recorded events, then their verdicts.
const historyRun = 1000

// historyShape describes the events of a history.
type historyShape struct {
	// seconds is the range of the usage times, from the beginning of 2026 on.
	seconds int
	// rejects is a divisor of historyRun: every event of a run whose number it divides is rejected. 0: all are accepted.
	rejects int
}

// The shapes of the histories: of many figures, all counted; and of one figure, in which 1 % of the
// events is rejected.
func manyFigures() historyShape { return historyShape{seconds: 26_000_000} }
func oneFigure() historyShape   { return historyShape{seconds: 2_600_000, rejects: 100} }

// accepted returns the number of accepted events among the first n of a run.
func (h historyShape) accepted(n int64) int64 {
	if h.rejects == 0 {
		return n
	}
	return n - n/int64(h.rejects)
}

// amount is the usage of the n-th event of each run, as in writeRun.
func (h historyShape) amount(n int64) int64 { return 1 + n%9 }

// writeRun appends one run behind the tenant's partition, past its head: no one reads it before
// raiseHeads. The rows equal the service's, column by column. $1 partition, $2 tenant, $3 the
// position before the run, $4 the number of the run, $5, $6 and $7 the last positions of its topics,
// $8 subscription, $9 origin, $10 range of the usage times, $11 which events are rejected, $12 epoch.
var writeRun = fmt.Sprintf(events.SQL(`
INSERT INTO event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id, correlation_id, causation_id,
  epoch, origin, partition, topic, subject, dedupe_key, body)
SELECT CASE kind WHEN {usage.event.recorded} THEN raw ELSE raw + %[1]d END,
       CASE kind
         WHEN {usage.event.recorded} THEN CASE WHEN n = 1 THEN $5::bigint ELSE raw - 1 END
         WHEN {usage.event.validated} THEN CASE WHEN n = 1 THEN $6::bigint
         ELSE raw + %[1]d - 1 - coalesce((n %% nullif($11::int, 0) = 1)::int, 0) END
         ELSE CASE WHEN n <= $11::int THEN $7::bigint ELSE raw + %[1]d - $11::int END
       END,
       now(), at, CASE part WHEN 1 THEN id ELSE md5(id::text)::uuid END, $2::uuid, NULL,
       CASE part WHEN 2 THEN id END, $12::int, $9::int, $1::smallint,
       CASE kind WHEN {usage.event.recorded} THEN {usage.raw} WHEN {usage.event.validated} THEN {usage.validated}
       ELSE {usage.dead-letter} END, kind,
       CASE kind WHEN {usage.event.recorded} THEN 'u/' || name WHEN {usage.event.validated} THEN 'v/' || raw ELSE 'x/' || raw || '/0' END,
       (CASE kind
         WHEN {usage.event.recorded} THEN '[' || amount || ',"%[2]s"]'
         WHEN {usage.event.validated} THEN '[' || amount || ',"%[2]s","' || name || '","' || $8::uuid || '","METERED","' ||
         to_char(at AT TIME ZONE 'UTC', 'YYYY-MM') || '"]'
         ELSE '{"rawPosition":' || raw || ',"eventId":"' || name || '","feature":"%[2]s","code":"feature_not_found","reason":"Feature not found","deadLetterId":"'
              || md5(id::text)::uuid || '","attempt":0}'
        END)::json
FROM generate_series(1, 2) part, generate_series(1, %[1]d) n,
     LATERAL (SELECT $3::bigint + n AS raw, 'h-' || $4::bigint || '-' || n AS name, 1 + n %% 9 AS amount,
     md5($2::text || $4::bigint || '-' || n)::uuid AS id,
                timestamptz '2026-01-01Z' + make_interval(secs => ($4::bigint * %[1]d + n) %% $10::int) AS at) e,
     LATERAL (SELECT CASE WHEN part = 1 THEN {usage.event.recorded} WHEN n %% nullif($11::int, 0) = 0 THEN {usage.event.rejected}
     ELSE {usage.event.validated} END AS kind) k
ORDER BY part, n`), historyRun, feature)

// raiseHeads adds the written rows to the log as published and folded. The live
// figures do not include them, which the first rebuild shows.
var raiseHeads = events.SQL(`
WITH ends AS (
  SELECT * FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
    e (partition, position, raw, validated, letter, yes, no)),
heads AS (
  UPDATE log_heads h SET position = e.position, accepted = h.accepted + e.yes + e.no, validated = h.validated + e.yes,
  rejected = h.rejected + e.no,
    topic_positions[{usage.raw}] = e.raw, topic_positions[{usage.validated}] = e.validated, topic_positions[{usage.dead-letter}] = e.letter
  FROM ends e WHERE h.partition = e.partition),
relays AS (
  UPDATE relay_cursors c SET position = e.position, fence = fence + 1
  FROM ends e WHERE c.partition = e.partition)
UPDATE consumer_checkpoints c SET position = CASE c.consumer
    WHEN 'meterplex-usage-validator' THEN e.raw WHEN 'meterplex-usage-aggregator' THEN e.validated
    WHEN 'meterplex-dead-letter-handler' THEN greatest(c.position, e.letter) ELSE e.position END
FROM ends e
WHERE c.partition = e.partition
  AND c.consumer IN ('meterplex-usage-validator', 'meterplex-usage-aggregator', 'meterplex-dead-letter-handler',
  'meterplex-entitlement-reads', 'meterplex-usage-series')`)

// historyWriter writes a tenant's history. Its positions are those before the first run.
type historyWriter struct {
	tenant               tenant
	shape                historyShape
	subscription         string
	origin, epoch        int
	head                 int64
	raw, verdict, letter int64 // the last positions of the topics
	before, runs         int64 // runs of an earlier history, and written runs
}

// writeHistory writes a history and reports how long it takes.
func (r *run) writeHistory(ctx context.Context, s *subject, total int, shape historyShape) ([]*historyWriter, error) {
	r.cfg.logf("  writing %s events with their verdicts …", thousands(int64(total)))
	began := r.cfg.Now()
	pens, err := s.writeHistory(ctx, total, shape)
	r.cfg.logf("  … in %.0f s", r.cfg.Now().Sub(began).Seconds())
	return pens, err
}

// writeHistory adds a history of total usage events with their verdicts, in runs that
// alternate between the tenants as those of live tenants do.
func (s *subject) writeHistory(ctx context.Context, total int, shape historyShape) ([]*historyWriter, error) {
	address, err := inDatabase(s.servers.database.AdminURL(), s.database)
	if err != nil {
		return nil, err
	}
	pens, err := s.historyWriters(ctx, address, shape)
	if err != nil {
		return nil, err
	}
	rounds := total / historyRun / len(pens)
	err = all(2, func(half int) error {
		conn, err := pgx.Connect(ctx, address)
		if err != nil {
			return fmt.Errorf("reach the database: %w", err)
		}
		defer conn.Close(context.WithoutCancel(ctx))
		for n := half; n < rounds*len(pens); n += 2 {
			if err := pens[n%len(pens)].write(ctx, conn, int64(n/len(pens))); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, p := range pens {
		p.runs = int64(rounds)
	}
	s.history += int64(rounds * historyRun * len(pens))
	return pens, s.publishHistory(ctx, address, pens)
}

// write writes the n-th run. Each run can be written without those before it.
func (p *historyWriter) write(ctx context.Context, conn *pgx.Conn, n int64) error {
	last := p.ends(n)
	_, err := conn.Exec(ctx, writeRun, p.tenant.partition, p.tenant.id, p.head+n*2*historyRun, p.before+n, last.raw, last.verdict,
		last.letter,
		p.subscription, p.origin, p.shape.seconds, p.shape.rejects, p.epoch)
	if err != nil {
		return fmt.Errorf("write a tenant's history: %w", err)
	}
	return nil
}

// historyEnds are the last positions of a tenant's partition.
type historyEnds struct{ head, raw, verdict, letter int64 }

// ends returns the positions after a number of runs. The last event of a run is rejected if any is.
func (p *historyWriter) ends(runs int64) historyEnds {
	e := historyEnds{p.head + runs*2*historyRun, p.raw, p.verdict, p.letter}
	if runs > 0 {
		e.raw, e.verdict = e.head-historyRun, e.head
		if p.shape.rejects > 0 {
			e.verdict, e.letter = e.head-1, e.head
		}
	}
	return e
}

var readTenantEnd = events.SQL(`
SELECT h.position, h.topic_positions[{usage.raw}], h.topic_positions[{usage.validated}], h.topic_positions[{usage.dead-letter}], s.id::text,
       (SELECT min(id) FROM log_origins), h.epoch
FROM log_heads h, subscriptions s WHERE h.partition = $1 AND s.tenant_id = $2`)

func (s *subject) historyWriters(ctx context.Context, address string, shape historyShape) (pens []*historyWriter, err error) {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("reach the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, t := range s.tenants {
		p := &historyWriter{tenant: t, shape: shape, before: s.history / historyRun / int64(len(s.tenants))}
		err := conn.QueryRow(ctx, readTenantEnd, t.partition, t.id).Scan(&p.head, &p.raw, &p.verdict, &p.letter, &p.subscription, &p.origin,
			&p.epoch)
		if err != nil {
			return nil, fmt.Errorf("read the end of a tenant's log: %w", err)
		}
		pens = append(pens, p)
	}
	return pens, nil
}

func (s *subject) publishHistory(ctx context.Context, address string, pens []*historyWriter) error {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var partitions []int16
	var heads, raws, verdicts, letters, yes, no []int64
	for _, p := range pens {
		e := p.ends(p.runs)
		partitions, heads = append(partitions, p.tenant.partition), append(heads, e.head)
		raws, verdicts, letters = append(raws, e.raw), append(verdicts, e.verdict), append(letters, e.letter)
		accepted := p.runs * p.shape.accepted(historyRun)
		yes, no = append(yes, accepted), append(no, p.runs*historyRun-accepted)
	}
	if _, err := conn.Exec(ctx, raiseHeads, partitions, heads, raws, verdicts, letters, yes, no); err != nil {
		return fmt.Errorf("raise the heads: %w", err)
	}
	for _, sql := range []string{"VACUUM (ANALYZE) event_log_rows", "CHECKPOINT"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", strings.ToLower(sql), err)
		}
	}
	time.Sleep(time.Second) // the relay notices the moved cursors
	return nil
}
