package tenants

import "github.com/meterplex/meterplex/cmd/meterplex/cli/app"

// tenantsRequests lists the commands of one request.
func Requests() []app.Command {
	overlap := app.Tags{
		"overlapSeconds": `name:"overlap" default:"24h" placeholder:"DURATION" help:"How long the earlier secret works, too (default 24h)."`}
	one := app.Tags{"status": `xor:"change" required:""`, "plan": `xor:"change" required:""`, "prices": `xor:"change" required:""`}
	return []app.Command{
		{Name: "tenants create", Op: "createTenant", Args: "name", Tags: app.Tags{"class": `default:"small"`, "externalIds": `sep:"none"`}},
		{Name: "tenants list", Op: "listTenants", Columns: "id name class mode status createdAt externalIds",
			Tags: app.Tags{"q": `aliases:"query" short:"q" placeholder:"TEXT"`}},
		{Name: "tenants show", Op: "getTenant", Args: "tenantId"},
		{Name: "tenants update", Op: "changeTenant", Args: "tenantId", Own: removals{}, Amend: removeOf,
			Tags: app.Tags{"externalIds": `sep:"none"`}},
		{Name: "tenants billing", Op: "putBilling", Args: "tenantId", Own: removal{}, Run: billing,
			Tags: app.Tags{"provider": `default:"stripe"`, "customer": `optional:""`},
			Help: "Set the customer of a tenant at the billing provider, or remove it."},
		{Name: "tenants offboard start", Op: "offboardTenant", Args: "tenantId",
			More: "meterplex sagas show prints the conditions that it waits for (docs/how-to/offboard-a-tenant.md)."},
		{Name: "tenants offboard show", Op: "getOffboarding", Args: "tenantId"},
		{Name: "tenants offboard cancel", Op: "cancelOffboarding", Args: "tenantId"},
		{Name: "tenants portal-link", Op: "createPortalLink", Args: "tenantId", Run: newPortalLink,
			Help: "Create a link for a tenant's people; it is shown this once."},
		{Name: "tenants erasures", Op: "listErasures", Columns: "tenantId state requestedAt endedAt rewrittenEvents reason sagaId"},

		{Name: "keys create", Op: "createKey", Operator: "createOperatorKey", Run: newKey,
			Help: "Create a key; its secret is shown this once.",
			Tags: app.Tags{"scopes": `help:"Of a tenant key: ${tenant_scopes}. Of an operator key: ${operator_scopes}."`}},
		{Name: "keys list", Op: "listKeys", Operator: "listOperatorKeys", Columns: "id name prefix scopes createdAt expiresAt revokedAt",
			Help: "List keys, without secrets."},
		{Name: "keys rotate", Op: "rotateKey", Operator: "rotateOperatorKey", Run: newKey, Tags: overlap,
			Read: app.Reads{"overlapSeconds": app.Seconds(0)},
			Help: "Replace a key; both work for the overlap."},
		{Name: "keys revoke", Op: "revokeKey", Operator: "revokeOperatorKey", Done: "Revoked",
			Help: "Revoke a key, everywhere within a second."},

		{Name: "subscriptions create", Op: "createSubscription"},
		{Name: "subscriptions list", Op: "listSubscriptions", Columns: "id plan status startsAt createdAt"},
		{Name: "subscriptions show", Op: "getSubscription"},
		{Name: "subscriptions update", Op: "changeSubscription", Tags: one,
			Help: "Change a subscription's status, apply a plan, or its current prices."},

		{Name: "webhooks create", Op: "createWebhook", Args: "url", Run: newWebhook,
			Help: "Create a webhook; its secret is shown this once."},
		{Name: "webhooks list", Op: "listWebhooks", Columns: "id url events status reason secrets failingSince lastSuccessAt createdAt"},
		{Name: "webhooks show", Op: "getWebhook"},
		{Name: "webhooks update", Op: "changeWebhook", Tags: app.Tags{"url": `name:"send-to"`}},
		{Name: "webhooks remove", Op: "removeWebhook"},
		{Name: "webhooks rotate", Op: "rotateWebhook", Run: newWebhook, Tags: overlap, Read: app.Reads{"overlapSeconds": app.Seconds(0)}},
		{Name: "webhooks test", Op: "testWebhook"},
		{Name: "webhooks deliveries", Op: "listDeliveries", Columns: "id type state attempts nextAt createdAt eventId position last"},
		{Name: "webhooks replay", Op: "replayDelivery", Own: timeRange{}, Run: replayWebhook,
			Help: "Send one delivery, or the events of a time range, again.", More: replayWebhookHelp},

		{Name: "thresholds create", Op: "createThreshold", Tags: app.Tags{"percent": `xor:"value" required:""`,
			"amount": `xor:"value" required:""`}},
		{Name: "thresholds list", Op: "listThresholds", Columns: "id feature percent amount position createdAt"},
		{Name: "thresholds show", Op: "getThreshold"},
		{Name: "thresholds remove", Op: "removeThreshold"},
	}
}

const replayWebhookHelp = `The events of a time range are those of the webhook's types that were recorded in it, delivered or not, also
while the webhook was disabled:

    meterplex webhooks replay WEBHOOK --tenant ID --from 2026-05-01T00:00:00Z --to 2026-06-01T00:00:00Z`
