package simulation

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
)

// Thresholds of each tenant.

// thresholdsOf returns the thresholds of a tenant, which do not change.
func thresholdsOf(tenant uuid.UUID) (list []domain.Threshold) {
	for i, t := range []domain.Threshold{{Percent: 50}, {Feature: featureHeld, Percent: 85}, {Amount: 12}, {Feature: featureEnforced, Amount: 3}} {
		t.ID, t.TenantID = uuid.NewSHA1(tenant, []byte{byte(i)}), tenant
		list = append(list, t)
	}
	return list
}

// findsThresholds and readsThresholds begin the read of tenants with thresholds, and that of accounts with the thresholds of their tenants.
const (
	findsThresholds = "SELECT k.tenant_id FROM unnest($1::uuid[])"
	readsThresholds = "SELECT k.tenant_id, k.feature, k.period_key, coalesce(a.used, 0)::text, t.id"
)

// watched makes the comparisons that the statement's text has.
func (db *simDB) watched(text string, args []any) *simRows {
	out := simAnswer()
	if strings.HasPrefix(text, findsThresholds) {
		for _, tenant := range args[0].([]uuid.UUID) {
			out.list = append(out.list, []any{tenant})
		}
		return out
	}
	for _, t := range thresholdsOf(uuid.Nil) {
		for i, tenant := range args[0].([]uuid.UUID) {
			k := domain.AccountKey{TenantID: tenant, Feature: args[1].([]string)[i], PeriodKey: args[2].([]string)[i]}
			t.ID = thresholdsOf(tenant)[indexOfThreshold(&t)].ID
			if t.Feature != "" && t.Feature != k.Feature && strings.Contains(text, "t.feature IN ('', k.feature)") {
				continue
			}
			h := db.history(tenant)
			out.list = append(out.list, []any{tenant, k.Feature, k.PeriodKey, fmt.Sprint(db.accounts[k].used), t.ID, t.Feature, t.Percent, t.Amount, textOf(h[len(h)-1].Subscription)})
		}
	}
	return out
}

func indexOfThreshold(t *domain.Threshold) int {
	for i, o := range thresholdsOf(uuid.Nil) {
		if o.Percent == t.Percent && o.Amount == t.Amount {
			return i
		}
	}
	panic("no such threshold")
}

// thresholdRows are the rows of thresholds in the read of histories.
func thresholdRows(tenant uuid.UUID) (list [][]any) {
	for _, t := range thresholdsOf(tenant) {
		list = append(list, []any{tenant, int64(0), "threshold", (*time.Time)(nil), (*string)(nil), t.Feature, int(t.Percent), &t.ID, t.Amount})
	}
	return list
}
