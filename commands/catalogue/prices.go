package catalogue

import (
	"context"
	"strconv"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// PutPrice defines a price, or its next version. A price with the same members makes no version. Versions never change.
func (c *Commands) PutPrice(ctx context.Context, req commands.Request, p domain.Price) (domain.Price, bool, error) {
	if err := CheckPrice(&p); err != nil {
		return p, false, err
	}
	return define(ctx, c, req, events.PriceDefined, func(tx Tx) (*domain.Price, error) { return tx.Price(p.Key) },
		func(_ Tx, old *domain.Price) (domain.Price, any, error) {
			if p.Version = 1; old != nil {
				if p.Version = old.Version; same(p, *old) {
					return p, nil, nil
				}
				p.Version++
			}
			return p, events.Price(p), nil
		})
}

// CheckPrice refuses a price that has a member which its model does not use: it would be ignored.
func CheckPrice(p *domain.Price) error {
	if !domain.IsKey(p.Key) {
		return domain.Refuse("price_key_invalid", "/key", "a price's key matches %s", domain.KeyForm)
	}
	if err := checkName(p.Name); err != nil {
		return err
	}
	if !domain.IsCurrency(p.Currency) {
		return domain.Refuse("currency_invalid", "/currency", "%q is no currency of ISO 4217 in upper case, e.g. EUR", p.Currency)
	}
	if err := commands.OneOf(p.Model, "model_invalid", "/model", domain.PriceFlat, domain.PricePerUnit, domain.PricePackage,
		domain.PriceGraduated, domain.PriceVolume); err != nil {
		return err
	}
	tiered := p.Model == domain.PriceGraduated || p.Model == domain.PriceVolume
	switch {
	case tiered && p.MicroUnits != nil:
		return domain.Refuse("micro_units_invalid", "/microUnits", "a %s price has microUnits in its tiers only", p.Model)
	case !tiered && p.MicroUnits == nil:
		return domain.Refuse("micro_units_invalid", "/microUnits", "a %s price needs microUnits", p.Model)
	case !tiered && len(p.Tiers) > 0:
		return domain.Refuse("tiers_invalid", "/tiers", "a %s price has no tiers", p.Model)
	case p.Model != domain.PricePackage && p.PackageSize != 0:
		return domain.Refuse("package_size_invalid", "/packageSize", "a %s price has no packages", p.Model)
	case p.Model == domain.PricePackage && (p.PackageSize < 1 || p.PackageSize > maxLimit):
		return domain.Refuse("package_size_invalid", "/packageSize", "a package has 1 to %d units", int64(maxLimit))
	}
	if tiered {
		return checkTiers(p.Tiers)
	}
	return checkMicroUnits(*p.MicroUnits, "/microUnits")
}

func checkMicroUnits(n int64, at string) error {
	if n < 0 || n > domain.MaxMicroUnits {
		return domain.Refuse("micro_units_invalid", at, "an amount of money is 0 to %d micro-units", int64(domain.MaxMicroUnits))
	}
	return nil
}

// checkTiers requires that the bounds rise and that only the last tier has no bound, so that each unit lies in one tier.
func checkTiers(tiers []events.PriceTier) error {
	if len(tiers) == 0 || len(tiers) > domain.MaxPriceTiers {
		return domain.Refuse("tiers_invalid", "/tiers", "the price needs 1 to %d tiers", domain.MaxPriceTiers)
	}
	below := int64(0)
	for i := range tiers {
		t, at, last := &tiers[i], "/tiers/"+strconv.Itoa(i), i == len(tiers)-1
		switch {
		case last && t.UpTo != nil:
			return domain.Refuse("up_to_invalid", at+"/upTo", "the last tier holds all further units: its upTo is null")
		case !last && t.UpTo == nil:
			return domain.Refuse("up_to_invalid", at+"/upTo", "only the last tier has no upTo")
		case !last && (*t.UpTo <= below || *t.UpTo > maxLimit):
			return domain.Refuse("up_to_invalid", at+"/upTo", "upTo is above that of the tier before, and at most %d", int64(maxLimit))
		case t.FlatMicroUnits < 0 || t.FlatMicroUnits > domain.MaxMicroUnits:
			return domain.Refuse("flat_micro_units_invalid", at+"/flatMicroUnits", "an amount of money is 0 to %d micro-units",
				int64(domain.MaxMicroUnits))
		}
		if err := checkMicroUnits(t.MicroUnits, at+"/microUnits"); err != nil {
			return err
		}
		if !last {
			below = *t.UpTo
		}
	}
	return nil
}
