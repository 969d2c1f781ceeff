package tenants

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/cmd/meterplex/client"
	"github.com/meterplex/meterplex/cmd/meterplex/output"
)

// newKey prints a new key of a tenant or of an operator.
func newKey(a *app.App, l *app.Call) error {
	return createSecret(a, l, "it is stored nowhere and is not shown again", func(id string) string {
		owner := "--operator"
		if tenant := app.FlagOf[*string](l, "InTenantId"); tenant != nil {
			owner = "--tenant " + *tenant
		}
		return fmt.Sprintf("meterplex keys rotate %s %s --overlap 0s", id, owner)
	})
}

// newPortalLink prints a link for a tenant's people.
func newPortalLink(a *app.App, l *app.Call) error {
	return createSecret(a, l, "it is not shown again", func(string) string {
		return "meterplex tenants portal-link " + l.Last()
	})
}

// newWebhook prints a webhook with its new secret.
func newWebhook(a *app.App, l *app.Call) error {
	return createSecret(a, l, "it is not shown again", func(id string) string {
		return fmt.Sprintf("meterplex webhooks rotate %s --tenant %s", id, *app.FlagOf[*string](l, "InTenantId"))
	})
}

// createSecret prints an answer with a secret, and the note on it. If the answer is a repeat, it has no secret: another returns the
// command that makes another secret. Under a key of this call alone that is a failure: only the lost answer had the secret.
func createSecret(a *app.App, l *app.Call, note string, another func(id string) string) error {
	raw, err := l.Send(a)
	if err != nil {
		return err
	}
	var made struct{ ID, Secret string }
	if err := json.Unmarshal(raw, &made); err != nil {
		return fmt.Errorf("read the answer with the secret: %w", err)
	}
	remedy := output.Printable(another(made.ID))
	switch {
	case made.Secret != "":
		a.Report("Keep the secret now: %s.", note)
	case app.FlagOf[string](l, "IdempotencyKey") == "":
		return fmt.Errorf("the request took effect for %s, but the answer with the secret was lost, and the secret cannot be shown "+
			"again\n  hint: make another: %s", output.Printable(made.ID), remedy)
	default:
		a.Report("This request was sent before: the secret was in the first answer, and cannot be shown again. If it is lost, make "+
			"another: %s", remedy)
	}
	return a.Object(raw)
}

// replayWebhook sends one delivery again, or the events of a time range.
func replayWebhook(a *app.App, l *app.Call) error {
	of := app.FlagOf[timeRange](l, "Own")
	switch {
	case of == timeRange{}:
	case of.Tenant == "" || of.From == "" || of.To == "":
		return errors.New("a time range needs --tenant, --from and --to")
	default:
		return a.Create(client.Path("tenants", of.Tenant, "webhooks", l.Last(), "replay"), app.FlagOf[string](l, "IdempotencyKey"),
			map[string]string{"from": of.From, "to": of.To})
	}
	raw, err := l.Send(a)
	if err != nil {
		return err
	}
	return a.Object(raw)
}

// timeRange selects the events of a webhook by the time at which they were recorded.
type timeRange struct {
	Tenant string `placeholder:"ID" aliases:"tenant-id" help:"The tenant; with --from and --to."`
	From   string `placeholder:"TIME" help:"Events recorded from this time on, RFC 3339."`
	To     string `placeholder:"TIME" help:"Events recorded before this time, RFC 3339."`
}
