package usage

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// explaining holds the flags of an explanation that are not sent as they are.
type explaining struct {
	Limit    int  `placeholder:"N" help:"Maximum number of events; 0, the default, means all. Only all of them prove the figure."`
	Rejected bool `help:"Show the events that are not in the figure instead, with the reasons."`
}

const explainHelp = `Prints each event that the figure is the sum of, with the running sum; the figure and whether it adds up go to
stderr. Exit code 1: it does not add up. With --rejected it reads one page, which proves that only for a figure of up to 1,000 events.`

// explanation is a page in the API's form.
type explanation struct {
	Total        json.Number       `json:"total"`
	EventCount   int64             `json:"eventCount"`
	Adds         bool              `json:"adds"`
	AsOfPosition string            `json:"asOfPosition"`
	Data         []json.RawMessage `json:"data"`
	NextCursor   *string           `json:"nextCursor"`
	Rejected     []json.RawMessage `json:"rejected,omitempty"`
	RejectedMore bool              `json:"rejectedMore,omitempty"`
}

// explain prints the rows.
func explain(a *app.App, l *app.Call) error {
	c := app.FlagOf[explaining](l, "Own")
	cl, err := a.NewClient()
	if err != nil {
		return err
	}
	r, err := l.Request(a)
	if err != nil {
		return err
	}
	q := r.Query
	q.Set("limit", strconv.Itoa(client.PageSize(c.Limit, c.Limit)))
	columns := []string{"position", "eventId", "kind", "amount", "count", "runningTotal", "timestamp", "recordedAt", "verdictPosition"}
	if c.Rejected {
		q.Set("include", "rejected")
		columns = []string{"position", "eventId", "status", "code", "reason", "timestamp", "verdictPosition"}
	}
	p := a.Rows(columns...)
	seen := 0
	for cursor := ""; ; {
		q.Set("cursor", cursor)
		raw, err := cl.Do(a.Ctx, r)
		if err != nil {
			return err
		}
		var e explanation
		if err := json.Unmarshal(raw, &e); err != nil {
			return fmt.Errorf("read the explanation: %w", err)
		}
		rows := e.Data
		if c.Rejected {
			rows = e.Rejected
		}
		cut := e.NextCursor != nil
		if c.Limit > 0 && len(rows) > c.Limit-seen {
			rows, cut = rows[:c.Limit-seen], true
		}
		for _, r := range rows {
			seen++
			if err := p.Row(r); err != nil {
				return err
			}
		}
		if !cut || c.Rejected || c.Limit > 0 && seen == c.Limit {
			return c.conclude(a, p, &e, seen, cut)
		}
		cursor = *e.NextCursor
	}
}

// conclude reports the figure; cut says that more events than the listed ones belong to it.
func (c *explaining) conclude(a *app.App, p *output.Rows, e *explanation, seen int, cut bool) error {
	if err := p.Close(); err != nil {
		return err
	}
	if e.RejectedMore {
		a.Report("There may be more than is listed.")
	}
	if !e.Adds {
		a.Report("The figure is %s of %d events, as of position %s: the events do NOT add up to it.", e.Total, e.EventCount,
			output.Printable(e.AsOfPosition))
		return app.ErrNo
	}
	if !c.Rejected && cut {
		a.Report("The figure is %s of %d events, as of position %s. The first %d of %d events are listed; without --limit all of them "+
			"are read, to see whether they add up.",
			e.Total, e.EventCount, output.Printable(e.AsOfPosition), seen, e.EventCount)
		return nil
	}
	if e.NextCursor != nil { // with --rejected one page is read
		a.Report("The figure is %s of %d events, as of position %s; without --rejected all of them are read, to see whether they "+
			"add up to it.", e.Total, e.EventCount, output.Printable(e.AsOfPosition))
		return nil
	}
	a.Report("The figure is %s of %d events, as of position %s; the events add up to it.", e.Total, e.EventCount,
		output.Printable(e.AsOfPosition))
	return nil
}
