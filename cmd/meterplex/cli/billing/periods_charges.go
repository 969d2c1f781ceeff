package billing

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

// chargesPage is a page of charges. Totals and Unpriced are of all pages.
type chargesPage struct {
	TenantID   string            `json:"tenantId"`
	PeriodKey  string            `json:"periodKey"`
	State      string            `json:"state"`
	Snapshot   *int              `json:"snapshot"`
	Basis      string            `json:"basis"`
	Data       []json.RawMessage `json:"data"`
	Totals     []ChargeTotal     `json:"totals"`
	Unpriced   int               `json:"unpriced"`
	AsOf       string            `json:"asOfPosition"`
	NextCursor *string           `json:"nextCursor"`
}

type ChargeTotal struct {
	Currency   string      `json:"currency"`
	MicroUnits json.Number `json:"microUnits"`
	Decimal    string      `json:"decimal"`
	Lines      int         `json:"lines"`
}

// charge is a line of the table, with the key of its price.
type charge struct {
	Feature        string          `json:"feature"`
	Status         string          `json:"status"`
	Amount         json.RawMessage `json:"amount"`
	Price          *priceKey       `json:"price"`
	Version        *int64          `json:"version"` // of the price
	Currency       *string         `json:"currency"`
	Decimal        *string         `json:"decimal"`
	MicroUnits     *json.Number    `json:"microUnits"`
	From           *string         `json:"from"`
	To             *string         `json:"to"`
	SubscriptionID string          `json:"subscriptionId"`
}

type priceKey struct {
	Key     string
	version int64
}

// UnmarshalJSON reads a price.
func (k *priceKey) UnmarshalJSON(raw []byte) error {
	var p struct {
		Key     string `json:"key"`
		Version int64  `json:"version"`
	}
	err := json.Unmarshal(raw, &p)
	k.Key, k.version = p.Key, p.Version
	return err
}

// MarshalJSON writes the key alone.
func (k priceKey) MarshalJSON() ([]byte, error) { return json.Marshal(k.Key) }

// showCharges prints the charges, then their totals.
func showCharges(a *app.App, l *app.Call) error {
	whole, err := readCharges(a, l)
	if err != nil {
		return err
	}
	if a.Flags.Output == "json" {
		raw, err := json.Marshal(whole)
		if err != nil {
			return fmt.Errorf("write charges: %w", err)
		}
		return a.Object(raw)
	}
	p := a.Rows("feature", "status", "amount", "price", "version", "currency", "decimal", "microUnits", "from", "to", "subscriptionId")
	for _, line := range whole.Data {
		var l charge
		if err := json.Unmarshal(line, &l); err != nil {
			return fmt.Errorf("read a charge: %w", err)
		}
		if l.Price != nil {
			l.Version = &l.Price.version
		}
		row, err := json.Marshal(l)
		if err != nil {
			return fmt.Errorf("write a charge: %w", err)
		}
		if err := p.Row(row); err != nil {
			return err
		}
	}
	if err := a.Close(p, noLines(l)); err != nil {
		return err
	}
	for _, t := range whole.Totals {
		a.Report("Total by %s amounts: %s %s.", whole.Basis, t.Decimal, t.Currency)
	}
	if whole.Unpriced > 0 {
		a.Report("%s without a price.", lines(whole.Unpriced))
	}
	return nil
}

// lines counts lines in words.
func lines(n int) string {
	if n == 1 {
		return "1 line"
	}
	return strconv.Itoa(n) + " lines"
}

// readCharges merges all pages into one. Totals are from the last page.
func readCharges(a *app.App, l *app.Call) (*chargesPage, error) {
	whole := &chargesPage{Data: []json.RawMessage{}}
	return whole, l.Pages(a, func(raw json.RawMessage) error {
		var page chargesPage
		if err := json.Unmarshal(raw, &page); err != nil {
			return fmt.Errorf("read charges: %w", err)
		}
		page.Data = append(whole.Data, page.Data...)
		*whole = page
		return nil
	})
}
