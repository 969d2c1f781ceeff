// Package tenants holds the commands of tenants, and of their keys, subscriptions, webhooks and thresholds.
package tenants

import (
	"encoding/json"
	"errors"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

// Cmd groups the commands of tenants that are not one request.
type Cmd struct {
	Offboard struct{} `cmd:"" help:"End a tenant, and keep its figures."`

	Erase Erase `cmd:"" help:"Erase the personal data of archived tenants, for ever."`
}

// removals holds the flags that remove values of a tenant.
type removals struct {
	NoExternalIDs bool `name:"no-external-ids" help:"Remove all its external ids."`
	NoMetadata    bool `help:"Remove all its notes."`
	NoCloseAfter  bool `help:"Close its periods by request only."`
}

// removeOf empties the values that the flags remove.
func removeOf(_ *app.App, l *app.Call, in map[string]any) error {
	no := app.FlagOf[removals](l, "Own")
	if no.NoExternalIDs && in["externalIds"] == nil {
		in["externalIds"] = []string{}
	}
	if no.NoMetadata && in["metadata"] == nil {
		in["metadata"] = map[string]string{}
	}
	if no.NoCloseAfter && in["closeAfterHours"] == nil {
		in["closeAfterHours"] = json.RawMessage("null")
	}
	return nil
}

// removal holds the flag that removes the customer of a tenant.
type removal struct {
	Remove bool `help:"Store no further Stripe delivery of the tenant. Stored ones are still sent."`
}

// billing sets the customer of a tenant, or removes it.
func billing(a *app.App, l *app.Call) error {
	remove := app.FlagOf[removal](l, "Own").Remove
	if remove == (app.FlagOf[*string](l, "InCustomer") != nil) {
		return errors.New("give either --customer or --remove")
	}
	if remove {
		l.Operation = app.OperationOf("deleteBilling")
	}
	raw, err := l.Send(a)
	if err != nil {
		return err
	}
	return a.Object(raw)
}
