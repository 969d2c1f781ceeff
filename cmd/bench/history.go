package bench

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

// writeRun appends one run behind the tenant's partition, past its head: no one reads it before
// raiseHeads. The rows equal the service's, column by column. $1 partition, $2 tenant, $3 the
// position before the run, $4 the number of the run, $5 and $6 the last positions of its topics,
// $7 subscription, $8 origin.
const writeRun = `
INSERT INTO event_log_rows (position, previous_position, recorded_at, occurred_at, event_id, tenant_id, correlation_id, causation_id,
  epoch, origin, partition, topic, subject, dedupe_key, body)
SELECT $3::bigint + n + CASE part WHEN 2 THEN %[1]d ELSE 0 END,
       CASE WHEN n = 1 THEN CASE part WHEN 1 THEN $5::bigint ELSE $6::bigint END ELSE $3::bigint + n - 1 + CASE part WHEN 2 THEN %[1]d ELSE 0 END END,
       now(), at, gen_random_uuid(), $2::uuid, NULL, NULL, 1, $8::int, $1::smallint, part, part,
       CASE part WHEN 1 THEN 'u/h-' || $4::bigint || '-' || n ELSE 'v/' || ($3::bigint + n) END,
       (CASE part
         WHEN 1 THEN '[' || amount || ',"%[2]s"]'
         ELSE '[' || amount || ',"%[2]s","h-' || $4::bigint || '-' || n || '","' || $7::uuid || '","METERED","' || to_char(at, 'YYYY-MM') || '"]'
        END)::json
FROM generate_series(1, 2) part, generate_series(1, %[1]d) n,
     LATERAL (SELECT timestamptz '2026-01-01Z' + make_interval(secs => ($4::bigint * %[1]d + n) %% 26000000) AS at, 1 + n %% 9 AS amount) a
ORDER BY part, n`

// raiseHeads adds the written rows to the log as published and folded. The live
// figures do not include them, which the first rebuild shows.
const raiseHeads = `
WITH heads AS (
  UPDATE log_heads h SET position = n.position, accepted = accepted + n.events, validated = validated + n.events,
    topic_positions = array_cat(ARRAY[n.raw, n.position], topic_positions[3:])
  FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[]) n (partition, position, raw, events) WHERE h.partition = n.partition),
relays AS (
  UPDATE relay_cursors c SET position = n.position, fence = fence + 1
  FROM unnest($1::smallint[], $2::bigint[]) n (partition, position) WHERE c.partition = n.partition)
UPDATE consumer_checkpoints c SET position = CASE c.consumer WHEN 'meterplex-usage-validator' THEN n.raw ELSE n.position END
FROM unnest($1::smallint[], $2::bigint[], $3::bigint[]) n (partition, position, raw)
WHERE c.partition = n.partition AND c.consumer IN ('meterplex-usage-validator', 'meterplex-usage-aggregator', 'meterplex-entitlement-reads')`

// historyWriter writes a tenant's history.
type historyWriter struct {
	tenant       tenant
	subscription string
	origin       int
	at           int64 // the last position written
	raw, verdict int64
	runs, before int64 // in total, and of an earlier history
}

// writeHistory adds a history of total usage events with their verdicts, in runs that
// alternate between the tenants as those of live tenants do.
func (s *subject) writeHistory(ctx context.Context, total int) error {
	address, err := inDatabase(s.servers.database.AdminURL(), s.database)
	if err != nil {
		return err
	}
	pens, err := s.historyWriters(ctx, address)
	if err != nil {
		return err
	}
	sql := fmt.Sprintf(writeRun, historyRun, feature)
	rounds := total / historyRun / len(pens)
	err = all(2, func(half int) error {
		conn, err := pgx.Connect(ctx, address)
		if err != nil {
			return fmt.Errorf("reach the database: %w", err)
		}
		defer conn.Close(context.WithoutCancel(ctx))
		for range rounds {
			for i := half; i < len(pens); i += 2 {
				if err := pens[i].write(ctx, conn, sql); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.publishHistory(ctx, address, pens); err != nil {
		return err
	}
	s.history += int64(rounds * historyRun * len(pens))
	return nil
}

func (p *historyWriter) write(ctx context.Context, conn *pgx.Conn, sql string) error {
	_, err := conn.Exec(ctx, sql, p.tenant.partition, p.tenant.id, p.at, p.runs, p.raw, p.verdict, p.subscription, p.origin)
	if err != nil {
		return fmt.Errorf("write a tenant's history: %w", err)
	}
	p.runs++
	p.raw, p.verdict = p.at+historyRun, p.at+2*historyRun
	p.at = p.verdict
	return nil
}

var readTenantEnd = events.SQL(`
SELECT h.position, h.topic_positions[{usage.raw}], h.topic_positions[{usage.validated}], s.id::text, (SELECT min(id) FROM log_origins)
FROM log_heads h, subscriptions s WHERE h.partition = $1 AND s.tenant_id = $2`)

func (s *subject) historyWriters(ctx context.Context, address string) (pens []*historyWriter, err error) {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("reach the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, t := range s.tenants {
		p := &historyWriter{tenant: t}
		p.before = s.history / historyRun / int64(len(s.tenants))
		p.runs = p.before
		if err := conn.QueryRow(ctx, readTenantEnd, t.partition, t.id).Scan(&p.at, &p.raw, &p.verdict, &p.subscription, &p.origin); err != nil {
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
	var positions, raws, counts []int64
	for _, p := range pens {
		partitions, positions = append(partitions, p.tenant.partition), append(positions, p.at)
		raws, counts = append(raws, p.raw), append(counts, (p.runs-p.before)*historyRun)
	}
	if _, err := conn.Exec(ctx, raiseHeads, partitions, positions, raws, counts); err != nil {
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
