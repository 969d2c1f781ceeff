package cli

import (
	"net/url"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// PushesCmd groups the pushes commands.
type PushesCmd struct {
	List      PushesListCmd      `cmd:"" help:"List pushes, newest first."`
	Show      PushesShowCmd      `cmd:"" help:"Show a push, and its last error."`
	Retry     PushesRetryCmd     `cmd:"" help:"Send a push again now."`
	Resolve   PushesResolveCmd   `cmd:"" help:"Say whether the provider counts a push whose result is unknown."`
	Reconcile PushesReconcileCmd `cmd:"" help:"Compare the provider's totals with the delivered amounts."`
}

// PushesListCmd lists pushes.
type PushesListCmd struct {
	Tenant string `placeholder:"ID" aliases:"tenant-id" help:"Of one tenant."`
	State  string `placeholder:"STATE" help:"PENDING, UNKNOWN, DELIVERED or FAILED."`
	Period string `placeholder:"KEY" aliases:"period-key" help:"Of one period, e.g. 2026-05."`
	Limit
}

// Run prints the rows.
func (c *PushesListCmd) Run(a *app) error {
	q := url.Values{"tenantId": {c.Tenant}, "state": {c.State}, "periodKey": {c.Period}}
	return a.list("/pushes", q, c.Limit.Limit, "id", "tenantId", "feature", "periodKey", "snapshot", "amount", "state", "attempts", "nextAt", "lastError")
}

// PushesShowCmd shows a push.
type PushesShowCmd struct {
	ID string `arg:"" help:"The push's id."`
}

// Run prints it.
func (c *PushesShowCmd) Run(a *app) error { return a.show(client.Path("pushes", c.ID), nil) }

// PushesRetryCmd retries a push.
type PushesRetryCmd struct {
	ID     string `arg:"" help:"The push's id."`
	Reason string `required:"" placeholder:"TEXT" help:"The reason, kept with the push."`
	Once
}

// Help returns the long help text.
func (PushesRetryCmd) Help() string {
	return `Of a FAILED push, and of an UNKNOWN one within 23 hours of the first attempt that may have been counted: the provider detects a repetition for 24 hours. Later, look for the push's identifier at the provider, and resolve it.`
}

// Run prints the push.
func (c *PushesRetryCmd) Run(a *app) error {
	return a.create(client.Path("pushes", c.ID, "retry"), c.IdempotencyKey, map[string]any{"reason": c.Reason})
}

// PushesResolveCmd resolves a push.
type PushesResolveCmd struct {
	ID        string `arg:"" help:"The push's id."`
	Delivered *bool  `required:"" negatable:"" help:"--delivered: the provider counts the amount. --no-delivered: it surely does not, and the push is sent again."`
	Reason    string `required:"" placeholder:"TEXT" help:"The reason, kept with the push."`
	Once
}

// Run prints the push.
func (c *PushesResolveCmd) Run(a *app) error {
	return a.create(client.Path("pushes", c.ID, "resolve"), c.IdempotencyKey, map[string]any{"delivered": *c.Delivered, "reason": c.Reason})
}

// PushesReconcileCmd compares totals.
type PushesReconcileCmd struct{ Once }

// Help returns the long help text.
func (PushesReconcileCmd) Help() string {
	return `Each day this begins by itself. It prints the saga; its end is shown by meterplex sagas show. A difference is an event and the metric meterplex_billing_difference (docs/runbooks/billing-difference.md).`
}

// Run prints the saga.
func (c *PushesReconcileCmd) Run(a *app) error {
	return a.create("/pushes/reconcile", c.IdempotencyKey, nil)
}
