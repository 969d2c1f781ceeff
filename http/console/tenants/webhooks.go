package tenants

import (
	"net/http"
	"strings"

	"github.com/meterplex/meterplex/http/console"
)

const (
	webhooksPath   = TenantPath + "/webhooks"
	webhookPath    = webhooksPath + "/{webhookId}"
	newWebhookPath = TenantPath + "/new/webhook"
	rotatePath     = webhookPath + "/rotation"
	resendPath     = webhookPath + "/resending"
)

// apiOf joins the segments of a path of the API below the webhook of a page.
func apiOf(v *console.Visit, below ...string) string {
	return console.API(append([]string{"tenants", v.Param("tenantId"), "webhooks", v.Param("webhookId")}, below...)...)
}

func webhooksPage() *console.Page {
	return &console.Page{Path: webhooksPath, Title: "Webhooks", New: newWebhookPath, Template: "webhooks.html",
		Needs:  "GET /api/v1/tenants/{tenantId}/webhooks",
		Params: []string{"cursor"}, Limit: 100, CLI: []string{"meterplex webhooks list --tenant {tenantId}"}}
}

// newWebhookPage holds the Idempotency-Key of its form in its address.
func newWebhookPage() *console.Page {
	const path = newWebhookPath
	return &console.Page{Path: path, Title: "New webhook", Template: "webhook_new.html", Needs: "POST /api/v1/tenants/{tenantId}/webhooks",
		Params: []string{"key"}, CLI: []string{"meterplex webhooks create --help"},
		Actions: []*console.Action{{Name: "create-webhook", Path: path, Label: "Create the webhook",
			Does: "POST /api/v1/tenants/{tenantId}/webhooks", Secret: true,
			Fields: []console.Field{{Name: "url", Label: "URL", Hint: "An https URL of a public host."}, {Name: "events"}}}}}
}

func webhookPage() *console.Page {
	return &console.Page{Path: webhookPath, Title: "Webhook", Template: "webhook.html",
		Needs:  "GET /api/v1/tenants/{tenantId}/webhooks/{webhookId}",
		Params: []string{"state", "cursor"},
		CLI: []string{"meterplex webhooks show {webhookId} --tenant {tenantId}",
			"meterplex webhooks deliveries {webhookId} --tenant {tenantId}[ --state {state}]"},
		Load: func(v *console.Visit) (console.Doc, error) {
			webhook, err := v.Get(apiOf(v), nil)
			if err != nil {
				return nil, err
			}
			deliveries, err := v.Try(apiOf(v, "deliveries"), console.Limited(6, v.Pick("state", "cursor")))
			if err != nil {
				return nil, err
			}
			newest := deliveries
			if len(v.Pick("state", "cursor")) > 0 { // the newest delivery of all says how often the webhook was tested
				newest, err = v.Do(console.Request{Method: http.MethodGet, Path: apiOf(v, "deliveries"), Query: console.Limited(1, nil)})
			}
			data := console.Doc{"webhook": webhook, "deliveries": deliveries}
			data["was"] = console.WasOf(map[string]string{"url": console.Text(webhook["url"]),
				"events": strings.Join(console.Texts(console.Items(webhook["events"])), ",")})
			if all := console.Items(newest["data"]); len(all) > 0 {
				data["newest"] = console.Object(all[0])["id"]
			}
			return data, err
		},
		Actions: webhookActions()}
}

func webhookActions() []*console.Action {
	const one = "/api/v1/tenants/{tenantId}/webhooks/{webhookId}"
	status := func(name, label, warn, to string) *console.Action {
		return &console.Action{Name: name, Path: webhookPath + "/" + name, Label: label, Warn: warn, Does: "PATCH " + one,
			Sets: map[string]any{"status": to}}
	}
	return []*console.Action{
		status("enable-webhook", "Enable", "It gets the events that are recorded from now on. Resend the events between, if they matter.",
			"ENABLED"),
		status("disable-webhook", "Disable", "It gets no events until it is enabled.", "DISABLED"),
		{Name: "change-webhook", Path: webhookPath + "/change-webhook", Label: "Change the URL or the events", Does: "PATCH " + one,
			Fields: []console.Field{{Name: "url", Label: "URL"}, {Name: "events"}, {Name: "was", Kind: "hidden"}}},
		{Name: "remove-webhook", Path: webhookPath + "/remove", Label: "Remove", Warn: "Its secrets are deleted. It cannot be restored.",
			Does: "DELETE " + one,
			Next: func(v *console.Visit, _ console.Form, _ console.Doc) string { return v.Expand(webhooksPath) }},
		{Name: "test-webhook", Path: webhookPath + "/test", Label: "Send a test event", Does: "POST " + one + "/test"},
		{Name: "resend-delivery", Path: webhookPath + "/deliveries/{deliveryId}/resend", Label: "Resend",
			Does: "POST /api/v1/deliveries/{deliveryId}/replay"},
	}
}

// rotatePage holds the Idempotency-Key of its form in its address, because a rotation makes a secret.
func rotatePage() *console.Page {
	return &console.Page{Path: rotatePath, Title: "Rotate the secret", Template: "rotation.html",
		Needs:  "POST /api/v1/tenants/{tenantId}/webhooks/{webhookId}/rotate",
		Params: []string{"key"}, CLI: []string{"meterplex webhooks show {webhookId} --tenant {tenantId}",
			"meterplex webhooks rotate --help"},
		Load: func(v *console.Visit) (console.Doc, error) {
			return keyed(v, func() (console.Doc, error) { return v.Get(apiOf(v), nil) })
		},
		Actions: []*console.Action{{Name: "rotate-webhook", Path: rotatePath, Label: "Rotate the secret",
			Does: "POST /api/v1/tenants/{tenantId}/webhooks/{webhookId}/rotate", Secret: true,
			Fields: []console.Field{{Name: "overlapSeconds", Label: "Overlap in seconds",
				Hint: "How long the earlier secrets stay valid, at most 604800; 0 ends them at once."}}}}}
}

// resendPage holds the Idempotency-Key of its form in its address: a range may be resent more than once.
func resendPage() *console.Page {
	return &console.Page{Path: resendPath, Title: "Resend events", Template: "resending.html",
		Needs:  "POST /api/v1/tenants/{tenantId}/webhooks/{webhookId}/replay",
		Params: []string{"key"}, CLI: []string{"meterplex webhooks show {webhookId} --tenant {tenantId}",
			"meterplex webhooks replay --help"},
		Load: func(v *console.Visit) (console.Doc, error) {
			return keyed(v, func() (console.Doc, error) { return v.Get(apiOf(v), nil) })
		},
		Actions: []*console.Action{{Name: "resend-events", Path: resendPath, Label: "Resend the events",
			Does: "POST /api/v1/tenants/{tenantId}/webhooks/{webhookId}/replay",
			Warn: "Events that were delivered are sent again, too, each with the webhook-id that it had.",
			Fields: []console.Field{
				{Name: "from", Hint: "Recorded from this time on, e.g. 2026-05-01T00:00:00Z."},
				{Name: "to", Hint: "Recorded before this time."},
			},
			Next: func(v *console.Visit, _ console.Form, _ console.Doc) string { return v.Expand(webhookPath) }}}}
}

// keyed loads a page whose address holds the Idempotency-Key of its form.
func keyed(v *console.Visit, load func() (console.Doc, error)) (console.Doc, error) {
	if d, err := v.Fresh(); err != nil {
		return d, err
	}
	return load()
}
