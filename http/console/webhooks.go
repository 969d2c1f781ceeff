package console

import (
	"net/http"
	"strings"
)

const (
	webhooksPath   = tenantPath + "/webhooks"
	webhookPath    = webhooksPath + "/{webhookId}"
	newWebhookPath = tenantPath + "/new/webhook"
	rotatePath     = webhookPath + "/rotation"
	resendPath     = webhookPath + "/resending"
)

// webhook joins the segments of a path of the API below the webhook of a page.
func (v *visit) webhook(below ...string) string {
	return api(append([]string{"tenants", v.param("tenantId"), "webhooks", v.param("webhookId")}, below...)...)
}

func webhooksPage() *page {
	return &page{path: webhooksPath, title: "Webhooks", template: "webhooks.html", needs: "GET /api/v1/tenants/{tenantId}/webhooks",
		params: []string{"cursor"}, limit: 100, cli: []string{"meterplex webhooks list --tenant {tenantId}"}}
}

// newWebhookPage holds the Idempotency-Key of its form in its address.
func newWebhookPage() *page {
	const path = newWebhookPath
	return &page{path: path, title: "New webhook", template: "webhook_new.html", needs: "POST /api/v1/tenants/{tenantId}/webhooks",
		params: []string{"key"}, cli: []string{"meterplex webhooks create --help"},
		actions: []*action{{name: "create-webhook", path: path, label: "Create the webhook", does: "POST /api/v1/tenants/{tenantId}/webhooks", secret: true,
			fields: []field{{name: "url", label: "URL", hint: "An https URL of a public host."}, {name: "events"}}}}}
}

func webhookPage() *page {
	return &page{path: webhookPath, title: "Webhook", template: "webhook.html", needs: "GET /api/v1/tenants/{tenantId}/webhooks/{webhookId}",
		params: []string{"state", "cursor"},
		cli:    []string{"meterplex webhooks show {webhookId} --tenant {tenantId}", "meterplex webhooks deliveries {webhookId} --tenant {tenantId}[ --state {state}]"},
		load: func(v *visit) (doc, error) {
			webhook, err := v.get(v.webhook(), nil)
			if err != nil {
				return nil, err
			}
			deliveries, err := v.try(v.webhook("deliveries"), limited(6, v.pick("state", "cursor")))
			if err != nil {
				return nil, err
			}
			newest := deliveries
			if len(v.pick("state", "cursor")) > 0 { // the newest delivery of all says how often the webhook was tested
				newest, err = v.do(request{Method: http.MethodGet, Path: v.webhook("deliveries"), Query: limited(1, nil)})
			}
			data := doc{"webhook": webhook, "deliveries": deliveries}
			data["was"] = wasOf(map[string]string{"url": text(webhook["url"]), "events": strings.Join(texts(items(webhook["events"])), ",")})
			if all := items(newest["data"]); len(all) > 0 {
				data["newest"] = object(all[0])["id"]
			}
			return data, err
		},
		actions: webhookActions()}
}

func webhookActions() []*action {
	const one = "/api/v1/tenants/{tenantId}/webhooks/{webhookId}"
	status := func(name, label, warn, to string) *action {
		return &action{name: name, path: webhookPath + "/" + name, label: label, warn: warn, does: "PATCH " + one, sets: map[string]any{"status": to}}
	}
	return []*action{
		status("enable-webhook", "Enable", "It gets the events that are recorded from now on. Resend the events between, if they matter.", "ENABLED"),
		status("disable-webhook", "Disable", "It gets no events until it is enabled.", "DISABLED"),
		{name: "change-webhook", path: webhookPath + "/change-webhook", label: "Change the URL or the events", does: "PATCH " + one,
			fields: []field{{name: "url", label: "URL"}, {name: "events"}, {name: "was", kind: "hidden"}}},
		{name: "remove-webhook", path: webhookPath + "/remove", label: "Remove", warn: "Its secrets are deleted. It cannot be restored.", does: "DELETE " + one,
			next: func(v *visit, _ form, _ doc) string { return v.expand(webhooksPath) }},
		{name: "test-webhook", path: webhookPath + "/test", label: "Send a test event", does: "POST " + one + "/test"},
		{name: "resend-delivery", path: webhookPath + "/deliveries/{deliveryId}/resend", label: "Resend", does: "POST /api/v1/deliveries/{deliveryId}/replay"},
	}
}

// rotatePage holds the Idempotency-Key of its form in its address, because a rotation makes a secret.
func rotatePage() *page {
	return &page{path: rotatePath, title: "Rotate the secret", template: "rotation.html", needs: "POST /api/v1/tenants/{tenantId}/webhooks/{webhookId}/rotate",
		params: []string{"key"}, cli: []string{"meterplex webhooks show {webhookId} --tenant {tenantId}", "meterplex webhooks rotate --help"},
		load: func(v *visit) (doc, error) { return v.keyed(func() (doc, error) { return v.get(v.webhook(), nil) }) },
		actions: []*action{{name: "rotate-webhook", path: rotatePath, label: "Rotate the secret", does: "POST /api/v1/tenants/{tenantId}/webhooks/{webhookId}/rotate", secret: true,
			fields: []field{{name: "overlapSeconds", label: "Overlap in seconds", hint: "How long the earlier secrets stay valid, at most 604800; 0 ends them at once."}}}}}
}

// resendPage holds the Idempotency-Key of its form in its address: a range may be resent more than once.
func resendPage() *page {
	return &page{path: resendPath, title: "Resend events", template: "resending.html", needs: "POST /api/v1/tenants/{tenantId}/webhooks/{webhookId}/replay",
		params: []string{"key"}, cli: []string{"meterplex webhooks show {webhookId} --tenant {tenantId}", "meterplex webhooks replay --help"},
		load: func(v *visit) (doc, error) { return v.keyed(func() (doc, error) { return v.get(v.webhook(), nil) }) },
		actions: []*action{{name: "resend-events", path: resendPath, label: "Resend the events", does: "POST /api/v1/tenants/{tenantId}/webhooks/{webhookId}/replay",
			warn: "Events that were delivered are sent again, too, each with the webhook-id that it had.",
			fields: []field{
				{name: "from", hint: "Recorded from this time on, e.g. 2026-05-01T00:00:00Z."},
				{name: "to", hint: "Recorded before this time."},
			},
			next: func(v *visit, _ form, _ doc) string { return v.expand(webhookPath) }}}}
}

// keyed loads a page whose address holds the Idempotency-Key of its form.
func (v *visit) keyed(load func() (doc, error)) (doc, error) {
	if d, err := v.fresh(); err != nil {
		return d, err
	}
	return load()
}
