package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// PricesCmd groups the prices commands.
type PricesCmd struct {
	Put  PricesPut  `cmd:"" help:"Create or change a price."`
	List PricesList `cmd:"" help:"List the prices."`
	Show PricesShow `cmd:"" help:"Show one price."`
}

// PricesPut creates or changes a price.
type PricesPut struct {
	PriceKey    string   `arg:"" name:"price" help:"Its key, as entitlements of plans name it."`
	Name        string   `placeholder:"TEXT" help:"Its name."`
	Currency    string   `placeholder:"CODE" help:"The currency's code by ISO 4217, e.g. EUR."`
	Model       string   `placeholder:"MODEL" help:"flat, per_unit, package, graduated or volume."`
	MicroUnits  *int64   `placeholder:"N" help:"The price, of a unit or of a package: millionths of the currency's unit."`
	PackageSize int64    `placeholder:"N" help:"Units in a package."`
	Tiers       []string `name:"tier" sep:"none" placeholder:"UPTO=MICROUNITS,…" help:"A tier of graduated or volume; may be repeated."`
	File        string   `placeholder:"FILE" help:"Read {\"name\":…,\"currency\":…,\"model\":…} from a JSON file instead."`
	Because
}

// Help returns the long help text.
func (PricesPut) Help() string {
	return `Money is in micro-units: 1 EUR is 1000000.

    prices put seat --name Seat --currency EUR --model per_unit --micro-units 12000000
    prices put tokens --name Tokens --currency USD --model package --package-size 1000000 --micro-units 150000
    prices put calls --name Calls --currency EUR --model graduated --tier 1000=0 --tier 10000=500 --tier rest=300,2000000

A tier is written with its last unit, the micro-units of each of its units, and the micro-units of the tier, if it has some. The last tier is rest. docs/prices.md explains the models.`
}

// Run prints the price.
func (c *PricesPut) Run(a *app) error {
	path := client.Path("prices", c.PriceKey)
	if c.File != "" {
		if c.Name != "" || c.Currency != "" || c.Model != "" || c.MicroUnits != nil || c.PackageSize != 0 || len(c.Tiers) > 0 {
			return errors.New("give --file, or the members of the price, not both")
		}
		text, err := os.ReadFile(c.File)
		if err != nil {
			return fmt.Errorf("read the price: %w", err)
		}
		if !json.Valid(text) {
			return fmt.Errorf("%s is not JSON", c.File)
		}
		return a.change(http.MethodPut, path, json.RawMessage(text))
	}
	if c.Name == "" || c.Currency == "" || c.Model == "" {
		return errors.New("a price needs a --name, a --currency and a --model")
	}
	body := client.Price{Name: c.Name, Currency: c.Currency, Model: c.Model, MicroUnits: c.MicroUnits, PackageSize: c.PackageSize}
	for _, text := range c.Tiers {
		t, err := parseTier(text)
		if err != nil {
			return err
		}
		body.Tiers = append(body.Tiers, t)
	}
	return a.change(http.MethodPut, path, body)
}

// parseTier parses upTo=microUnits,flatMicroUnits; the service validates the numbers.
func parseTier(text string) (t client.PriceTier, err error) {
	wrong := fmt.Errorf("tier %q: expected the last unit or rest, and micro-units, e.g. 1000=500 or rest=300,2000000", text)
	bound, rate, found := strings.Cut(text, "=")
	unit, flat, hasFlat := strings.Cut(rate, ",")
	if !found {
		return t, wrong
	}
	if bound != "rest" {
		upTo, err := strconv.ParseInt(bound, 10, 64)
		if err != nil {
			return t, wrong
		}
		t.UpTo = &upTo
	}
	if t.MicroUnits, err = strconv.ParseInt(unit, 10, 64); err != nil {
		return t, wrong
	}
	if hasFlat {
		if t.FlatMicroUnits, err = strconv.ParseInt(flat, 10, 64); err != nil {
			return t, wrong
		}
	}
	return t, nil
}

// PricesList lists prices.
type PricesList struct{ Limit }

// Run prints the rows.
func (c *PricesList) Run(a *app) error {
	return a.list("/prices", nil, c.Limit.Limit, "key", "name", "currency", "model", "microUnits", "packageSize", "tiers")
}

// PricesShow shows a price.
type PricesShow struct {
	PriceKey string `arg:"" name:"price" help:"Its key."`
}

// Run prints the price.
func (c *PricesShow) Run(a *app) error { return a.show(client.Path("prices", c.PriceKey), nil) }
