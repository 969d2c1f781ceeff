package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// PlansCmd groups the plans commands.
type PlansCmd struct {
	Put           PlansPut           `cmd:"" help:"Create or change a plan."`
	List          PlansList          `cmd:"" help:"List the plans."`
	Show          PlansShow          `cmd:"" help:"Show one plan."`
	Subscriptions PlansSubscriptions `cmd:"" help:"List the subscriptions of a plan, of all tenants."`
}

// PlansSubscriptions reads GET /plans/{key}/subscriptions.
type PlansSubscriptions struct {
	PlanKey string `arg:"" name:"plan" help:"Its key."`
	Older   bool   `help:"Only subscriptions that have not ended, and whose snapshot differs from the plan."`
	Limit   int    `default:"100" help:"Rows to print; 0 prints all."`
}

// Run prints the subscriptions.
func (c *PlansSubscriptions) Run(a *app) error {
	query := url.Values{}
	if c.Older {
		query.Set("snapshot", "older")
	}
	return a.list(client.Path("plans", c.PlanKey, "subscriptions"), query, c.Limit, "id", "tenantId", "status", "createdAt")
}

// PlansPut creates or changes a plan.
type PlansPut struct {
	PlanKey      string   `arg:"" name:"plan" help:"Its key, as subscriptions name it."`
	Name         string   `placeholder:"TEXT" help:"Its name."`
	Entitlements []string `name:"entitlement" sep:"none" placeholder:"FEATURE=LIMIT,…" help:"The grant of a feature; may be repeated."`
	File         string   `placeholder:"FILE" help:"Read {\"name\":…,\"entitlements\":[…]} from a JSON file instead."`
	Because
}

// Help returns the long help text.
func (PlansPut) Help() string {
	return `An entitlement is written feature=limit,behavior,period and, where it matters, what ingestion does with usage above the limit:

    --entitlement api_calls=50000,HARD,MONTHLY
    --entitlement api_calls=50000,HARD,MONTHLY,record
    --entitlement api_calls=50000,SOFT,MONTHLY,price:calls
    --entitlement input_tokens=unlimited,SOFT,MONTHLY
    --entitlement sso

The limit is a whole number or unlimited; the behavior HARD or SOFT; the period MONTHLY, ANNUALLY or NEVER; the last words onIngest of the API, record by default, the key of a price behind price:, and trial:charged if usage of a trial is charged. A BOOLEAN feature is its name alone.

A change of a plan changes no subscription that runs: subscriptions update --plan applies it.`
}

// Run prints the plan.
func (c *PlansPut) Run(a *app) error {
	path := client.Path("plans", c.PlanKey)
	if c.File != "" {
		if c.Name != "" || len(c.Entitlements) > 0 {
			return errors.New("give --file, or --name with --entitlement, not both")
		}
		text, err := os.ReadFile(c.File)
		if err != nil {
			return fmt.Errorf("read the plan: %w", err)
		}
		if !json.Valid(text) {
			return fmt.Errorf("%s is not JSON", c.File)
		}
		return a.change(http.MethodPut, path, json.RawMessage(text))
	}
	if c.Name == "" {
		return errors.New("a plan needs a --name")
	}
	body := client.Plan{Name: c.Name, Entitlements: []client.Entitlement{}}
	for _, text := range c.Entitlements {
		e, err := parseEntitlement(text)
		if err != nil {
			return err
		}
		body.Entitlements = append(body.Entitlements, e)
	}
	return a.change(http.MethodPut, path, body)
}

// parseEntitlement parses feature=limit,behavior,period,onIngest,price:key,trial:charged; the service
// validates the words.
func parseEntitlement(text string) (client.Entitlement, error) {
	feature, grant, limited := strings.Cut(text, "=")
	e := client.Entitlement{Feature: feature}
	if !limited {
		return e, nil
	}
	parts := strings.Split(grant, ",")
	if last := len(parts) - 1; last > 2 && parts[last] == "trial:charged" {
		e.ChargeTrial, parts = true, parts[:last]
	}
	if last := len(parts) - 1; last > 2 && strings.HasPrefix(parts[last], "price:") {
		e.Price, parts = strings.TrimPrefix(parts[last], "price:"), parts[:last]
	}
	if len(parts) < 3 || len(parts) > 4 {
		return e, fmt.Errorf("entitlement %q: expected feature=limit,behavior,period, e.g. api_calls=50000,HARD,MONTHLY", text)
	}
	if parts[0] != "unlimited" {
		limit, err := strconv.ParseInt(parts[0], 10, 64)
		if err != nil {
			return e, fmt.Errorf("entitlement %q: the limit must be a whole number or unlimited", text)
		}
		e.Limit = &limit
	}
	e.LimitBehavior, e.ResetPeriod = parts[1], parts[2]
	if len(parts) == 4 {
		e.OnIngest = parts[3]
	}
	return e, nil
}

// PlansList lists plans.
type PlansList struct{ Limit }

// Run prints the rows.
func (c *PlansList) Run(a *app) error {
	return a.list("/plans", nil, c.Limit.Limit, "key", "name", "entitlements")
}

// PlansShow shows a plan.
type PlansShow struct {
	PlanKey string `arg:"" name:"plan" help:"Its key."`
}

// Run prints the plan.
func (c *PlansShow) Run(a *app) error { return a.show(client.Path("plans", c.PlanKey), nil) }
