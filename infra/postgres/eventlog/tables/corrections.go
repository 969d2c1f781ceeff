package tables

import (
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// addCorrectionsSQL writes the changes of usage that verdicts count.
const addCorrectionsSQL = `INSERT INTO usage_corrections (tenant_id, target, n, cause, position, kind, before, after)
 SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::int[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[], $8::bigint[])`

// correctionChanges returns the statement that writes the changes of usage in rows; not ok without any.
func correctionChanges(rows []server.Row) (server.Statement, bool) {
	var (
		tenants                                     []uuid.UUID
		numbers                                     []int32
		kinds                                       []string
		targets, causes, positions, befores, afters []int64
	)
	for i := range rows {
		c := rows[i].Correction
		if c == nil {
			continue
		}
		tenants, targets, numbers = append(tenants, rows[i].TenantID), append(targets, c.TargetPosition), append(numbers, int32(c.Number))
		causes, positions, kinds = append(causes, c.Cause), append(positions, rows[i].Position.Number), append(kinds, c.Kind)
		befores, afters = append(befores, c.Before), append(afters, c.After)
	}
	return server.Statement{SQL: addCorrectionsSQL, Args: []any{tenants, targets, numbers, causes, positions, kinds, befores, afters}},
		len(tenants) > 0
}
