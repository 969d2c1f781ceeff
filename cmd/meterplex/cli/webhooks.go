package cli

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/client"
)

// WebhooksCmd groups the webhooks commands.
type WebhooksCmd struct {
	Create     WebhooksCreateCmd     `cmd:"" help:"Create a webhook; its secret is shown this once."`
	List       WebhooksListCmd       `cmd:"" help:"List the webhooks of a tenant."`
	Show       WebhooksShowCmd       `cmd:"" help:"Show a webhook."`
	Update     WebhooksUpdateCmd     `cmd:"" help:"Change the URL, the events or the status of a webhook."`
	Remove     WebhooksRemoveCmd     `cmd:"" help:"Remove a webhook and its secrets."`
	Rotate     WebhooksRotateCmd     `cmd:"" help:"Add a secret; the earlier ones stay valid for the overlap."`
	Test       WebhooksTestCmd       `cmd:"" help:"Send a test event."`
	Deliveries WebhooksDeliveriesCmd `cmd:"" help:"List the deliveries of a webhook with their attempts."`
	Replay     WebhooksReplayCmd     `cmd:"" help:"Send one delivery, or the events of a time range, again."`
}

// WebhookTenant names the tenant of webhooks.
type WebhookTenant struct {
	Tenant string `required:"" placeholder:"ID" aliases:"tenant-id" help:"The tenant."`
}

func (w *WebhookTenant) path(more ...string) string {
	return client.Path(append([]string{"tenants", w.Tenant, "webhooks"}, more...)...)
}

// OneWebhook names a webhook.
type OneWebhook struct {
	ID string `arg:"" help:"The webhook's id."`
	WebhookTenant
}

func (w *OneWebhook) path(more ...string) string {
	return w.WebhookTenant.path(append([]string{w.ID}, more...)...)
}

// WebhooksCreateCmd creates a webhook.
type WebhooksCreateCmd struct {
	URL string `arg:"" help:"An https URL."`
	WebhookTenant
	Events []string `name:"event" required:"" placeholder:"TYPE" help:"period.closed, adjustment.pending, threshold.crossed, reservation.expired, push.failed or usage.refused; may be given more than once."`
	Once
	Because
}

// Run prints the webhook with its secret.
func (c *WebhooksCreateCmd) Run(a *app) error {
	return c.createWebhook(a, c.path(), c.IdempotencyKey, map[string]any{"url": c.URL, "events": c.Events})
}

// createWebhook prints a webhook with its new secret, and a note about it.
func (w *WebhookTenant) createWebhook(a *app, path, once string, body any) error {
	return a.createSecret(path, once, body, "it is not shown again", func(id string) string {
		return fmt.Sprintf("meterplex webhooks rotate %s --tenant %s", id, w.Tenant)
	})
}

// WebhooksListCmd lists webhooks.
type WebhooksListCmd struct {
	WebhookTenant
	Limit
}

// Run prints the rows.
func (c *WebhooksListCmd) Run(a *app) error {
	return a.list(c.path(), nil, c.Limit.Limit, "id", "url", "events", "status", "reason", "secrets", "failingSince", "lastSuccessAt", "createdAt")
}

// WebhooksShowCmd shows a webhook.
type WebhooksShowCmd struct{ OneWebhook }

// Run prints the webhook.
func (c *WebhooksShowCmd) Run(a *app) error { return a.show(c.path(), nil) }

// WebhooksUpdateCmd changes a webhook.
type WebhooksUpdateCmd struct {
	OneWebhook
	To     string   `name:"send-to" placeholder:"URL" help:"Another https URL."`
	Events []string `name:"event" placeholder:"TYPE" help:"All types of events that are sent."`
	Status string   `placeholder:"STATUS" help:"ENABLED or DISABLED."`
	Because
}

// Run prints the changed webhook.
func (c *WebhooksUpdateCmd) Run(a *app) error {
	body := map[string]any{}
	if c.To != "" {
		body["url"] = c.To
	}
	if len(c.Events) > 0 {
		body["events"] = c.Events
	}
	if c.Status != "" {
		body["status"] = c.Status
	}
	if len(body) == 0 {
		return errors.New("give --send-to, --event or --status")
	}
	return a.change(http.MethodPatch, c.path(), body)
}

// WebhooksRemoveCmd removes a webhook.
type WebhooksRemoveCmd struct {
	OneWebhook
	Because
}

// Run prints a confirmation: the response has no body.
func (c *WebhooksRemoveCmd) Run(a *app) error {
	cl, err := a.newClient()
	if err != nil {
		return err
	}
	if _, err := cl.Do(a.ctx, client.Request{Method: http.MethodDelete, Path: c.path()}); err != nil {
		return err
	}
	a.report("Removed %s.", c.ID)
	return nil
}

// WebhooksRotateCmd rotates the secret of a webhook.
type WebhooksRotateCmd struct {
	OneWebhook
	Overlap time.Duration `default:"24h" placeholder:"DURATION" help:"How long the earlier secrets stay valid, in whole seconds (default 24h)."`
	Once
	Because
}

// Run prints the webhook with its new secret.
func (c *WebhooksRotateCmd) Run(a *app) error {
	if c.Overlap < 0 || c.Overlap%time.Second != 0 {
		return errors.New("--overlap must be whole seconds, 0 or more")
	}
	return c.createWebhook(a, c.path("rotate"), c.IdempotencyKey, map[string]int64{"overlapSeconds": int64(c.Overlap / time.Second)})
}

// WebhooksTestCmd sends a test event.
type WebhooksTestCmd struct {
	OneWebhook
	Once
}

// Run prints the delivery.
func (c *WebhooksTestCmd) Run(a *app) error { return a.create(c.path("test"), c.IdempotencyKey, nil) }

// WebhooksDeliveriesCmd lists deliveries.
type WebhooksDeliveriesCmd struct {
	OneWebhook
	State string `placeholder:"STATE" help:"PENDING, DELIVERED or FAILED."`
	Limit
}

// Run prints the rows.
func (c *WebhooksDeliveriesCmd) Run(a *app) error {
	return a.list(c.path("deliveries"), url.Values{"state": {c.State}}, c.Limit.Limit, "id", "type", "state", "attempts", "nextAt", "createdAt", "eventId", "position", "last")
}

// WebhooksReplayCmd sends deliveries again.
type WebhooksReplayCmd struct {
	ID     string `arg:"" help:"A delivery's id; with --from and --to the webhook's id."`
	Tenant string `placeholder:"ID" aliases:"tenant-id" help:"The tenant; with --from and --to."`
	From   string `placeholder:"TIME" help:"Events recorded from this time on, RFC 3339."`
	To     string `placeholder:"TIME" help:"Events recorded before this time, RFC 3339."`
	Once
}

// Run prints the delivery, or the range.
func (c *WebhooksReplayCmd) Run(a *app) error {
	if c.From == "" && c.To == "" && c.Tenant == "" {
		return a.create(client.Path("deliveries", c.ID, "replay"), c.IdempotencyKey, nil)
	}
	if c.From == "" || c.To == "" || c.Tenant == "" {
		return errors.New("a time range needs --tenant, --from and --to")
	}
	return a.create(client.Path("tenants", c.Tenant, "webhooks", c.ID, "replay"), c.IdempotencyKey, map[string]string{"from": c.From, "to": c.To})
}
