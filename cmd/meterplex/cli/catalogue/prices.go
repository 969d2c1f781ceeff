package catalogue

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/cli/billing"
)

// priceTier is a tier of a price; UpTo is nil in the last.
type priceTier struct {
	UpTo           *int64 `json:"upTo,omitempty"`
	MicroUnits     int64  `json:"microUnits"`
	FlatMicroUnits int64  `json:"flatMicroUnits,omitempty"`
}

// parseTier parses upTo=microUnits,flatMicroUnits; the service validates the numbers.
func parseTier(text string) (any, error) {
	var t priceTier
	wrong := fmt.Errorf("tier %q: expected the last unit or rest, and micro-units, e.g. 1000=500 or rest=300,2000000", text)
	bound, rate, found := strings.Cut(text, "=")
	unit, flat, hasFlat := strings.Cut(rate, ",")
	if !found {
		return nil, wrong
	}
	if bound != "rest" {
		upTo, err := strconv.ParseInt(bound, 10, 64)
		if err != nil {
			return nil, wrong
		}
		t.UpTo = &upTo
	}
	var err error
	if t.MicroUnits, err = strconv.ParseInt(unit, 10, 64); err != nil {
		return nil, wrong
	}
	if hasFlat {
		if t.FlatMicroUnits, err = strconv.ParseInt(flat, 10, 64); err != nil {
			return nil, wrong
		}
	}
	return t, nil
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
}

// evaluated holds the charges of lines, and their cost by the price.
type evaluated struct {
	Charged   []billing.ChargeTotal     `json:"charged"`
	Evaluated billing.ChargeTotal       `json:"evaluated"`
	Delta     *struct{ Decimal string } `json:"delta"`
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

// printEvaluation prints the tenants of all pages, then their totals.
func printEvaluation(a *app.App, l *app.Call) error {
	p := a.Rows("tenantId", "basis", "amount", "charged", "evaluated", "delta")
	totals := ""
	err := l.Pages(a, func(raw json.RawMessage) error {
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
		return nil
	})
	if err == nil {
		err = p.Close()
	}
	if err != nil || totals == "" {
		return err
	}
	a.Report("%s.", totals)
	return nil
}

const pricesHelp = `Money is in micro-units: 1 EUR is 1000000.

    prices put seat --name Seat --currency EUR --model per_unit --micro-units 12000000
    prices put tokens --name Tokens --currency USD --model package --package-size 1000000 --micro-units 150000
    prices put calls --name Calls --currency EUR --model graduated --tier 1000=0 --tier 10000=500 --tier rest=300,2000000

A tier is written with its last unit, the micro-units of each of its units, and the micro-units of the tier, if it has some. The last
tier is rest. docs/reference/prices.md explains the models.`
