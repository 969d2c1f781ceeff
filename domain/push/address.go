package push

import (
	"cmp"
	"math/big"
	"slices"

	"github.com/meterplex/meterplex/events"
)

// Address is the meter of a customer at a billing provider.
type Address struct {
	Provider string `json:"provider" enum:"stripe" doc:"The billing provider."`
	Customer string `json:"customer" doc:"The provider's id of the customer."`
	Event    string `json:"event" doc:"The event name of the provider's meter."`
}

// Charge is the sum of a feature's pushes in a period to an address. Charges that follow the tenant's customer are no part of it, see
// Push.Follows; credits are.
type Charge struct {
	Address
	Amount *big.Int
}

// ChargesOf returns the sums of all pushes of a feature in a period, which are in the order in which they were stored, by address: that of
// the last charge first.
func ChargesOf(pushes []Push) (charged []Charge) {
	for _, credits := range []bool{false, true} {
		for _, p := range slices.Backward(pushes) {
			if p.Amount.Sign() < 0 != credits || !credits && p.Follows() {
				continue
			}
			i := slices.IndexFunc(charged, func(c Charge) bool { return c.Address == p.Address })
			if i < 0 {
				i, charged = len(charged), append(charged, Charge{p.Address, new(big.Int)})
			}
			charged[i].Amount.Add(charged[i].Amount, p.Amount)
		}
	}
	return charged
}

// splitPush returns the parts of an amount with their addresses. A credit goes to the addresses that are charged, the last one first, at
// most as much as each is charged: another customer would get the money of the one that paid. The rest of it, and a charge, goes to the
// tenant's customer.
func splitPush(amount *big.Int, charged []Charge, to Address) (parts []Charge) {
	rest := new(big.Int).Set(amount)
	for _, c := range charged {
		if rest.Sign() >= 0 {
			break
		}
		if c.Amount.Sign() <= 0 {
			continue
		}
		part := new(big.Int).Neg(c.Amount)
		if part.Cmp(rest) < 0 {
			part.Set(rest)
		}
		parts = append(parts, Charge{c.Address, part})
		rest.Sub(rest, part)
	}
	if rest.Sign() != 0 {
		parts = append(parts, Charge{to, rest})
	}
	return parts
}

// maxPush is the greatest amount of a push: providers accept 15 digits. maxPushParts bounds the pushes of an amount: beyond 10^17 the last
// part has the rest, which the provider refuses.
const (
	maxPush      = 1e15 - 1
	maxPushParts = 100
)

// inDigits splits parts that have too many digits for a provider.
func inDigits(parts []Charge) (fit []Charge) {
	for _, p := range parts {
		most := new(big.Int).Mul(big.NewInt(maxPush), big.NewInt(int64(p.Amount.Sign())))
		for p.Amount.CmpAbs(most) > 0 && len(fit) < maxPushParts-1 {
			fit = append(fit, Charge{p.Address, new(big.Int).Set(most)})
			p.Amount = new(big.Int).Sub(p.Amount, most)
		}
		fit = append(fit, p)
	}
	return fit
}

// Follows reports whether the tenant's customer and the feature's meter may replace those of the push: the provider surely has not counted
// it, and it waits for its first attempt or for an operator's retry.
func (p *Push) Follows() bool {
	return p.UnknownSince == nil && (p.State == StateFailed || p.State == StatePending && p.Attempts == 0)
}

// Readdress lets a push that follows go to the customer and the meter of now: those of a refused one may be wrong for ever. Charged are the
// charges of the push's feature and period; a credit stays with a customer that they charge as much.
func (p *Push) Readdress(to *events.Billing, event string, charged []Charge) {
	if !p.Follows() || to == nil || to.Provider != p.Provider {
		return
	}
	for _, c := range charged {
		if p.Amount.Sign() < 0 && c.Address == p.Address && c.Amount.Sign() >= 0 { // with the credit
			return
		}
	}
	p.Customer, p.Event = to.Customer, cmp.Or(event, p.Feature)
}
