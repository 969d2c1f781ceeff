package repair

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
)

// An account differs from the log also if it has no row, or if no event of the log is in it; the repair brings it to the log.
func TestP7_AccountsOnOneSideOnlyAreDrift(t *testing.T) {
	tenant := &domain.Tenant{ID: uuid.UUID{7}}
	accounts := func(feature string, used, held int64) map[domain.AccountKey]*domain.Account {
		a := new(domain.Account)
		a.Used.SetInt64(used)
		a.Held.SetInt64(held)
		return map[domain.AccountKey]*domain.Account{{TenantID: tenant.ID, Feature: feature, PeriodKey: domain.PeriodLifetime}: a}
	}
	c := &Accounts{Now: time.Now, NewID: uuid.New}
	for name, x := range map[string]struct {
		rows, sums     map[domain.AccountKey]*domain.Account
		drifts         int
		usedBy, heldBy int64
	}{
		"equal":              {accounts("f", 4, 3), accounts("f", 4, 3), 0, 0, 0},
		"without a row":      {nil, accounts("f", 4, 3), 1, 4, 3},
		"only held":          {nil, accounts("f", 0, 3), 1, 0, 3},
		"without events":     {accounts("f", 4, 3), nil, 1, -4, -3},
		"a row of zeros":     {accounts("f", 0, 0), nil, 0, 0, 0},
		"another held sum":   {accounts("f", 4, 3), accounts("f", 4, 1), 1, 0, -2},
		"another used alone": {accounts("f", 4, 3), accounts("f", 9, 3), 1, 5, 0},
	} {
		list := drift(x.rows, x.sums)
		if len(list) != x.drifts {
			t.Errorf("%s: %d accounts differ, want %d", name, len(list), x.drifts)
			continue
		}
		var used, held int64
		for _, r := range c.repairs(commands.Request{}, tenant, x.rows, x.sums, list, "test") {
			used, held = used+r.Account.Used, held+r.Account.Held
		}
		if used != x.usedBy || held != x.heldBy {
			t.Errorf("%s: the repair adds %d used and %d held, want %d and %d", name, used, held, x.usedBy, x.heldBy)
		}
	}
}
