package domain

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/events"
)

// GrantSum is the amount of a feature that usage of a period has under a subscription and a grant.
type GrantSum struct {
	Feature        string
	SubscriptionID uuid.UUID
	Grant          int64
	Amount         *big.Int
	EventCount     int64
}

// PriceVersion names a version of a price.
type PriceVersion struct {
	Key     string
	Version int64
}

// ChargeLine is a line of the charges of a tenant's period. Price and MicroUnits are nil if its grant names no price.
type ChargeLine struct {
	GrantSum
	GrantTerms
	Rated      *Price
	MicroUnits *big.Int
}

// Lines returns the lines of sums in the order in which they lie on the axes of their features: by the start of the grant, then by its
// number.
func (h History) Lines(sums []GrantSum, position int64, periodKey string) []ChargeLine {
	lines := make([]ChargeLine, len(sums))
	for i, s := range sums {
		lines[i] = ChargeLine{GrantSum: s, GrantTerms: h.Terms(s.Grant, position, s.SubscriptionID, s.Feature, periodKey)}
	}
	slices.SortFunc(lines, func(a, b ChargeLine) int {
		return cmp.Or(cmp.Compare(a.Feature, b.Feature), a.start.Compare(b.start), cmp.Compare(a.Grant, b.Grant),
			slices.Compare(a.SubscriptionID[:], b.SubscriptionID[:]))
	})
	return lines
}

// ChargeLines sets the charge of each line that has a price: cost(end) − cost(start) by its own price, where start is the sum of
// the lines before it that are of its feature and charged: neither free nor without a price. So the tiers go on when a plan changes.
func ChargeLines(lines []ChargeLine, prices map[PriceVersion]*Price) error {
	end := new(big.Int)
	for i := range lines {
		l := &lines[i]
		if i > 0 && lines[i-1].Feature != l.Feature {
			end = new(big.Int)
		}
		if l.Price == "" {
			continue
		}
		if l.Rated = prices[PriceVersion{l.Price, l.PriceVersion}]; l.Rated == nil {
			return fmt.Errorf("price %s has no version %d", l.Price, l.PriceVersion)
		}
		l.MicroUnits = new(big.Int)
		if l.Free {
			continue
		}
		start := end
		end = new(big.Int).Add(start, l.Amount)
		l.MicroUnits.Sub(l.Rated.Charge(end), l.Rated.Charge(start))
	}
	return nil
}

// Evaluate charges the lines of a feature, or else those of a price, by another price, and returns the cost of the selected lines by it:
// the sum, the number of lines, and their amount. The lines stay as they are.
func Evaluate(lines []ChargeLine, by *Price, selected func(*ChargeLine) bool) (cost, amount *big.Int, n int, err error) {
	another := PriceVersion{Key: by.Key, Version: by.Version}
	prices := map[PriceVersion]*Price{}
	for i := range lines {
		if l := &lines[i]; l.Rated != nil {
			prices[PriceVersion{l.Price, l.PriceVersion}] = l.Rated
		}
	}
	prices[another] = by
	rated := slices.Clone(lines)
	for i := range rated {
		if selected(&lines[i]) {
			rated[i].Price, rated[i].PriceVersion = another.Key, another.Version
		}
	}
	cost, amount = new(big.Int), new(big.Int)
	err = ChargeLines(rated, prices)
	for i := range rated {
		if err == nil && selected(&lines[i]) {
			cost.Add(cost, rated[i].MicroUnits)
			amount.Add(amount, rated[i].Amount)
			n++
		}
	}
	return cost, amount, n, err
}

// PricesOf lists the versions that lines name, each once.
func PricesOf(lines []ChargeLine) (list []PriceVersion) {
	for i := range lines {
		if v := (PriceVersion{lines[i].Price, lines[i].PriceVersion}); v.Key != "" && !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	return list
}

// Frozen returns the line as events store it.
func (l *ChargeLine) Frozen() events.FrozenCharge {
	f := events.FrozenCharge{Feature: l.Feature, SubscriptionID: l.SubscriptionID, Grant: l.Grant, Status: l.Status, From: l.From, To: l.To,
		Amount: l.Amount.String(), EventCount: l.EventCount}
	if l.Rated != nil {
		f.Price, f.PriceVersion, f.Currency, f.MicroUnits = l.Price, l.PriceVersion, l.Rated.Currency, l.MicroUnits.String()
	}
	return f
}

// ChargesHash returns the hex SHA-256 of a snapshot's charges: of a document in the form of RFC 8785, whose lines have the members of
// events.FrozenCharge.
func ChargesHash(lines []ChargeLine, of Closing, cut events.Position) (string, error) {
	list := make([]events.FrozenCharge, len(lines))
	for i := range lines {
		list[i] = lines[i].Frozen()
	}
	doc, err := json.Marshal(map[string]any{"cut": cut.String(), "lines": list, "periodKey": of.PeriodKey, "snapshot": of.Snapshot,
		"tenantId": of.TenantID})
	if err != nil {
		return "", fmt.Errorf("write the charges: %w", err)
	}
	canonical, fault := strictjson.Canonical(doc)
	if fault != nil {
		return "", fault
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}
