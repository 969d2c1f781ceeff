package query_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	. "github.com/meterplex/meterplex/internal/projectionstest"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

// P9: every read shows a tenant its own rows only, even if another tenant of the
// same partition asks for them by name.
func TestP9_ReadsShowATenantOnlyItsOwn(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	neighbour := TenantIn(events.PartitionOf(tenant))
	s.Subscribe(tenant, May, Quota("calls", 10, domain.LimitHard, domain.ResetMonthly))
	at := s.Append(Usage(tenant, "good", "calls", 1, May), Usage(tenant, "bad", "unknown", 1, May))[0]
	s.Append(Conflict(tenant, "good", at, "other"))
	s.Settle()
	letter := s.Receipt(tenant, "bad").Rejected.DeadLetterID
	found := map[string]func(v query.Viewer) bool{
		"receipt": func(v query.Viewer) bool {
			_, err := s.Reads.Receipt(t.Context(), v, tenant, "good", query.Wait{})
			return shown(t, err)
		},
		"usage events": func(v query.Viewer) bool {
			page, err := s.Reads.UsageEvents(t.Context(), v, audit.EventQuery{TenantID: tenant, Limit: 10})
			return shown(t, err) && len(page.Data) > 0
		},
		"aggregates": func(v query.Viewer) bool {
			page, err := s.Reads.Aggregates(t.Context(), v, usage.AggregateQuery{TenantID: tenant, Limit: 10})
			return shown(t, err) && len(page.Data) > 0
		},
		"conflicts": func(v query.Viewer) bool {
			page, err := s.Reads.Conflicts(t.Context(), v, tenant, 10, "", query.Wait{})
			return shown(t, err) && len(page.Data) > 0
		},
		"check": func(v query.Viewer) bool {
			c, err := s.Reads.Check(t.Context(), v, tenant, "calls", 1, query.Wait{})
			return shown(t, err) && (c.Allowed || c.Reason != entitlements.ReasonNoSubscription)
		},
		"entitlements": func(v query.Viewer) bool {
			list, err := s.Reads.Entitlements(t.Context(), v, tenant, query.Wait{})
			return shown(t, err) && len(list.Data) > 0
		},
		"dead letters": func(v query.Viewer) bool {
			page, err := s.Reads.DeadLetters(t.Context(), v,
				deadletters.Query{DeadLetterFilter: events.DeadLetterFilter{TenantID: &tenant}, Limit: 10})
			return shown(t, err) && len(page.Data) > 0
		},
		"all dead letters": func(v query.Viewer) bool {
			page, err := s.Reads.DeadLetters(t.Context(), v, deadletters.Query{Limit: 10})
			return shown(t, err) && len(page.Data) > 0
		},
		"dead letter": func(v query.Viewer) bool {
			_, err := s.Reads.DeadLetter(t.Context(), v, letter)
			return shown(t, err)
		},
	}
	for name, read := range found {
		for _, v := range []query.Viewer{Operator, TenantViewer(tenant)} {
			if !read(v) {
				t.Errorf("%s: %+v does not see it", name, v)
			}
		}
		for _, v := range []query.Viewer{TenantViewer(neighbour), TenantViewer(NewID()), {}} {
			if read(v) {
				t.Errorf("%s: %+v sees another tenant's", name, v)
			}
		}
	}
}

func shown(t *testing.T, err error) bool {
	t.Helper()
	if err != nil && err != query.ErrNotFound {
		t.Error(err)
	}
	return err == nil
}

// P9: the functions that see more than the role of tenants do not bypass it,
// whether or not a tenant is named.
func TestP9_LogFunctionsShowATenantOnlyItsOwnRows(t *testing.T) {
	s := NewPipeline(t)
	s.Payloads.Allow() // they are empty
	tenant := NewID()
	partition := events.PartitionOf(tenant)
	cause := Usage(tenant, "e", "calls", 1, May)
	effect := Plain(tenant, events.TenantChanged, events.Counts{}, map[string]string{})
	effect.CausationID = cause.EventID
	s.Append(cause, effect)
	for _, ask := range []string{
		`SELECT count(*) FROM consumer_standing($1, $2, 'usage_aggregates', NULL, 'meterplex-usage-aggregator', false, 100) s
			WHERE s.passed = 0`,
		`SELECT count(*) FROM log_positions($1, $2, 0, 99, NULL, NULL, '', '', NULL, false, 9)`,
		`SELECT count(*) FROM log_positions($1, $2, 0, 99, NULL, NULL, '', '', NULL, true, 9)`,
		`SELECT count(*) FROM position_of_event('` + cause.EventID.String() +
			`', $2, ARRAY[$1]::smallint[], now() - interval '1 hour', now(), 9)`,
		`SELECT count(*) FROM caused_positions($1, $2, 0, 99, ARRAY['` + cause.EventID.String() + `']::uuid[], 9)`,
	} {
		viewed := []*uuid.UUID{&tenant, nil}
		if strings.Contains(ask, "usage") {
			viewed = viewed[:1] // these functions are of one tenant
		}
		for _, eyes := range []string{tenant.String(), TenantIn(partition).String(), ""} {
			for _, named := range viewed {
				var rows int
				s.Must(pgx.BeginFunc(t.Context(), s.Pool, func(tx pgx.Tx) error {
					s.Must(Second(tx.Exec(t.Context(), `SET LOCAL ROLE meterplex_tenant`)))
					s.Must(Second(tx.Exec(t.Context(), `SELECT set_config('meterplex.tenant_id', $1, true)`, eyes)))
					return tx.QueryRow(t.Context(), ask, partition, named).Scan(&rows)
				}))
				if (rows > 0) != (eyes == tenant.String()) {
					t.Errorf("%s of %v tells %q of %d rows", ask, named, eyes, rows)
				}
			}
		}
	}
}
