package audit

import (
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// Statements get dedupe keys as parameters and never make them of a column: row level
// security lets an index be searched only by expressions that cannot leak another tenant's
// row, and concatenation is not declared to be one.

// keyRange is the range of the keys that begin with a prefix, both ends excluded.
type keyRange struct{ after, before string }

// keysUnder returns the range of a prefix that ends in a slash: '0' is the character after '/'.
func keysUnder(prefix string) keyRange {
	return keyRange{prefix, prefix[:len(prefix)-1] + "0"}
}

// rejectionsOf is the range of the rejections of a recorded position.
func rejectionsOf(raw int64) keyRange {
	return keysUnder("x/" + strconv.FormatInt(raw, 10) + "/")
}

// retriesOf is the range of the events of a dead letter's retries.
func retriesOf(letter string) keyRange { return keysUnder("r/" + letter + "/") }

// endsOf returns the ends of ranges, as two columns.
func endsOf(ranges []keyRange) (after, before []string) {
	after, before = make([]string, len(ranges)), make([]string, len(ranges))
	for i, r := range ranges {
		after[i], before[i] = r.after, r.before
	}
	return after, before
}

// The events of a tenant with one of the keys $3, or with a key between $4 and $5. The
// limits exceed any possible count: they make the planner look up each key by the whole
// index, even if outdated statistics say that the tenant has hardly any rows.
const readKeyed = `
SELECT f.position, f.recorded_at, f.subject, f.payload FROM (
  SELECT l.* FROM unnest($3::text[]) AS given (key) CROSS JOIN LATERAL (
    SELECT e.position, e.recorded_at, e.subject, e.payload FROM event_log e
    WHERE e.partition = $1 AND e.tenant_id = $2 AND e.dedupe_key = given.key LIMIT 1) l
  UNION ALL
  SELECT l.* FROM unnest($4::text[], $5::text[]) AS given (after, before) CROSS JOIN LATERAL (
    SELECT e.position, e.recorded_at, e.subject, e.payload FROM event_log e
    WHERE e.partition = $1 AND e.tenant_id = $2 AND e.dedupe_key > given.after AND e.dedupe_key < given.before LIMIT 1000) l) f
ORDER BY f.position
LIMIT 1000`

// scanPosition scans the partition and the position of an event.
func scanPosition(rows pgx.Rows) (p events.Position, err error) {
	err = rows.Scan(&p.Partition, &p.Number)
	return p, err
}

// keyed reads the events of a tenant by their keys, in the order of the log.
func keyed(tenant uuid.UUID, partition int16, keys []string, ranges []keyRange, scan func(pgx.Rows) error) query.Statement {
	after, before := endsOf(ranges)
	return query.New(readKeyed, []any{partition, tenant, keys, after, before}, query.Each(scan))
}
