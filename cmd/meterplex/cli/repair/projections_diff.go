package repair

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
	"github.com/meterplex/meterplex/projections/models"
)

// differing holds the flags of a difference that are not sent.
type differing struct {
	Events   []string `placeholder:"KEY" help:"Show the events that make these keys' difference instead; a key is TENANT/FEATURE/PERIOD."`
	ExitCode bool     `help:"Exit with 1 if the rebuild changes anything, 0 if not, 2 if the comparison failed."`
	app.Limit
}

// diffPage is a page of a difference.
type diffPage struct {
	Projection string            `json:"projection"`
	Data       []json.RawMessage `json:"data"`
	NextCursor *string           `json:"nextCursor,omitempty"`
	AsOf       json.RawMessage   `json:"asOfPositions,omitempty"`
	Totals     *diffTotals       `json:"totals"`
	Kept       json.RawMessage   `json:"conservation,omitempty"`
}

type diffTotals struct {
	Live      json.Number `json:"live,omitempty"`
	Rebuilt   json.Number `json:"rebuilt,omitempty"`
	Delta     json.Number `json:"delta,omitempty"`
	Keys      int64       `json:"keys"`
	Differing int64       `json:"differing"`

	DifferingClosed *int64 `json:"differingClosed,omitempty"`

	ByPeriod json.RawMessage `json:"byPeriod,omitempty"`
	ByTenant json.RawMessage `json:"byTenant,omitempty"`

	Charges         []chargeSum `json:"charges,omitempty"`
	ChargesByTenant []chargeSum `json:"chargesByTenant,omitempty"`
	Unpriced        *int        `json:"unpriced,omitempty"`
}

// showDiff prints the rows and their totals.
func showDiff(a *app.App, l *app.Call) error {
	c := app.FlagOf[differing](l, "Own")
	if len(c.Events) > 0 {
		return diffEvents(a, l.Last(), c.Events)
	}
	r, err := l.Request(a)
	if err != nil {
		return err
	}
	whole, err := readDiff(a, r, c.Limit.Limit)
	if err != nil {
		return app.CannotTell(err)
	}
	if err := printDiff(a, whole, r.Query.Get("priced") == "true"); err != nil {
		return err
	}
	return app.OrNo(!c.ExitCode || whole.Totals.Differing == 0)
}

// diff merges all pages of a difference into one, up to limit rows. The totals are from the first page's snapshot.
func readDiff(a *app.App, r client.Request, limit int) (*diffPage, error) {
	cl, err := a.NewClient()
	if err != nil {
		return nil, err
	}
	var whole *diffPage
	for {
		have := 0
		if whole != nil {
			have = len(whole.Data)
		}
		r.Query.Set("limit", strconv.Itoa(client.PageSize(limit-have, limit)))
		raw, err := cl.Do(a.Ctx, r)
		if err != nil {
			return nil, err
		}
		var page diffPage
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, fmt.Errorf("read a difference: %w", err)
		}
		if whole == nil {
			if page.Totals == nil {
				return nil, errors.New("the answer lacks the totals of the difference")
			}
			whole = &page
		} else {
			whole.Data = append(whole.Data, page.Data...)
		}
		if page.NextCursor == nil || len(whole.Data) == limit {
			whole.NextCursor = nil
			return whole, nil
		}
		r.Query.Set("cursor", *page.NextCursor)
	}
}

func printDiff(a *app.App, whole *diffPage, priced bool) error {
	if a.Flags.Output == "json" {
		raw, err := json.Marshal(whole)
		if err != nil {
			return fmt.Errorf("write a difference: %w", err)
		}
		return a.Object(raw)
	}
	columns, err := diffColumns(whole.Projection)
	if err != nil {
		return err
	}
	if priced {
		columns = append(columns, pricedColumns()...)
	}
	p := a.Rows(columns...)
	for _, row := range whole.Data {
		if priced && a.Flags.Output != "ndjson" {
			if row, err = withCharge(row); err != nil {
				return err
			}
		}
		if err := p.Row(row); err != nil {
			return err
		}
	}
	if err := p.Close(); err != nil {
		return err
	}
	a.Report("%s", whole.Totals.sentence())
	whole.Totals.reportClosed(a)
	whole.Totals.reportCharges(a)
	if holds, why := whole.conserved(); !holds {
		a.Report("CAUTION: %s", why)
	}
	return nil
}

// reportClosed says how many of the keys that differ are of closed periods.
func (t *diffTotals) reportClosed(a *app.App) {
	if t.DifferingClosed == nil || *t.DifferingClosed == 0 {
		return
	}
	of := "1 of them is of a closed period"
	if *t.DifferingClosed > 1 {
		of = fmt.Sprintf("%d of them are of closed periods", *t.DifferingClosed)
	}
	a.Report("%s: a promotion changes no frozen figure, and proposes adjustments instead.", of)
}

func (t *diffTotals) sentence() string {
	if t.Differing == 0 {
		return fmt.Sprintf("No difference in %s.", keys(t.Keys))
	}
	s := fmt.Sprintf("%d of %s differ", t.Differing, keys(t.Keys))
	if t.Live == "" {
		return s + "."
	}
	return fmt.Sprintf("%s; their sum goes from %s to %s (%s).", s, t.Live, t.Rebuilt, signed(t.Delta))
}

func keys(n int64) string {
	if n == 1 {
		return "1 key"
	}
	return fmt.Sprintf("%d keys", n)
}

func signed(n json.Number) string {
	if strings.HasPrefix(n.String(), "-") || n == "0" {
		return n.String()
	}
	return "+" + n.String()
}

// conserved reports whether every verdict is in exactly one place. Missing data means
// true, since not every projection counts verdicts.
func (p *diffPage) conserved() (bool, string) {
	var k *struct {
		Holds                               bool
		Verdicts, Counted, Parked, Withheld int64
	}
	if json.Unmarshal(p.Kept, &k) != nil || k == nil || k.Holds {
		return true, ""
	}
	return false, fmt.Sprintf("%d validated events are in the log, but %d are counted, %d parked and %d withheld.", k.Verdicts, k.Counted,
		k.Parked, k.Withheld)
}

// ProjectionsEvents shows the events behind keys.
type ProjectionsEvents struct {
	ID   string   `arg:"" help:"The rebuild's id."`
	Keys []string `arg:"" name:"figure" help:"TENANT/FEATURE/PERIOD, and /SUBSCRIPTION for one."`
}

// Run prints the events.
func (c *ProjectionsEvents) Run(a *app.App) error { return diffEvents(a, c.ID, c.Keys) }

// diffEvents prints the events that cause the differences of keys.
func diffEvents(a *app.App, id string, keys []string) error {
	cl, err := a.NewClient()
	if err != nil {
		return err
	}
	p := a.Rows("eventId", "position", "verdictPosition", "live", "rebuilt", "delta")
	for _, key := range keys {
		q, err := keyOf(key)
		if err != nil {
			return err
		}
		if err := keyEvents(a, cl, client.Path("rebuilds", id, "diff", "events"), key, q, p); err != nil {
			return app.CannotTell(err)
		}
	}
	return p.Close()
}

// keyEvents prints the events of one key, page by page.
func keyEvents(a *app.App, cl *client.Client, path, key string, q url.Values, p *output.Rows) error {
	q.Set("limit", "1000")
	for first := true; ; first = false {
		raw, err := cl.Get(a.Ctx, path, q)
		if err != nil {
			return err
		}
		var page struct {
			Data                          []json.RawMessage
			NextCursor                    *string
			Delta, Explained, Unexplained json.Number
			LiveFold, RebuiltFold, Note   string
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			return fmt.Errorf("read the events of a difference: %w", err)
		}
		for _, row := range page.Data {
			if err := p.Row(row); err != nil {
				return err
			}
		}
		if first {
			a.Report("%s: %s by %s instead of %s; events explain %s, and leave %s.", output.Printable(key), signed(page.Delta),
				page.RebuiltFold, page.LiveFold, page.Explained, page.Unexplained)
		}
		if page.Note != "" {
			a.Report("%s", output.Printable(page.Note))
		}
		if page.NextCursor == nil {
			return nil
		}
		q.Set("cursor", *page.NextCursor)
	}
}

var errNotAgreed = errors.New("billed figures change: give --yes if there is no terminal to ask on")

// confirmBilled asks for confirmation of a change of billed figures, and shows the amount.
func confirmBilled(a *app.App, id, what string, yes bool) error {
	if yes {
		return nil
	}
	raw, err := a.Get(client.Path("rebuilds", id, "diff"), url.Values{"limit": {"1"}})
	if err != nil {
		return err
	}
	var page diffPage
	if err := json.Unmarshal(raw, &page); err != nil || page.Totals == nil {
		return fmt.Errorf("the answer lacks the totals of the difference: %s", raw)
	}
	of, err := models.Definition(page.Projection)
	if err != nil || !of.Diff.Sums || page.Totals.Differing == 0 {
		return err
	}
	a.Report("%s", page.Totals.sentence())
	page.Totals.reportClosed(a)
	if holds, why := page.conserved(); !holds {
		a.Report("CAUTION: %s", why)
	}
	ok, err := a.Agreed(what + "?")
	switch {
	case errors.Is(err, app.ErrNoTerminal):
		return errNotAgreed
	case err != nil:
		return err
	case !ok:
		a.Report("No figure was changed.")
		return app.ErrNo
	}
	return nil
}
