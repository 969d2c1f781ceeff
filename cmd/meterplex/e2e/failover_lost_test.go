package e2e

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/local"
)

// logRow is an event of the log; producer is the id that its producer gave it.
type logRow struct {
	partition            int16
	position             int64
	id, tenant, producer string
}

func (p *pair) rows(server *local.Postgres, sql string, args ...any) (all []logRow) {
	p.t.Helper()
	err := p.on(server, func(ctx context.Context, conn *pgx.Conn) error {
		found, err := conn.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(found, func(row pgx.CollectableRow) (r logRow, err error) {
			return r, row.Scan(&r.partition, &r.position, &r.id, &r.tenant, &r.producer)
		})
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return all
}

// logRows are the events that a server has behind some positions.
func (p *pair) logRows(server *local.Postgres, after map[int16]int64) []logRow {
	p.t.Helper()
	var partitions []int16
	var positions []int64
	for partition, position := range after {
		partitions, positions = append(partitions, partition), append(positions, position)
	}
	return p.rows(server, `SELECT l.partition, l.position, l.event_id::text, l.tenant_id::text, CASE WHEN l.subject = 1 THEN l.payload ->> 'eventId' ELSE '' END
FROM event_log_rows l LEFT JOIN unnest($1::smallint[], $2::bigint[]) a (partition, position) ON a.partition = l.partition WHERE l.position > coalesce(a.position, 0)`, partitions, positions)
}

// beyond are the events that the present life of the database began without.
func (p *pair) beyond(all []logRow) (lost []logRow) {
	for _, r := range all {
		if r.position > p.fork[r.partition] {
			lost = append(lost, r)
		}
	}
	return lost
}

// abandoned are the events that the former primary had and the promoted one has not.
// That server is started for it where nobody else reaches it, and ended.
func (p *pair) abandoned() []logRow {
	p.t.Helper()
	if err := p.former.Restart(context.WithoutCancel(p.t.Context())); err != nil {
		p.t.Fatal(err)
	}
	lost := p.logRows(p.former, p.fork)
	p.former.Halt(p.t.Context())
	return lost
}
