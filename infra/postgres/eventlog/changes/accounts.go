package changes

import (
	"math/big"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// addAccountsSQL adds to the accounts. The heads of their tenants' partitions are locked, so that no other session
// changes a row meanwhile.
const addAccountsSQL = `INSERT INTO quota_accounts AS a (tenant_id, feature, period_key, used, held)
 SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::numeric[], $5::numeric[])
 ON CONFLICT (tenant_id, feature, period_key) DO UPDATE SET used = a.used + excluded.used, held = a.held + excluded.held`

// accountChanges returns the statement that applies the account changes of rows; not ok without any.
func accountChanges(rows []server.Row) (server.Statement, bool) {
	var sums map[domain.AccountKey]*domain.Account
	var order []domain.AccountKey
	for i := range rows {
		c := rows[i].Account
		if c == nil {
			continue
		}
		key := domain.AccountKey{TenantID: rows[i].TenantID, Feature: c.Feature, PeriodKey: c.PeriodKey}
		sum := sums[key]
		if sum == nil {
			if sums == nil {
				sums = map[domain.AccountKey]*domain.Account{}
			}
			sum = new(domain.Account)
			sums[key], order = sum, append(order, key)
		}
		var n big.Int
		sum.Used.Add(&sum.Used, n.SetInt64(c.Used))
		sum.Held.Add(&sum.Held, n.SetInt64(c.Held))
	}
	if len(order) == 0 {
		return server.Statement{}, false
	}
	tenants, features, periods := make([]uuid.UUID, len(order)), make([]string, len(order)), make([]string, len(order))
	used, held := make([]pgtype.Numeric, len(order)), make([]pgtype.Numeric, len(order))
	for i, key := range order {
		tenants[i], features[i], periods[i] = key.TenantID, key.Feature, key.PeriodKey
		used[i], held[i] = pgtype.Numeric{Int: &sums[key].Used, Valid: true}, pgtype.Numeric{Int: &sums[key].Held, Valid: true}
	}
	return server.Statement{SQL: addAccountsSQL, Args: []any{tenants, features, periods, used, held}}, true
}
