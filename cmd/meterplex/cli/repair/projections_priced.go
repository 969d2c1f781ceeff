package repair

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

// chargeSum is the sum of the charges of a difference in a currency; without a tenant of all.
type chargeSum struct {
	TenantID string `json:"tenantId,omitempty"`
	Currency string `json:"currency"`
	Live     money  `json:"live"`
	Rebuilt  money  `json:"rebuilt"`
	Delta    money  `json:"delta"`
	Keys     int64  `json:"keys"`
}

type money struct {
	MicroUnits json.Number `json:"microUnits"`
	Decimal    string      `json:"decimal"`
}

// sentence tells the change of a sum.
func (s *chargeSum) sentence() string {
	sign := "+"
	if strings.HasPrefix(s.Delta.Decimal, "-") {
		sign = ""
	}
	return fmt.Sprintf("%s goes from %s to %s (%s%s)", s.Currency, s.Live.Decimal, s.Rebuilt.Decimal, sign, s.Delta.Decimal)
}

// reportCharges prints what the difference costs, in all and for each tenant. It prints nothing for a difference that is not priced.
func (t *diffTotals) reportCharges(a *app.App) {
	for i := range t.Charges {
		a.Report("Their price in %s.", t.Charges[i].sentence())
	}
	for i := range t.ChargesByTenant {
		a.Report("  tenant %s: %s.", t.ChargesByTenant[i].TenantID, t.ChargesByTenant[i].sentence())
	}
	if t.Unpriced != nil && *t.Unpriced > 0 {
		a.Report("%s without a price.", keys(int64(*t.Unpriced)))
	}
}

// pricedColumns are the columns of a priced difference behind the others.
func pricedColumns() []string {
	return []string{"price", "currency", "liveCharge", "rebuiltCharge", "deltaCharge"}
}

// withCharge puts the members of a row's charge beside the others, as decimals. A row without a charge stays as it is.
func withCharge(row json.RawMessage) (json.RawMessage, error) {
	var of struct {
		Charge *struct {
			Price    string `json:"price"`
			Currency string `json:"currency"`
			Live     money  `json:"live"`
			Rebuilt  money  `json:"rebuilt"`
			Delta    money  `json:"delta"`
		} `json:"charge"`
	}
	if err := json.Unmarshal(row, &of); err != nil {
		return nil, fmt.Errorf("read a charge: %w", err)
	}
	if of.Charge == nil {
		return row, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(row, &members); err != nil {
		return nil, fmt.Errorf("read a charge: %w", err)
	}
	for name, text := range map[string]string{"price": of.Charge.Price, "currency": of.Charge.Currency,
		"liveCharge":    of.Charge.Live.Decimal,
		"rebuiltCharge": of.Charge.Rebuilt.Decimal, "deltaCharge": of.Charge.Delta.Decimal} {
		members[name], _ = json.Marshal(text) // a string has a form
	}
	return json.Marshal(members)
}
