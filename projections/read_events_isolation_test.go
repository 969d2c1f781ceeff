package projections_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// P9: the functions that see more than the role of tenants do not bypass it,
// whether or not a tenant is named.
func TestP9_LogFunctionsShowATenantOnlyItsOwnRows(t *testing.T) {
	s := newPipelineFixture(t)
	s.payloads.Allow() // they are empty
	tenant := newID()
	partition := events.PartitionOf(tenant)
	cause := usageEvent(tenant, "e", "calls", 1, may)
	effect := plainEvent(tenant, events.TenantChanged, events.Counts{}, map[string]string{})
	effect.CausationID = cause.EventID
	s.append(cause, effect)
	for _, ask := range []string{
		`SELECT count(*) FROM usage_positions($1, $2, 100, 1, '', NULL, NULL, 9)`,
		`SELECT count(*) FROM consumer_standing($1, $2, 'usage_aggregates', NULL, 'meterplex-usage-aggregator', false, 100) s WHERE s.passed = 0`,
		`SELECT count(*) FROM log_positions($1, $2, 0, 99, NULL, NULL, '', '', NULL, false, 9)`,
		`SELECT count(*) FROM log_positions($1, $2, 0, 99, NULL, NULL, '', '', NULL, true, 9)`,
		`SELECT count(*) FROM position_of_event('` + cause.EventID.String() + `', $2, ARRAY[$1]::smallint[], now() - interval '1 hour', now(), 9)`,
		`SELECT count(*) FROM caused_positions($1, $2, 0, 99, ARRAY['` + cause.EventID.String() + `']::uuid[], 9)`,
	} {
		viewed := []*uuid.UUID{&tenant, nil}
		if strings.Contains(ask, "usage") {
			viewed = viewed[:1] // these functions are of one tenant
		}
		for _, eyes := range []string{tenant.String(), tenantIn(partition).String(), ""} {
			for _, named := range viewed {
				var rows int
				s.must(pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
					s.must(second(tx.Exec(t.Context(), `SET LOCAL ROLE meterplex_tenant`)))
					s.must(second(tx.Exec(t.Context(), `SELECT set_config('meterplex.tenant_id', $1, true)`, eyes)))
					return tx.QueryRow(t.Context(), ask, partition, named).Scan(&rows)
				}))
				if (rows > 0) != (eyes == tenant.String()) {
					t.Errorf("%s of %v tells %q of %d rows", ask, named, eyes, rows)
				}
			}
		}
	}
}
