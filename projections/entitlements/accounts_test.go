package entitlements_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/projections/entitlements"
	. "github.com/meterplex/meterplex/projections/projectionstest"
)

// accountsOf inserts accounts of a tenant, each with a number of open reservations, and one that has ended.
func accountsOf(s *Pipeline, tenant uuid.UUID, open int) (names []string) {
	s.Helper()
	for _, feature := range []string{"a", "b"} {
		for _, period := range []string{"2026-04", "2026-05", "lifetime"} {
			_, err := s.Pool.Exec(s.Context(), `INSERT INTO quota_accounts (tenant_id, feature, period_key, used, held) VALUES ($1, $2, $3, 1, 0)`, tenant, feature, period)
			s.Must(err)
			_, err = s.Pool.Exec(s.Context(), `INSERT INTO reservations (tenant_id, reservation_id, feature, period_key, subscription_id, feature_type, amount, state, expires_at, held_position, ended_position, ended_at)
 SELECT $1, $3 || n, $2, $3, $1, 'QUOTA', 1, CASE WHEN n = 0 THEN 'RELEASED' ELSE 'HELD' END, now(), 1, CASE WHEN n = 0 THEN 2 END, CASE WHEN n = 0 THEN now() END FROM generate_series(0, $4::int) n`, tenant, feature, period, open)
			s.Must(err)
			names = append(names, fmt.Sprint(feature, " ", period, ": ", open))
		}
	}
	return names
}

// Pages of accounts list each account once, also the periods of one feature, with the open reservations of its tenant alone.
func TestP9_PagesOfAccountsAreComplete(t *testing.T) {
	s := NewPipeline(t)
	tenant := NewID()
	want := accountsOf(s, tenant, 2)
	accountsOf(s, NewID(), 3)
	for _, limit := range []int{1, 2, 5, 6, 7} {
		var got []string
		q := entitlements.AccountQuery{TenantID: tenant, Limit: limit}
		for more := true; more; {
			page, _, err := s.Reads.Accounts(t.Context(), q)
			s.Must(err)
			for _, a := range page {
				got = append(got, fmt.Sprint(a.Feature, " ", a.PeriodKey, ": ", a.OpenReservations))
				q.AfterFeature, q.AfterPeriod = a.Feature, a.PeriodKey
			}
			more = len(page) == limit
		}
		if !slices.Equal(got, want) {
			t.Errorf("accounts and their open reservations in pages of %d:\ngot  %v\nwant %v", limit, got, want)
		}
	}
}
