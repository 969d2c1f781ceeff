package projections_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/audit"
	"github.com/meterplex/meterplex/projections/deadletters"
	"github.com/meterplex/meterplex/projections/entitlements"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

// P9: every read shows a tenant its own rows only, even if another tenant of the
// same partition asks for them by name.
func TestP9_ReadsShowATenantOnlyItsOwn(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	neighbour := tenantIn(events.PartitionOf(tenant))
	s.subscribe(tenant, may, quota("calls", 10, domain.LimitHard, domain.ResetMonthly))
	at := s.append(usageEvent(tenant, "good", "calls", 1, may), usageEvent(tenant, "bad", "unknown", 1, may))[0]
	s.append(conflict(tenant, "good", at, "other"))
	s.settle()
	letter := s.receipt(tenant, "bad").Rejected.DeadLetterID
	found := map[string]func(v query.Viewer) bool{
		"receipt": func(v query.Viewer) bool {
			_, err := s.reads.Receipt(t.Context(), v, tenant, "good", query.Wait{})
			return shown(t, err)
		},
		"usage events": func(v query.Viewer) bool {
			page, err := s.reads.UsageEvents(t.Context(), v, audit.EventQuery{TenantID: tenant, Limit: 10})
			return shown(t, err) && len(page.Data) > 0
		},
		"aggregates": func(v query.Viewer) bool {
			page, err := s.reads.Aggregates(t.Context(), v, usage.AggregateQuery{TenantID: tenant, Limit: 10})
			return shown(t, err) && len(page.Data) > 0
		},
		"conflicts": func(v query.Viewer) bool {
			page, err := s.reads.Conflicts(t.Context(), v, tenant, 10, "", query.Wait{})
			return shown(t, err) && len(page.Data) > 0
		},
		"check": func(v query.Viewer) bool {
			c, err := s.reads.Check(t.Context(), v, tenant, "calls", 1, query.Wait{})
			return shown(t, err) && (c.Allowed || c.Reason != entitlements.ReasonNoSubscription)
		},
		"entitlements": func(v query.Viewer) bool {
			list, err := s.reads.Entitlements(t.Context(), v, tenant, query.Wait{})
			return shown(t, err) && len(list.Data) > 0
		},
		"dead letters": func(v query.Viewer) bool {
			page, err := s.reads.DeadLetters(t.Context(), v, deadletters.DeadLetterQuery{DeadLetterFilter: events.DeadLetterFilter{TenantID: &tenant}, Limit: 10})
			return shown(t, err) && len(page.Data) > 0
		},
		"all dead letters": func(v query.Viewer) bool {
			page, err := s.reads.DeadLetters(t.Context(), v, deadletters.DeadLetterQuery{Limit: 10})
			return shown(t, err) && len(page.Data) > 0
		},
		"dead letter": func(v query.Viewer) bool {
			_, err := s.reads.DeadLetter(t.Context(), v, letter)
			return shown(t, err)
		},
	}
	for name, read := range found {
		for _, v := range []query.Viewer{operator, tenantViewer(tenant)} {
			if !read(v) {
				t.Errorf("%s: %+v does not see it", name, v)
			}
		}
		for _, v := range []query.Viewer{tenantViewer(neighbour), tenantViewer(newID()), {}} {
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

// The role of tenants can only read, and only the intended rows: isolation does not
// depend on the queries.
func TestP9_TheTenantsRoleIsDenied(t *testing.T) {
	s := newPipelineFixture(t)
	for _, statement := range []string{
		`SELECT * FROM event_log_rows`, `SELECT * FROM api_keys`, `SELECT * FROM withheld_records`, `SELECT * FROM outbox_events`, `SELECT * FROM idempotency_answers`,
		`INSERT INTO event_log SELECT * FROM event_log`, `UPDATE consumer_checkpoints SET position = 0`, `DELETE FROM usage_aggregates`, `UPDATE log_heads SET position = 0`,
	} {
		err := pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `SET LOCAL ROLE meterplex_tenant`); err != nil {
				t.Fatal(err)
			}
			_, err := tx.Exec(t.Context(), statement)
			return err
		})
		if err == nil {
			t.Errorf("%s was allowed", statement)
		}
	}
}

// The functions that see more than the role are no way around it.
func TestP9_FunctionsShowATenantOnlyItsOwnRows(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	neighbour := tenantIn(events.PartitionOf(tenant))
	partition := events.PartitionOf(tenant)
	s.append(usageEvent(tenant, "e", "calls", 1, may))
	for _, v := range []struct {
		eyes   uuid.UUID
		rows   int
		passed int64
	}{{tenant, 1, 0}, {neighbour, 0, 1}} {
		s.must(pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
			s.must(second(tx.Exec(t.Context(), `SET LOCAL ROLE meterplex_tenant`)))
			s.must(second(tx.Exec(t.Context(), `SELECT set_config('meterplex.tenant_id', $1, true)`, v.eyes.String())))
			var rows int
			s.must(tx.QueryRow(t.Context(), `SELECT count(*) FROM usage_positions($1, $2, 100, 1, '', NULL, NULL, 9)`, partition, tenant).Scan(&rows))
			var passed int64
			s.must(tx.QueryRow(t.Context(), `SELECT passed FROM consumer_standing($1, $2, 'usage_aggregates', NULL, 'meterplex-usage-aggregator', false, 100)`, partition, tenant).Scan(&passed))
			if rows != v.rows || passed != v.passed {
				t.Errorf("asked for %s, %s sees %d rows, and that %d has passed", tenant, v.eyes, rows, passed)
			}
			return nil
		}))
	}
}

// A session that served a tenant returns to the pool unchanged.
func TestSessionsResetTheTenantSetting(t *testing.T) {
	s := newPipelineFixture(t)
	tenant := newID()
	for range 20 {
		s.must(second(s.reads.Conflicts(t.Context(), tenantViewer(tenant), tenant, 1, "", query.Wait{})))
		s.must(second(s.reads.UsageEvents(t.Context(), tenantViewer(tenant), audit.EventQuery{TenantID: tenant, Limit: 1})))
		refusedAs(t, query.ErrNotFound, second(s.reads.Receipt(t.Context(), tenantViewer(tenant), tenant, "x", query.Wait{})))
		var role, setting string
		s.must(s.pool.QueryRow(context.Background(), `SELECT current_user, coalesce(current_setting('meterplex.tenant_id', true), '')`).Scan(&role, &setting))
		if role != "meterplex_worker" || setting != "" {
			t.Fatalf("the next one is %s with tenant %q", role, setting)
		}
	}
}
