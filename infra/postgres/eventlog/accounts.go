package eventlog

import (
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
)

// readAccountsSQL reads accounts by their keys. LATERAL with LIMIT forces one look-up for each, whatever size of
// the table the planner assumes.
const readAccountsSQL = `SELECT k.tenant_id, k.feature, k.period_key, a.used::text, a.held::text
 FROM unnest($1::uuid[], $2::text[], $3::text[]) AS k (tenant_id, feature, period_key)
 CROSS JOIN LATERAL (SELECT q.used, q.held FROM quota_accounts q
  WHERE q.tenant_id = k.tenant_id AND q.feature = k.feature AND q.period_key = k.period_key LIMIT 1) a`

func keyColumns(keys []domain.AccountKey) (tenants []uuid.UUID, features, periods []string) {
	for _, k := range keys {
		tenants, features, periods = append(tenants, k.TenantID), append(features, k.Feature), append(periods, k.PeriodKey)
	}
	return tenants, features, periods
}

// scanAccounts loads accounts into a ledger: those of the keys that have no row are at zero.
func scanAccounts(rows pgx.Rows, keys []domain.AccountKey, into *domain.Ledger) error {
	for _, key := range keys {
		into.Load(key, new(domain.Account))
	}
	var key domain.AccountKey
	var used, held string
	_, err := pgx.ForEachRow(rows, []any{&key.TenantID, &key.Feature, &key.PeriodKey, &used, &held}, func() error {
		return loadAccount(into, key, used, held)
	})
	if err != nil {
		return fmt.Errorf("reading accounts: %w", err)
	}
	return nil
}

func loadAccount(into *domain.Ledger, key domain.AccountKey, used, held string) error {
	a := new(domain.Account)
	_, isUsed := a.Used.SetString(used, 10)
	_, isHeld := a.Held.SetString(held, 10)
	if !isUsed || !isHeld {
		return fmt.Errorf("the account of %s in %s is no sum of integers: %s and %s", key.Feature, key.PeriodKey, used, held)
	}
	into.Load(key, a)
	return nil
}
