package cli

import (
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// EntitlementsCmd groups the entitlements commands.
type EntitlementsCmd struct {
	Accounts     EntitlementsAccounts     `cmd:"" help:"List what a tenant has used of its QUOTA features and holds, by period, beside its limits (needs an operator's key)."`
	Check        EntitlementsCheck        `cmd:"" help:"Check whether the key's tenant may use an amount of a feature. Exit code 0 yes, 1 no."`
	Commit       EntitlementsCommit       `cmd:"" help:"Use at most the amount of a reservation, and release the rest."`
	Consume      EntitlementsConsume      `cmd:"" help:"Use an amount if the limit allows it. Exit code 0 granted and recorded, 1 refused."`
	Extend       EntitlementsExtend       `cmd:"" help:"Hold the amount of a reservation longer."`
	List         EntitlementsList         `cmd:"" help:"List the features that the key's tenant may use."`
	Reconcile    EntitlementsReconcile    `cmd:"" help:"Compare a tenant's accounts with the log, and repair them. Exit code 0: none differs, 1: some do, 2: not compared."`
	Release      EntitlementsRelease      `cmd:"" help:"End a reservation without usage."`
	Reservations EntitlementsReservations `cmd:"" help:"List the reservations of a feature in the order of their ids, or show one."`
	Reserve      EntitlementsReserve      `cmd:"" help:"Hold an amount if the limit allows it, until it is committed or released. Exit code 0 held, 1 refused."`
}

// EntitlementsCheck checks one feature.
type EntitlementsCheck struct {
	Feature string `arg:"" help:"The feature's lookup key."`
	Amount  int64  `default:"1" placeholder:"N" help:"How much is to be used (default 1)."`
	Fresh
}

// Run prints the answer and returns it as the exit code.
func (c *EntitlementsCheck) Run(a *app) error {
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	raw, err := c.read(a, cl, client.Path("entitlements", c.Feature, "check"), url.Values{"amount": {fmt.Sprint(c.Amount)}}, "")
	if err != nil {
		return err
	}
	var answer struct{ Allowed *bool }
	if err := json.Unmarshal(raw, &answer); err != nil || answer.Allowed == nil {
		return fmt.Errorf("the answer does not show whether it is allowed: %s", raw)
	}
	if err := a.object(raw); err != nil {
		return err
	}
	if !*answer.Allowed {
		return errNo
	}
	return nil
}

// EntitlementsList lists entitlements.
type EntitlementsList struct{ Fresh }

// Run prints the rows.
func (c *EntitlementsList) Run(a *app) error {
	return c.figures(a, "/entitlements", nil, "feature", "type", "allowed", "limit", "used", "held", "remaining", "limitBehavior", "resetAt")
}

// EntitlementsAccounts lists the accounts of a tenant.
type EntitlementsAccounts struct {
	TenantID string `required:"" placeholder:"ID" aliases:"tenant" help:"The tenant."`
	Feature  string `placeholder:"KEY" help:"Of one feature."`
	Period   string `placeholder:"PERIOD" help:"Of one period: 2026-05, 2026 or lifetime."`
	Limit
}

// Run prints the rows.
func (c *EntitlementsAccounts) Run(a *app) error {
	query := url.Values{"tenantId": {c.TenantID}}
	for name, value := range map[string]string{"feature": c.Feature, "periodKey": c.Period} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return a.list("/quota/accounts", query, c.Limit.Limit, "feature", "periodKey", "used", "held", "openReservations", "limit", "limitBehavior")
}
