package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// UsageCmd groups the usage commands.
type UsageCmd struct {
	Send       UsageSend       `cmd:"" help:"Send one usage event, or many from stdin."`
	Correct    UsageCorrect    `cmd:"" help:"Replace the amount of recorded usage."`
	Retract    UsageRetract    `cmd:"" help:"Take recorded usage back, for ever."`
	Import     UsageImport     `cmd:"" help:"Send the rows of a CSV file, each exactly once."`
	Export     UsageExport     `cmd:"" help:"Write usage events to stdout, as they can be sent."`
	Aggregates UsageAggregates `cmd:"" help:"Show the billing figures."`
	Series     UsageSeries     `cmd:"" help:"Show usage by the hour, day or month."`
	Explain    UsageExplain    `cmd:"" help:"Show the events behind a billing figure."`
	Receipt    UsageReceipt    `cmd:"" help:"Show the status of one event."`
	List       UsageList       `cmd:"" help:"List usage events with their status."`
	Conflicts  UsageConflicts  `cmd:"" help:"List events that were sent again with another payload."`
	Refusals   UsageRefusals   `cmd:"" help:"List usage that was refused and is not billed, by code and feature."`
}

// Fresh holds the flags of a read that must include a position.
type Fresh struct {
	MinPosition string        `placeholder:"POSITION" help:"Answer once all events up to this position are in it, e.g. 17-4711."`
	Wait        time.Duration `default:"10s" placeholder:"DURATION" help:"How long to wait for --min-position, up to 30s (default 10s)."`
}

func (f *Fresh) read(a *app, c *client.Client, path string, query url.Values, cursor string) (json.RawMessage, error) {
	r := client.Request{Method: http.MethodGet, Path: path, Query: url.Values{"cursor": {cursor}}}
	for name, values := range query {
		r.Query[name] = values
	}
	if f.MinPosition != "" {
		r.Query.Set("minPosition", f.MinPosition)
		r.Header = http.Header{"Prefer": {fmt.Sprintf("wait=%d", int(f.Wait.Seconds()))}}
	}
	return c.Do(a.ctx, r)
}

// figureList is a list with the position that it reflects, a series also with the time.
type figureList struct {
	Data         []json.RawMessage `json:"data"`
	CompleteUpTo string            `json:"completeUpTo,omitempty"`
	AsOfPosition *string           `json:"asOfPosition"` // null: of all tenants
}

// all reads all pages; the first page's position is valid for all of them.
func (f *Fresh) all(a *app, path string, query url.Values) (figureList, error) {
	all := figureList{Data: []json.RawMessage{}}
	c, err := a.newClient()
	if err != nil {
		return all, err
	}
	for cursor := ""; ; {
		raw, err := f.read(a, c, path, query, cursor)
		if err != nil {
			return all, err
		}
		var page struct {
			figureList
			NextCursor string
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			return all, fmt.Errorf("read the figures: %w", err)
		}
		all.Data = append(all.Data, page.Data...)
		if all.AsOfPosition == nil {
			all.AsOfPosition, all.CompleteUpTo = page.AsOfPosition, page.CompleteUpTo
		}
		if cursor = page.NextCursor; cursor == "" {
			return all, nil
		}
	}
}

// figures prints a list and its position: as a member if the format is JSON, else on
// stderr. A list of all tenants has no position; its first column is the tenant.
func (f *Fresh) figures(a *app, path string, query url.Values, columns ...string) error {
	all, err := f.all(a, path, query)
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

// UsageAggregates shows figures.
type UsageAggregates struct {
	Feature  string `placeholder:"KEY" help:"Of one feature."`
	Period   string `placeholder:"PERIOD" help:"Of one period: 2026-05, 2026 or lifetime. Required for all tenants."`
	TenantID string `placeholder:"ID" aliases:"tenant" help:"Of this tenant. Without it, an operator key gets the figures of all tenants."`
	Test     bool   `name:"include-test" help:"Of all tenants: with test tenants."`
	KnownAt
	Fresh
}

// figuresPage is the largest page: a list of all tenants may have many.
const figuresPage = "1000"

// Help returns the long help text.
func (UsageAggregates) Help() string {
	return `The figures of all tenants in May, with an operator key, as CSV:

    meterplex usage aggregates --period 2026-05 -o csv`
}

// Run prints the rows.
func (c *UsageAggregates) Run(a *app) error {
	q := c.KnownAt.add(url.Values{"feature": {c.Feature}, "period": {c.Period}, "tenantId": {c.TenantID}, "limit": {figuresPage}})
	if c.Test {
		q.Set("includeTest", "true")
	}
	return c.figures(a, "/usage/aggregates", q, "feature", "periodKey", "amount", "eventCount", "lastEventAt", "subscriptionId")
}

// UsageReceipt shows the path of an event through the service.
type UsageReceipt struct {
	EventID  string `arg:"" help:"The producer's event id."`
	TenantID string `placeholder:"ID" aliases:"tenant" help:"Of this tenant; operator keys have to name one."`
}

// Run prints the receipt.
func (c *UsageReceipt) Run(a *app) error {
	return a.show(client.Path("usage", "events", c.EventID), url.Values{"tenantId": {c.TenantID}})
}

// UsageList lists usage events.
type UsageList struct {
	Feature  string `placeholder:"KEY" help:"Of one feature."`
	Status   string `placeholder:"STATUS" help:"PENDING, VALIDATED, AGGREGATED, REJECTED or DEAD_LETTERED."`
	From     string `placeholder:"TIME" help:"Of usage at or after this time (its timestamp), RFC 3339."`
	To       string `placeholder:"TIME" help:"Of usage before this time (its timestamp), RFC 3339."`
	TenantID string `placeholder:"ID" aliases:"tenant" help:"Of this tenant; operator keys have to name one."`
	Limit
}

// Run prints the rows.
func (c *UsageList) Run(a *app) error {
	q := url.Values{"feature": {c.Feature}, "status": {c.Status}, "from": {c.From}, "to": {c.To}, "tenantId": {c.TenantID}}
	return a.list("/usage/events", q, c.Limit.Limit, "position", "recordedAt", "eventId", "type", "feature", "amount", "timestamp", "status", "code")
}

// UsageConflicts lists payload conflicts.
type UsageConflicts struct {
	TenantID string `placeholder:"ID" aliases:"tenant" help:"Of this tenant; operator keys have to name one."`
	Limit
}

// Run prints the rows.
func (c *UsageConflicts) Run(a *app) error {
	return a.list("/usage/conflicts", url.Values{"tenantId": {c.TenantID}}, c.Limit.Limit, "at", "eventId", "position", "firstPosition", "firstHash", "conflictHash")
}

// UsageRefusals lists groups of refused usage.
type UsageRefusals struct {
	Code     string `placeholder:"CODE" help:"Of one code, e.g. feature_not_found."`
	Feature  string `placeholder:"KEY" help:"Of one feature."`
	TenantID string `placeholder:"ID" aliases:"tenant" help:"Of this tenant. Without it, an operator key gets those of all tenants."`
	Test     bool   `name:"include-test" help:"Of all tenants: with test tenants."`
	Limit
}

// Run prints the rows.
func (c *UsageRefusals) Run(a *app) error {
	q := url.Values{"code": {c.Code}, "feature": {c.Feature}, "tenantId": {c.TenantID}}
	if c.Test {
		q.Set("includeTest", "true")
	}
	return a.list("/usage/refusals", q, c.Limit.Limit, "last", "tenantId", "code", "feature", "count", "first")
}
