package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// PricesCmd groups the prices commands.
type PricesCmd struct {
	Put      PricesPut      `cmd:"" help:"Create or change a price."`
	List     PricesList     `cmd:"" help:"List the prices."`
	Show     PricesShow     `cmd:"" help:"Show one price."`
	Evaluate PricesEvaluate `cmd:"" help:"Show what a period costs each tenant by another price."`
	Versions PricesVersions `cmd:"" help:"List the versions of a price."`
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
	return a.list("/prices", nil, c.Limit.Limit, "key", "version", "name", "currency", "model", "microUnits", "packageSize", "tiers")
}

// PricesEvaluate shows what a period costs by another price.
type PricesEvaluate struct {
	PriceKey string `arg:"" optional:"" name:"price" help:"A defined price; --file for one that is not."`
	Version  *int64 `placeholder:"N" help:"Its version (default: the current one)."`
	File     string `placeholder:"FILE" help:"Read {\"currency\":…,\"model\":…} from a JSON file; needs --feature."`
	Period   string `required:"" placeholder:"KEY" help:"A month, a year or lifetime."`
	Feature  string `placeholder:"KEY" help:"The feature whose lines are evaluated (default: those of the price)."`
	Tenant   string `placeholder:"ID" help:"Of this tenant only."`
	Position string `placeholder:"POSITION" help:"The usage as known at a position; needs --tenant."`
	Rebuild  string `placeholder:"ID" help:"The figures of a rebuild of usage_aggregates."`
}

// Run prints the tenants, all pages.
func (c *PricesEvaluate) Run(a *app) error {
	body := map[string]any{"periodKey": c.Period}
	for name, text := range map[string]string{"priceKey": c.PriceKey, "feature": c.Feature, "tenantId": c.Tenant, "position": c.Position, "rebuildId": c.Rebuild} {
		if text != "" {
			body[name] = text
		}
	}
	if c.Version != nil {
		body["version"] = *c.Version
	}
	if c.File != "" {
		text, err := os.ReadFile(c.File)
		if err != nil {
			return fmt.Errorf("read the price: %w", err)
		}
		body["price"] = json.RawMessage(text)
	}
	return c.print(a, body)
}

// evaluatedPage is a page of an evaluation.
type evaluatedPage struct {
	Data []struct {
		TenantID string      `json:"tenantId"`
		Basis    string      `json:"basis"`
		Amount   json.Number `json:"amount"`
		evaluated
	} `json:"data"`
	Totals *struct {
		Tenants int `json:"tenants"`
		evaluated
	} `json:"totals"`
	NextCursor *string `json:"nextCursor"`
}

// evaluated is what lines are charged, and what they cost by the price.
type evaluated struct {
	Charged   []chargeTotal `json:"charged"`
	Evaluated chargeTotal   `json:"evaluated"`
	Delta     *money        `json:"delta"`
}

func (e *evaluated) texts() (charged, by string, delta *string) {
	for i, t := range e.Charged {
		charged += strings.Repeat(", ", min(i, 1)) + t.Decimal + " " + t.Currency
	}
	if e.Delta != nil {
		delta = &e.Delta.Decimal
	}
	return charged, e.Evaluated.Decimal + " " + e.Evaluated.Currency, delta
}

// evaluatedRow is a line of the table.
type evaluatedRow struct {
	TenantID  string      `json:"tenantId"`
	Basis     string      `json:"basis"`
	Amount    json.Number `json:"amount"`
	Charged   string      `json:"charged"`
	Evaluated string      `json:"evaluated"`
	Delta     *string     `json:"delta"`
}

func (c *PricesEvaluate) print(a *app, body map[string]any) error {
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	p := a.rows("tenantId", "basis", "amount", "charged", "evaluated", "delta")
	totals := ""
	for path := "/prices/evaluate?limit=1000"; path != ""; {
		raw, err := cl.Post(a.ctx, path, "", body)
		if err != nil {
			return err
		}
		var page evaluatedPage
		if err := json.Unmarshal(raw, &page); err != nil {
			return fmt.Errorf("read an evaluation: %w", err)
		}
		if t := page.Totals; t != nil {
			charged, by, delta := t.texts()
			totals = fmt.Sprintf("All tenants (%d): charged %s, evaluated %s", t.Tenants, cmp.Or(charged, "nothing"), by)
			if delta != nil {
				totals += ", difference " + *delta
			}
		}
		for _, e := range page.Data {
			row := evaluatedRow{TenantID: e.TenantID, Basis: e.Basis, Amount: e.Amount}
			row.Charged, row.Evaluated, row.Delta = e.texts()
			line, err := json.Marshal(row)
			if err != nil {
				return fmt.Errorf("write an evaluation: %w", err)
			}
			if err := p.Row(line); err != nil {
				return err
			}
		}
		if path = ""; page.NextCursor != nil {
			path = "/prices/evaluate?limit=1000&cursor=" + url.QueryEscape(*page.NextCursor)
		}
	}
	if err := p.Close(); err != nil || totals == "" {
		return err
	}
	a.report("%s.", totals)
	return nil
}

// PricesVersions lists the versions of a price.
type PricesVersions struct {
	PriceKey string `arg:"" name:"price" help:"Its key."`
	Limit
}

// Run prints the rows.
func (c *PricesVersions) Run(a *app) error {
	return a.list(client.Path("prices", c.PriceKey, "versions"), nil, c.Limit.Limit, "version", "name", "currency", "model", "microUnits", "packageSize", "tiers")
}

// PricesShow shows a price.
type PricesShow struct {
	PriceKey string `arg:"" name:"price" help:"Its key."`
}

// Run prints the price.
func (c *PricesShow) Run(a *app) error { return a.show(client.Path("prices", c.PriceKey), nil) }
