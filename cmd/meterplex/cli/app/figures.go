package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// Fresh holds the flags of a read that must include a position.
type Fresh struct {
	MinPosition string        `placeholder:"POSITION" help:"Answer once all events up to this position are in it, e.g. 17-4711."`
	Wait        time.Duration `default:"10s" placeholder:"DURATION" help:"How long to wait for --min-position, up to 30s (default 10s)."`
}

// Add makes a request wait for the position.
func (f *Fresh) Add(r *client.Request) {
	if f.MinPosition != "" {
		r.Query.Set("minPosition", f.MinPosition)
		r.Header = http.Header{"Prefer": {fmt.Sprintf("wait=%d", int(f.Wait.Seconds()))}}
	}
}

// figureList is a list with the position that it reflects, a series also with the time.
type figureList struct {
	Data         []json.RawMessage `json:"data"`
	CompleteUpTo string            `json:"completeUpTo,omitempty"`
	AsOfPosition *string           `json:"asOfPosition"` // null: of all tenants
}

// FigureList reads all pages; the first page's position is valid for all of them.
func (l *Call) FigureList(a *App, limit string) (all figureList, err error) {
	all.Data = []json.RawMessage{}
	r, err := l.Request(a)
	if err != nil {
		return all, err
	}
	r.Query.Set("limit", limit)
	err = a.Pages(r, func(raw json.RawMessage) error {
		var page figureList
		if err := json.Unmarshal(raw, &page); err != nil {
			return fmt.Errorf("read the figures: %w", err)
		}
		all.Data = append(all.Data, page.Data...)
		if all.AsOfPosition == nil {
			all.AsOfPosition, all.CompleteUpTo = page.AsOfPosition, page.CompleteUpTo
		}
		return nil
	})
	return all, err
}

// Figures prints a list and its position: as a member if the format is JSON, else on
// stderr. A list of all tenants has no position; its first column is the tenant.
func Figures(a *App, l *Call, limit string, columns ...string) error {
	all, err := l.FigureList(a, limit)
	if err != nil {
		return err
	}
	if a.Flags.Output == "json" {
		raw, err := json.Marshal(all)
		if err != nil {
			return fmt.Errorf("write the figures: %w", err)
		}
		return a.Object(raw)
	}
	if all.AsOfPosition == nil {
		columns = append([]string{"tenantId"}, columns...)
	}
	p := a.Rows(columns...)
	for _, r := range all.Data {
		if err := p.Row(r); err != nil {
			return err
		}
	}
	if all.AsOfPosition != nil {
		a.Report("As of position %s.", output.Printable(*all.AsOfPosition))
	}
	return a.Close(p, NoRows)
}
