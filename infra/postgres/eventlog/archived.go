package eventlog

import (
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// erasedCopiesSQL returns the payloads of those events whose tenants are ARCHIVED, without personal data, by their numbers from 1. LATERAL
// with LIMIT forces one look-up for each.
const erasedCopiesSQL = `SELECT n.place, erased_body(n.subject, n.payload) FROM unnest($1::uuid[], $2::smallint[],
	$3::text[]) WITH ORDINALITY AS n (tenant_id, subject, payload, place)
 CROSS JOIN LATERAL (SELECT FROM tenants t WHERE t.id = n.tenant_id AND t.status = 'ARCHIVED' LIMIT 1) archived`

// readingArchived returns the read behind the locks of the heads that takes personal data out of copies of clients' data, if their
// tenant is archived: its erasure looks at the events before its request only. Nil: no event is such a copy.
func readingArchived(pending []*events.Pending) *LockedRead {
	var copies []*events.Pending
	var tenants []uuid.UUID
	var subjects []int16
	var payloads []string
	for _, p := range pending {
		switch p.Subject {
		case events.PublishFailed, events.AggregationFailed, events.RefusalsSeen:
			copies, tenants, subjects, payloads = append(copies, p), append(tenants, p.TenantID), append(subjects, int16(p.Subject)),
				append(payloads, string(p.Payload))
		}
	}
	if len(copies) == 0 {
		return nil
	}
	return &LockedRead{server.Statement{SQL: erasedCopiesSQL, Args: []any{tenants, subjects, payloads}}, func(rows pgx.Rows) error {
		var place int
		var erased string
		_, err := pgx.ForEachRow(rows, []any{&place, &erased}, func() error {
			copies[place-1].Payload = []byte(erased)
			return nil
		})
		if err != nil {
			return fmt.Errorf("reading which tenants are archived: %w", err)
		}
		return nil
	}}
}
