package cli

import (
	"errors"
	"net/http"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// ThresholdsCmd groups the thresholds commands.
type ThresholdsCmd struct {
	Create ThresholdsCreateCmd `cmd:"" help:"Define a threshold: a percentage of the limit, or an amount."`
	List   ThresholdsListCmd   `cmd:"" help:"List the thresholds of a tenant."`
	Show   ThresholdsShowCmd   `cmd:"" help:"Show a threshold."`
	Remove ThresholdsRemoveCmd `cmd:"" help:"Remove a threshold."`
}

// ThresholdTenant names the tenant of thresholds.
type ThresholdTenant struct {
	Tenant string `required:"" placeholder:"ID" aliases:"tenant-id" help:"The tenant."`
}

func (t *ThresholdTenant) path(more ...string) string {
	return client.Path(append([]string{"tenants", t.Tenant, "thresholds"}, more...)...)
}

// ThresholdsCreateCmd defines a threshold.
type ThresholdsCreateCmd struct {
	ThresholdTenant
	Feature string `placeholder:"KEY" help:"The feature; default: each feature, each on its own."`
	Percent int64  `placeholder:"N" xor:"value" help:"A percentage of the limit, 1 to 1000."`
	Amount  int64  `placeholder:"N" xor:"value" help:"A used amount."`
	Once
	Because
}

// Run prints the threshold.
func (c *ThresholdsCreateCmd) Run(a *app) error {
	body := map[string]any{}
	if c.Feature != "" {
		body["feature"] = c.Feature
	}
	switch {
	case c.Percent != 0:
		body["percent"] = c.Percent
	case c.Amount != 0:
		body["amount"] = c.Amount
	default:
		return errors.New("give --percent or --amount")
	}
	return a.create(c.path(), c.IdempotencyKey, body)
}

// ThresholdsListCmd lists thresholds.
type ThresholdsListCmd struct {
	ThresholdTenant
	Limit
}

// Run prints the rows.
func (c *ThresholdsListCmd) Run(a *app) error {
	return a.list(c.path(), nil, c.Limit.Limit, "id", "feature", "percent", "amount", "position", "createdAt")
}

// OneThreshold names a threshold.
type OneThreshold struct {
	ID string `arg:"" help:"The threshold's id."`
	ThresholdTenant
}

// ThresholdsShowCmd shows a threshold.
type ThresholdsShowCmd struct{ OneThreshold }

// Run prints the threshold.
func (c *ThresholdsShowCmd) Run(a *app) error { return a.show(c.path(c.ID), nil) }

// ThresholdsRemoveCmd removes a threshold.
type ThresholdsRemoveCmd struct {
	OneThreshold
	Because
}

// Run prints a confirmation: the response has no body.
func (c *ThresholdsRemoveCmd) Run(a *app) error {
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	if _, err := cl.Do(a.ctx, client.Request{Method: http.MethodDelete, Path: c.path(c.ID)}); err != nil {
		return err
	}
	a.report("Removed %s.", c.ID)
	return nil
}
