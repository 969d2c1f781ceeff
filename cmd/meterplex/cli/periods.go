package cli

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// PeriodsCmd groups the periods commands.
type PeriodsCmd struct {
	List        PeriodsListCmd        `cmd:"" help:"List the periods of a tenant, newest first."`
	Show        PeriodsShowCmd        `cmd:"" help:"Show a period with its frozen and its live figures."`
	Close       PeriodsCloseCmd       `cmd:"" help:"Close a period: freeze its figures."`
	Reopen      PeriodsReopenCmd      `cmd:"" help:"Reopen a closed period; its snapshot is kept."`
	Adjustments PeriodsAdjustmentsCmd `cmd:"" help:"List the adjustments of a period."`
	Charges     PeriodsChargesCmd     `cmd:"" help:"Show what a period costs, by the prices of the present."`
	Export      PeriodsExportCmd      `cmd:"" help:"Write all lines and adjustments of a period as JSON, or its lines as CSV."`
	Verify      PeriodsVerifyCmd      `cmd:"" help:"Compute the hash of the frozen figures, and compare it."`
}

// OnePeriod names a period of a tenant.
type OnePeriod struct {
	Period string `arg:"" help:"A month such as 2026-05, or a year such as 2026."`
	Tenant string `required:"" placeholder:"ID" aliases:"tenant-id" help:"The tenant."`
}

func (p *OnePeriod) path(more ...string) string {
	return client.Path(append([]string{"tenants", p.Tenant, "periods", p.Period}, more...)...)
}

// OneSnapshot names a snapshot of a period.
type OneSnapshot struct {
	OnePeriod
	Snapshot string `placeholder:"N" help:"An earlier snapshot. Not given: that of the last close."`
}

// export reads a period with all its lines.
func (s *OneSnapshot) export(a *app) (json.RawMessage, error) {
	c, err := a.newClient()
	if err != nil {
		return nil, err
	}
	return c.Get(a.ctx, s.path("export"), url.Values{"format": {"json"}, "snapshot": {s.Snapshot}})
}

// read reads a period page by page, with its live figures, which an export may lack. It returns the answer with all lines, and these.
func (s *OneSnapshot) read(a *app) (whole json.RawMessage, lines []json.RawMessage, err error) {
	c, err := a.newClient()
	if err != nil {
		return nil, nil, err
	}
	lines, q := []json.RawMessage{}, url.Values{"limit": {"1000"}, "snapshot": {s.Snapshot}}
	for {
		raw, err := c.Get(a.ctx, s.path(), q)
		if err != nil {
			return nil, nil, err
		}
		var page struct {
			Lines      []json.RawMessage `json:"lines"`
			NextCursor *string           `json:"nextCursor"`
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, nil, fmt.Errorf("read the lines of the period: %w", err)
		}
		if lines = append(lines, page.Lines...); page.NextCursor != nil {
			q.Set("cursor", *page.NextCursor)
			continue
		}
		if len(lines) == len(page.Lines) {
			return raw, lines, nil
		}
		members, err := output.ParseMembers(raw)
		if err != nil {
			return nil, nil, err
		}
		all, err := json.Marshal(lines)
		return members.With("lines", all), lines, err
	}
}

// PeriodsListCmd lists periods.
type PeriodsListCmd struct {
	Tenant string `required:"" placeholder:"ID" aliases:"tenant-id" help:"The tenant."`
	Limit
}

// Run prints the rows.
func (c *PeriodsListCmd) Run(a *app) error {
	return a.list(client.Path("tenants", c.Tenant, "periods"), nil, c.Limit.Limit, "periodKey", "state", "snapshot", "cutPosition", "closedAt", "partial", "missing", "figuresHash")
}

// PeriodsShowCmd shows a period.
type PeriodsShowCmd struct{ OneSnapshot }

// Help returns the long help text.
func (PeriodsShowCmd) Help() string {
	return `For each line: net = frozen + adjustments + unreconciled, and billable = frozen + approved. net is the live figure, as usage aggregates shows it; it is empty for an earlier snapshot.`
}

// lineColumns are the columns of a table of lines.
func lineColumns() []string {
	return []string{"feature", "frozen", "pending", "approved", "waived", "billable", "net", "unreconciled", "frozenEventCount", "netEventCount", "subscriptionId"}
}

// Run prints the period; as a table its members, then its lines.
func (c *PeriodsShowCmd) Run(a *app) error {
	raw, lines, err := c.read(a)
	if err != nil {
		return err
	}
	if a.flags.Output != "table" && a.flags.Output != "csv" {
		return a.object(raw)
	}
	members, err := output.ParseMembers(raw)
	if err != nil {
		return err
	}
	if a.flags.Output == "table" {
		for _, name := range []string{"state", "snapshot", "cutPosition", "closedAt", "figuresHash", "despite", "partial", "missing", "asOfPosition"} {
			fmt.Fprintf(a.stdout, "%-12s  %s\n", name, output.Cell(members.Find(name), "table"))
		}
		fmt.Fprintln(a.stdout)
	}
	p := a.rows(lineColumns()...)
	for _, line := range lines {
		if err := p.Row(line); err != nil {
			return err
		}
	}
	return p.Close()
}

// PeriodsCloseCmd closes a period.
type PeriodsCloseCmd struct {
	OnePeriod
	Reason  string   `required:"" placeholder:"TEXT" help:"The reason, recorded in the log."`
	Early   bool     `help:"Close the period before its end."`
	Despite []string `placeholder:"CONDITION" help:"A condition that the close does not wait for: dead_letters or rebuilds."`
	Once
}

// Help returns the long help text.
func (PeriodsCloseCmd) Help() string {
	return `The request is the cut: usage of the period that is recorded later is late. The figures are frozen once all usage before the cut is counted, usually within seconds; periods show tells the state. A period that is closing or closed already is left as it is.`
}

// Run prints the accepted request.
func (c *PeriodsCloseCmd) Run(a *app) error {
	body := map[string]any{"reason": c.Reason}
	if c.Early {
		body["early"] = true
	}
	if len(c.Despite) > 0 {
		body["despite"] = c.Despite
	}
	return a.create(c.path("close"), c.IdempotencyKey, body)
}

// PeriodsReopenCmd reopens a period.
type PeriodsReopenCmd struct {
	OnePeriod
	Reason string `required:"" placeholder:"TEXT" help:"The reason, recorded in the log."`
	Once
}

// Run prints how many adjustments are void.
func (c *PeriodsReopenCmd) Run(a *app) error {
	return a.create(c.path("reopen"), c.IdempotencyKey, map[string]any{"reason": c.Reason})
}

// PeriodsAdjustmentsCmd lists the adjustments of a period.
type PeriodsAdjustmentsCmd struct {
	OnePeriod
	AdjustmentFilter
	Limit
}

// Run prints the rows.
func (c *PeriodsAdjustmentsCmd) Run(a *app) error {
	return a.list(c.path("adjustments"), c.query(), c.Limit.Limit, adjustmentColumns()...)
}

// PeriodsExportCmd writes the lines of a period.
type PeriodsExportCmd struct {
	OneSnapshot
	Format string `enum:"json,csv" default:"json" placeholder:"FORMAT" help:"json (the default) or csv."`
}

// Help returns the long help text.
func (PeriodsExportCmd) Help() string {
	return `The answer of the service, byte for byte:

    meterplex periods export 2026-05 --tenant ID > 2026-05.json`
}

// Run writes the answer. It ends with an error if the answer was cut off.
func (c *PeriodsExportCmd) Run(a *app) error {
	if c.Format == "json" {
		raw, err := c.export(a)
		if err == nil {
			_, err = fmt.Fprintf(a.stdout, "%s\n", raw)
		}
		return err
	}
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	return cl.Stream(a.ctx, c.path("export"), url.Values{"format": {"csv"}, "snapshot": {c.Snapshot}}, nil, func(line string) error {
		_, err := fmt.Fprintln(a.stdout, strings.TrimSuffix(line, "\n"))
		return err
	})
}
