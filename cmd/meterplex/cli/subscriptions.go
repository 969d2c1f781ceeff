package cli

import (
	"net/http"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// SubscriptionsCmd groups the subscriptions commands.
type SubscriptionsCmd struct {
	Create SubscriptionsCreate `cmd:"" help:"Give a tenant a plan."`
	List   SubscriptionsList   `cmd:"" help:"List a tenant's subscriptions."`
	Show   SubscriptionsShow   `cmd:"" help:"Show one subscription with its grants."`
	Update SubscriptionsUpdate `cmd:"" help:"Change a subscription's status, apply a plan, or its current prices."`
}

// TenantFlag names the tenant.
type TenantFlag struct {
	Tenant string `required:"" placeholder:"ID" aliases:"tenant-id" help:"The tenant's id."`
}

func (t *TenantFlag) subscriptions(more ...string) string {
	return client.Path("tenants", t.Tenant, "subscriptions") + client.Path(more...)
}

// SubscriptionsCreate creates a subscription.
type SubscriptionsCreate struct {
	TenantFlag
	Plan   string  `required:"" placeholder:"KEY" help:"The plan's key."`
	Status *string `placeholder:"STATUS" help:"ACTIVE (the default), TRIALING or PAST_DUE."`
	Starts *string `name:"starts-at" placeholder:"TIME" help:"Its start, also in the past (default: now). Usage before the first subscription of the tenant counts, and costs 0."`
	Once
	Because
}

// Run prints the subscription with the snapshot of its plan.
func (c *SubscriptionsCreate) Run(a *app) error {
	return a.create(c.subscriptions(), c.IdempotencyKey, subscriptionBody{Plan: &c.Plan, Status: c.Status, StartsAt: c.Starts})
}

type subscriptionBody struct {
	Plan     *string `json:"plan,omitempty"`
	Status   *string `json:"status,omitempty"`
	StartsAt *string `json:"startsAt,omitempty"`
	Prices   *string `json:"prices,omitempty"`
}

// SubscriptionsList lists subscriptions.
type SubscriptionsList struct {
	TenantFlag
	Limit
}

// Run prints the rows.
func (c *SubscriptionsList) Run(a *app) error {
	return a.list(c.subscriptions(), nil, c.Limit.Limit, "id", "plan", "status", "startsAt", "createdAt")
}

// SubscriptionsShow shows a subscription.
type SubscriptionsShow struct {
	TenantFlag
	ID string `arg:"" help:"The subscription's id."`
}

// Run prints the subscription.
func (c *SubscriptionsShow) Run(a *app) error { return a.show(c.subscriptions(c.ID), nil) }

// SubscriptionsUpdate changes a subscription.
type SubscriptionsUpdate struct {
	TenantFlag
	ID     string  `arg:"" help:"The subscription's id."`
	Status *string `xor:"change" required:"" placeholder:"STATUS" help:"ACTIVE, TRIALING, PAST_DUE, CANCELLED or EXPIRED; only the first two accept usage."`
	Plan   *string `xor:"change" required:"" placeholder:"KEY" help:"Take a new snapshot, of this plan."`
	Prices *string `xor:"change" required:"" placeholder:"current" help:"current: move on to the current versions of the prices."`
	Because
}

// Run prints the changed subscription.
func (c *SubscriptionsUpdate) Run(a *app) error {
	return a.change(http.MethodPatch, c.subscriptions(c.ID), subscriptionBody{Plan: c.Plan, Status: c.Status, Prices: c.Prices})
}
