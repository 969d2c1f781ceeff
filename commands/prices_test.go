package commands

import (
	"reflect"
	"testing"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// priceTx fakes the port of prices.
type priceTx struct {
	planTx
	prices map[string]domain.Price
}

func (tx *priceTx) Price(key string) (*domain.Price, error) {
	return found(tx.prices, key)
}

func (tx *priceTx) SavePrice(p domain.Price) error {
	tx.prices[p.Key] = p
	return nil
}

func newPrices() (*Catalogue, *priceTx) {
	tx := &priceTx{newPlanTx(), map[string]domain.Price{}}
	transacted(tx.memory, &tx.prices)
	return catalogueOf(tx.memory, tx), tx
}

func perUnit(n int64) domain.Price {
	return domain.Price{Key: "p", Name: "P", Currency: "EUR", Model: domain.PricePerUnit, MicroUnits: &n}
}

func tiered(list ...domain.PriceTier) domain.Price {
	return domain.Price{Key: "p", Name: "P", Currency: "EUR", Model: domain.PriceVolume, Tiers: list}
}

func TestBadPricesAreRefused(t *testing.T) {
	with := func(change func(*domain.Price)) domain.Price {
		p := perUnit(5)
		change(&p)
		return p
	}
	upTo := func(n int64) domain.PriceTier { return domain.PriceTier{UpTo: &n, MicroUnits: 1} }
	last := domain.PriceTier{MicroUnits: 1}
	many := make([]domain.PriceTier, domain.MaxPriceTiers+1)
	for name, c := range map[string]struct {
		price         domain.Price
		code, pointer string
	}{
		"key":                 {with(func(p *domain.Price) { p.Key = "a b" }), "price_key_invalid", "/key"},
		"name":                {with(func(p *domain.Price) { p.Name = " " }), "name_invalid", "/name"},
		"currency":            {with(func(p *domain.Price) { p.Currency = "eur" }), "currency_invalid", "/currency"},
		"unknown currency":    {with(func(p *domain.Price) { p.Currency = "EUX" }), "currency_invalid", "/currency"},
		"model":               {with(func(p *domain.Price) { p.Model = "tiered" }), "model_invalid", "/model"},
		"no micro-units":      {with(func(p *domain.Price) { p.MicroUnits = nil }), "micro_units_invalid", "/microUnits"},
		"negative":            {perUnit(-1), "micro_units_invalid", "/microUnits"},
		"inexact":             {perUnit(1 << 53), "micro_units_invalid", "/microUnits"},
		"packages":            {with(func(p *domain.Price) { p.PackageSize = 1 }), "package_size_invalid", "/packageSize"},
		"no package":          {with(func(p *domain.Price) { p.Model = domain.PricePackage }), "package_size_invalid", "/packageSize"},
		"negative package":    {with(func(p *domain.Price) { p.Model, p.PackageSize = domain.PricePackage, -1 }), "package_size_invalid", "/packageSize"},
		"tiers of per_unit":   {with(func(p *domain.Price) { p.Tiers = []domain.PriceTier{last} }), "tiers_invalid", "/tiers"},
		"no tiers":            {tiered(), "tiers_invalid", "/tiers"},
		"too many tiers":      {tiered(many...), "tiers_invalid", "/tiers"},
		"micro-units beside":  {with(func(p *domain.Price) { p.Model, p.Tiers = domain.PriceVolume, []domain.PriceTier{last} }), "micro_units_invalid", "/microUnits"},
		"bounded last tier":   {tiered(upTo(1), upTo(2)), "up_to_invalid", "/tiers/1/upTo"},
		"unbounded first":     {tiered(last, last), "up_to_invalid", "/tiers/0/upTo"},
		"bounds do not rise":  {tiered(upTo(2), upTo(2), last), "up_to_invalid", "/tiers/1/upTo"},
		"no unit in the tier": {tiered(upTo(0), last), "up_to_invalid", "/tiers/0/upTo"},
		"negative rate":       {tiered(domain.PriceTier{MicroUnits: -1}), "micro_units_invalid", "/tiers/0/microUnits"},
		"negative flat":       {tiered(domain.PriceTier{FlatMicroUnits: -1}), "flat_micro_units_invalid", "/tiers/0/flatMicroUnits"},
	} {
		t.Run(name, func(t *testing.T) {
			catalogue, tx := newPrices()
			_, _, err := catalogue.PutPrice(t.Context(), Request{By: operator}, c.price)
			tx.refused(t, err, c.code, c.pointer)
		})
	}
}

// An equal price is no change: the log has an event for each change only.
func TestAPriceIsDefinedAndChanged(t *testing.T) {
	catalogue, tx := newPrices()
	for _, c := range []struct {
		price   domain.Price
		created bool
		events  int
	}{{perUnit(5), true, 1}, {perUnit(5), false, 1}, {perUnit(6), false, 2}, {tiered(domain.PriceTier{MicroUnits: 7}), false, 3}} {
		got, created, err := catalogue.PutPrice(t.Context(), Request{By: operator}, c.price)
		event := tx.succeeded(t, err, c.events)
		if !reflect.DeepEqual(got, c.price) || created != c.created || !reflect.DeepEqual(tx.prices["p"], c.price) {
			t.Errorf("%+v, created %v, saved %+v", got, created, tx.prices["p"])
		}
		if stored := payload[events.Price](t, &event); !reflect.DeepEqual(stored, c.price.Payload()) || event.Subject != events.PriceDefined {
			t.Errorf("recorded %+v", stored)
		}
	}
}

// An entitlement names a price that is defined, of a feature that counts an amount; a subscription's snapshot keeps the name.
func TestAPlanNamesPricesThatAreDefined(t *testing.T) {
	catalogue, tx := newPrices()
	tx.prices["known"] = perUnit(1)
	for price, code := range map[string]string{"none": "price_not_found", "a b": "price_invalid", "known": ""} {
		_, _, err := catalogue.PutPlan(t.Context(), Request{By: operator}, domain.Plan{Key: "p", Name: "P", Entitlements: []domain.Entitlement{{Feature: "calls", Price: price}}})
		if code != "" {
			refusedWith(t, err, code, "/entitlements/0/price")
		} else if err != nil || tx.plans["p"].Entitlements[0].Price != price {
			t.Errorf("%s: %v, saved %+v", price, err, tx.plans)
		}
	}
	_, _, err := catalogue.PutPlan(t.Context(), Request{By: operator}, domain.Plan{Key: "q", Name: "Q", Entitlements: []domain.Entitlement{{Feature: "sso", Price: "known"}}})
	refusedWith(t, err, "price_invalid", "/entitlements/0/price")
	tx.succeeded(t, nil, 1)
}
