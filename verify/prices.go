package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// priceTerms are the members of a price.
type priceTerms struct {
	Key, Name, Currency, Model string
	MicroUnits                 json.Number
	Version                    int64
	PackageSize                int64
	Tiers                      []priceTier
}

type priceTier struct {
	UpTo                       *int64
	MicroUnits, FlatMicroUnits json.Number
}

// String lists the members, so that two prices with the same members have the same text.
func (p *priceTerms) String() string {
	text := fmt.Sprintf("%q %s %s %s of %d", p.Name, p.Currency, p.Model, p.MicroUnits, p.PackageSize)
	for _, t := range p.Tiers {
		upTo, flat := "", string(t.FlatMicroUnits)
		if t.UpTo != nil {
			upTo = strconv.FormatInt(*t.UpTo, 10)
		}
		if flat == "" {
			flat = "0"
		}
		text += fmt.Sprintf(", up to %s: %s and %s", upTo, t.MicroUnits, flat)
	}
	return text
}

// addPrice notes the versions of a price.
func (x *pass) addPrice(r *row, _ *content, _ error) {
	if r.subject != priceDefined {
		return
	}
	var p priceTerms
	if err := json.Unmarshal(r.body, &p); err != nil {
		x.prices.fault("%s cannot be read: %v", x.at(r.position), err)
		return
	}
	x.priceOf[priceVersion{p.Key, p.Version}] = &p
}

// priceVersion names a version of a price.
type priceVersion struct {
	key     string
	version int64
}

const pricesSQL = `SELECT key, version, name, currency, model, coalesce(micro_units::text, ''), package_size, tiers FROM prices`

// comparePrices compares the versions of prices with those in the log. They belong to no tenant: their events are in partition 0.
func (x *pass) comparePrices(ctx context.Context, tx pgx.Tx) error {
	if x.p != 0 {
		return nil
	}
	var is priceTerms
	var tiers []byte
	seen := map[priceVersion]bool{}
	err := each(ctx, tx, pricesSQL, nil, []any{&is.Key, &is.Version, &is.Name, &is.Currency, &is.Model, &is.MicroUnits, &is.PackageSize, &tiers}, func() error {
		seen[priceVersion{is.Key, is.Version}], is.Tiers = true, nil
		if err := json.Unmarshal(tiers, &is.Tiers); err != nil {
			x.prices.fault("the tiers of the price %.60q cannot be read: %v", is.Key, err)
			return nil
		}
		x.comparePrice(&is)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the prices: %w", err)
	}
	for v := range x.priceOf {
		x.prices.expect(seen[v], "version %d of the price %.60q of the log is not in the table", v.version, v.key)
	}
	return nil
}

func (x *pass) comparePrice(is *priceTerms) {
	x.prices.n++
	switch was := x.priceOf[priceVersion{is.Key, is.Version}]; {
	case was == nil:
		x.prices.fault("version %d of the price %.60q is not in the log", is.Version, is.Key)
	default:
		x.prices.expect(is.String() == was.String(), "version %d of the price %.60q is %.300s, in the log %.300s", is.Version, is.Key, is, was)
	}
}
