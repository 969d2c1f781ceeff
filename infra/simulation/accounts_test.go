package simulation

import (
	"maps"
	"math/big"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/events/codec"
)

// addsAccounts begins the statement that adds to the accounts.
const addsAccounts = "INSERT INTO quota_accounts"

// addAccounts adds to the accounts of tenants whose heads the transaction has locked.
func (tx *simTx) addAccounts(args []any) *simRows {
	tenants, features, periods, used := args[0].([]uuid.UUID), args[1].([]string), args[2].([]string), args[3].([]pgtype.Numeric)
	for i := range tenants {
		if !tx.p.s.db.free(tx, locksOf("heads", []int16{events.PartitionOf(tenants[i])})) {
			tx.p.s.fail("the account of %s is changed without its head", tenants[i])
		}
		if tx.root.w.used == nil {
			tx.root.w.used = map[domain.AccountKey]int64{}
		}
		tx.root.w.used[domain.AccountKey{TenantID: tenants[i], Feature: features[i], PeriodKey: periods[i]}] += used[i].Int.Int64()
	}
	return &simRows{}
}

// addUsed is the effect of COMMIT on the accounts.
func (db *simDB) addUsed(w *writes) {
	for k, n := range w.used {
		db.used[k] += n
	}
}

// checkAccounts compares the accounts with the verdicts in the log: each counts once.
func (m *model) checkAccounts() {
	want := map[domain.AccountKey]*big.Int{}
	for _, p := range m.s.plan.partitions {
		for i := range m.s.db.rows[p] {
			row := &m.s.db.rows[p][i]
			if row.subject != events.UsageValidated {
				continue
			}
			v, err := codec.VerdictOf(&events.Envelope{Subject: row.subject, Payload: row.payload()})
			if err != nil {
				m.s.fail("the verdict at %s cannot be read: %v", row.at, err)
				continue
			}
			if v.FeatureType != domain.FeatureQuota {
				continue
			}
			k := domain.AccountKey{TenantID: row.key.tenant, Feature: v.Feature, PeriodKey: v.PeriodKey}
			if want[k] == nil {
				want[k] = new(big.Int)
			}
			want[k].Add(want[k], big.NewInt(v.Amount))
		}
	}
	sums := map[domain.AccountKey]int64{}
	for k, n := range want {
		sums[k] = n.Int64()
	}
	if !maps.Equal(sums, m.s.db.used) {
		m.s.fail("the accounts are %v, not %v", m.s.db.used, sums)
	}
}
