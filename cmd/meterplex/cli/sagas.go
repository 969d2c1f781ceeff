package cli

import (
	"net/url"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// SagasCmd groups the sagas commands.
type SagasCmd struct {
	List  SagasListCmd  `cmd:"" help:"List sagas, newest first."`
	Show  SagasShowCmd  `cmd:"" help:"Show the step of a saga, and the conditions that it waits for."`
	Retry SagasRetryCmd `cmd:"" help:"Begin the next attempt of a saga now."`
}

// SagasListCmd lists sagas.
type SagasListCmd struct {
	Kind   string `placeholder:"NAME" help:"Of this kind."`
	State  string `placeholder:"STATE" help:"RUNNING, PARTIAL, DRIFT, COMPLETED, COMPENSATED or FAILED."`
	Tenant string `placeholder:"ID" aliases:"tenant-id" help:"Of one tenant."`
	Limit
}

// Run prints the rows.
func (c *SagasListCmd) Run(a *app) error {
	q := url.Values{"kind": {c.Kind}, "state": {c.State}, "tenantId": {c.Tenant}}
	return a.list("/sagas", q, c.Limit.Limit, "id", "kind", "tenantId", "key", "state", "step", "attempts", "missing", "nextAt", "outcome", "lastError")
}

// SagasShowCmd shows a saga.
type SagasShowCmd struct {
	ID string `arg:"" help:"The saga's id."`
}

// Run prints it.
func (c *SagasShowCmd) Run(a *app) error { return a.show(client.Path("sagas", c.ID), nil) }

// SagasRetryCmd retries a saga.
type SagasRetryCmd struct {
	ID      string   `arg:"" help:"The saga's id."`
	Despite []string `placeholder:"CONDITION" help:"A condition that the saga no longer waits for, e.g. dead_letters."`
	Reason  string   `required:"" placeholder:"TEXT" help:"The reason, kept with the saga."`
	Once
}

// Help returns the long help text.
func (SagasRetryCmd) Help() string {
	return `An open saga retries by itself. A retry begins the next attempt at once; if a step is running, another attempt follows it. An ended saga does not run again.`
}

// Run prints the saga.
func (c *SagasRetryCmd) Run(a *app) error {
	body := map[string]any{"reason": c.Reason}
	if len(c.Despite) > 0 {
		body["despite"] = c.Despite
	}
	return a.create(client.Path("sagas", c.ID, "retry"), c.IdempotencyKey, body)
}
