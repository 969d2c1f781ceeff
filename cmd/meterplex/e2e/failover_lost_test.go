package e2e

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/infra/local"
	"github.com/meterplex/meterplex/internal/must"
)

// logRow is an event in the log. producer is the producer's event id.
type logRow struct {
	partition            int16
	position             int64
	epoch                int32
	id, tenant, producer string
}

// occurrence identifies an event at its position in one history of the log. An event that a
// failover lost before it was answered may be appended again under the same id.
type occurrence struct{ position, epoch, id string }

func (r *logRow) occurrence() occurrence {
	return occurrence{fmt.Sprint(r.partition, "-", r.position), fmt.Sprint(r.epoch), r.id}
}

func (p *serverPair) rows(server *local.Postgres, sql string, args ...any) (all []logRow) {
	p.t.Helper()
	err := p.runOn(server, func(ctx context.Context, conn *pgx.Conn) error {
		found, err := conn.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(found, func(row pgx.CollectableRow) (r logRow, err error) {
			return r, row.Scan(&r.partition, &r.position, &r.epoch, &r.id, &r.tenant, &r.producer)
		})
		return err
	})
	must.OK(p.t, err)
	return all
}

// logRows returns the events of a server behind the given positions.
func (p *serverPair) logRows(server *local.Postgres, after map[int16]int64) []logRow {
	p.t.Helper()
	var partitions []int16
	var positions []int64
	for partition, position := range after {
		partitions, positions = append(partitions, partition), append(positions, position)
	}
	return p.rows(server, `SELECT l.partition, l.position, l.epoch, l.event_id::text, l.tenant_id::text, CASE WHEN l.subject = 1 THEN l.payload ->> 'eventId' ELSE '' END
FROM event_log_rows l LEFT JOIN unnest($1::smallint[], $2::bigint[]) a (partition, position) ON a.partition = l.partition WHERE l.position > coalesce(a.position, 0)`, partitions, positions)
}

// lostEvents returns the events that the database lost at the beginning of its present life.
func (p *serverPair) lostEvents(all []logRow) (lost []logRow) {
	for _, r := range all {
		if r.position > p.fork[r.partition] {
			lost = append(lost, r)
		}
	}
	return lost
}

// lostByFailover returns the events of the former primary that the promoted one does not have. The
// former primary is started on an address that no instance uses, and stopped again.
func (p *serverPair) lostByFailover() []logRow {
	p.t.Helper()
	must.OK(p.t, p.former.Restart(context.WithoutCancel(p.t.Context())))
	lost := p.logRows(p.former, p.fork)
	p.former.Halt(p.t.Context())
	return lost
}
