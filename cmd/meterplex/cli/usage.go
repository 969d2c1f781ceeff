package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// UsageCmd groups the usage commands.
type UsageCmd struct {
	Send    UsageSend    `cmd:"" help:"Send one usage event, or many from stdin."`
	Correct UsageCorrect `cmd:"" help:"Replace the amount of recorded usage."`
	Retract UsageRetract `cmd:"" help:"Take recorded usage back, for ever."`
	Import  UsageImport  `cmd:"" help:"Send the rows of a CSV file, each exactly once."`
	Export  UsageExport  `cmd:"" help:"Write usage events to stdout, as they can be sent."`
}

// Fresh holds the flags of a read that must include a position.
type Fresh struct {
	MinPosition string        `placeholder:"POSITION" help:"Answer once all events up to this position are in it, e.g. 17-4711."`
	Wait        time.Duration `default:"10s" placeholder:"DURATION" help:"How long to wait for --min-position, up to 30s (default 10s)."`
}

// add makes a request wait for the position.
func (f *Fresh) add(r *client.Request) {
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

// figureList reads all pages; the first page's position is valid for all of them.
func (l *call) figureList(a *app, limit string) (all figureList, err error) {
	all.Data = []json.RawMessage{}
	r, err := l.request(a)
	if err != nil {
		return all, err
	}
	r.Query.Set("limit", limit)
	err = a.pages(r, func(raw json.RawMessage) error {
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

// figures prints a list and its position: as a member if the format is JSON, else on
// stderr. A list of all tenants has no position; its first column is the tenant.
func figures(a *app, l *call, limit string, columns ...string) error {
	all, err := l.figureList(a, limit)
	if err != nil {
		return err
	}
	if a.flags.Output == "json" {
		raw, err := json.Marshal(all)
		if err != nil {
			return fmt.Errorf("write the figures: %w", err)
		}
		return a.object(raw)
	}
	if all.AsOfPosition == nil {
		columns = append([]string{"tenantId"}, columns...)
	}
	p := a.rows(columns...)
	for _, r := range all.Data {
		if err := p.Row(r); err != nil {
			return err
		}
	}
	if all.AsOfPosition != nil {
		a.report("As of position %s.", output.Printable(*all.AsOfPosition))
	}
	return p.Close()
}

const aggregatesHelp = `The figures of all tenants in May, with an operator key, as CSV:

    meterplex usage aggregates --period 2026-05 -o csv`

// aggregates prints the figures of a tenant, or of all.
func aggregates(a *app, l *call) error {
	return figures(a, l, largestPage, "feature", "periodKey", "amount", "eventCount", "lastEventAt", "subscriptionId")
}

// entitlements prints the features of a tenant.
func entitlements(a *app, l *call) error {
	return figures(a, l, "", "feature", "type", "allowed", "limit", "used", "held", "remaining", "limitBehavior", "resetAt")
}
