package cli

import (
	"net/url"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// AdjustmentsCmd groups the adjustments commands.
type AdjustmentsCmd struct {
	List    AdjustmentsListCmd    `cmd:"" help:"List adjustments of closed periods."`
	Approve AdjustmentsApproveCmd `cmd:"" help:"Approve an adjustment: the billable figure includes it."`
	Waive   AdjustmentsWaiveCmd   `cmd:"" help:"Waive an adjustment: it is not billed."`
	Decide  AdjustmentsDecideCmd  `cmd:"" help:"Approve or waive many adjustments of a period at once."`
}

// AdjustmentFilter holds the flags that select adjustments.
type AdjustmentFilter struct {
	State   string `placeholder:"STATE" help:"PENDING, APPROVED, WAIVED or VOID."`
	Kind    string `placeholder:"KIND" help:"LATE_USAGE, LATE_COMMIT, RETRY, CORRECTION, RETRACTION or REBUILD."`
	Feature string `placeholder:"KEY" help:"Of one feature."`
}

func (f *AdjustmentFilter) query() url.Values {
	return url.Values{"state": {f.State}, "kind": {f.Kind}, "feature": {f.Feature}}
}

func adjustmentColumns() []string {
	return []string{"id", "kind", "state", "feature", "amount", "eventCount", "position", "sourceEventId", "periodKey", "snapshot", "tenantId", "reason"}
}

// AdjustmentsListCmd lists adjustments.
type AdjustmentsListCmd struct {
	Tenant string `placeholder:"ID" aliases:"tenant-id" help:"Of one tenant."`
	Period string `placeholder:"KEY" help:"Of one period, e.g. 2026-05."`
	AdjustmentFilter
	Limit
}

// Run prints the rows.
func (c *AdjustmentsListCmd) Run(a *app) error {
	q := c.query()
	q.Set("tenantId", c.Tenant)
	q.Set("periodKey", c.Period)
	return a.list("/adjustments", q, c.Limit.Limit, adjustmentColumns()...)
}

// Decision holds the arguments of a decision on one adjustment.
type Decision struct {
	ID     string `arg:"" help:"The adjustment's id."`
	Reason string `required:"" placeholder:"TEXT" help:"The reason, recorded in the log."`
	Once
}

func (c *Decision) send(a *app, decision string) error {
	return a.create(client.Path("adjustments", c.ID, decision), c.IdempotencyKey, map[string]any{"reason": c.Reason})
}

// AdjustmentsApproveCmd approves an adjustment.
type AdjustmentsApproveCmd struct{ Decision }

// Run prints the position of the decision.
func (c *AdjustmentsApproveCmd) Run(a *app) error { return c.send(a, "approve") }

// AdjustmentsWaiveCmd waives an adjustment.
type AdjustmentsWaiveCmd struct{ Decision }

// Run prints the position of the decision.
func (c *AdjustmentsWaiveCmd) Run(a *app) error { return c.send(a, "waive") }

// AdjustmentsDecideCmd decides many adjustments.
type AdjustmentsDecideCmd struct {
	Decision string   `arg:"" enum:"approve,waive" help:"approve or waive."`
	IDs      []string `name:"id" placeholder:"ID" help:"Adjustments of one tenant by their ids, instead of a period; may be given more than once."`
	Tenant   string   `placeholder:"ID" aliases:"tenant-id" help:"The tenant."`
	Period   string   `placeholder:"KEY" help:"The period, e.g. 2026-05."`
	UpTo     string   `placeholder:"POSITION" help:"Position of the last adjustment that you have seen, as list shows it: later ones are not decided."`
	Feature  string   `placeholder:"KEY" help:"Only of one feature."`
	Kind     string   `placeholder:"KIND" help:"Only of one kind."`
	Reason   string   `required:"" placeholder:"TEXT" help:"The reason, recorded in the log."`
	DryRun   bool     `help:"Only count them."`
	Once
}

// Help returns the long help text.
func (AdjustmentsDecideCmd) Help() string {
	return `The pending adjustments of a period, up to a position:

    meterplex adjustments decide approve --tenant ID --period 2026-05 --up-to 17-9400 --reason "agreed" --dry-run

Either all of them are decided or none. A decision is final.`
}

// Run prints how many are decided, and their sum.
func (c *AdjustmentsDecideCmd) Run(a *app) error {
	body := map[string]any{"decision": c.Decision, "reason": c.Reason}
	for name, value := range map[string]string{"tenantId": c.Tenant, "periodKey": c.Period, "upTo": c.UpTo, "feature": c.Feature, "kind": c.Kind} {
		if value != "" {
			body[name] = value
		}
	}
	if len(c.IDs) > 0 {
		body["ids"] = c.IDs
	}
	if c.DryRun {
		body["dryRun"] = true
	}
	return a.create("/adjustments/decide", c.IdempotencyKey, body)
}
