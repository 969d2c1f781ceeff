package tables

import (
	"fmt"
	"math/big"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
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
	used, held := make([]pgtype.Numeric, len(order)), make([]pgtype.Numeric, len(order))
	for i, key := range order {
		used[i], held[i] = pgtype.Numeric{Int: &sums[key].Used, Valid: true}, pgtype.Numeric{Int: &sums[key].Held, Valid: true}
	}
	return server.Statement{SQL: addAccountsSQL, Args: append(KeyColumns(order), used, held)}, true
}

// readAccountsSQL reads accounts by their keys. LATERAL with LIMIT forces one look-up for each, whatever size of
// the table the planner assumes.
const readAccountsSQL = `SELECT k.tenant_id, k.feature, k.period_key, a.used::text, a.held::text
 FROM unnest($1::uuid[], $2::text[], $3::text[]) AS k (tenant_id, feature, period_key)
 CROSS JOIN LATERAL (SELECT q.used, q.held FROM quota_accounts q
  WHERE q.tenant_id = k.tenant_id AND q.feature = k.feature AND q.period_key = k.period_key LIMIT 1) a`

// KeyColumns gives keys of accounts as parameters of a statement: tenants, features and periods.
func KeyColumns(keys []domain.AccountKey) []any {
	tenants, features, periods := make([]uuid.UUID, len(keys)), make([]string, len(keys)), make([]string, len(keys))
	for i, k := range keys {
		tenants[i], features[i], periods[i] = k.TenantID, k.Feature, k.PeriodKey
	}
	return []any{tenants, features, periods}
}

// ReadAccounts returns the statement whose rows ScanAccounts reads.
func ReadAccounts(keys []domain.AccountKey) server.Statement {
	return server.Statement{SQL: readAccountsSQL, Args: KeyColumns(keys)}
}

// ScanAccounts loads accounts into a ledger: those of the keys that have no row are at zero.
func ScanAccounts(rows pgx.Rows, keys []domain.AccountKey, into *domain.Ledger) error {
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
