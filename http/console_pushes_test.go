package http_test

import (
	"net/url"
	"testing"

	"github.com/meterplex/meterplex/events"
)

// TestConsole_P8_PushesAreRetriedAndResolved: each once for a display, and the log has the deliveries.
func TestConsole_P8_PushesAreRetriedAndResolved(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a, other := w.newAccount("A"), w.newAccount("B")
	w.want(200, call{"PUT", "/api/v1/tenants/" + a.id + "/billing", bootstrap, nil, `{"provider":"stripe","customer":"cus_NffrFeUfNV2Hib"}`})
	failed, unknown := w.push(a.id, 1, "FAILED"), w.push(a.id, 2, "UNKNOWN")
	foreign := w.push(other.id, 1, "FAILED")
	w.asOwner(`UPDATE pushes SET last_error = $1`, hostile)
	b := w.signIn(bootstrap)
	list := b.open("/console/pushes?tenantId=" + a.id)
	b.shows(list, failed, unknown, hostileShown, "The provider&#39;s totals were not compared yet")
	b.hides(list, foreign)
	b.hides(b.open("/console/pushes?state=FAILED"), unknown)
	at := "/console/pushes/" + failed
	page := b.open(at)
	b.shows(page, "resource_missing", "cus_NffrFeUfNV2Hib", "<code>12</code>")
	b.shows(b.twice(page, at+"/retry", "the customer exists now", nil), "PENDING", "the customer exists now", "Done: Retry now.")
	at = "/console/pushes/" + unknown
	page = b.open(at)
	if got := b.act(page, at+"/resolve", "it lists it", url.Values{"delivered": {""}}); got.status != 400 {
		t.Errorf("a resolution without an answer gives %d", got.status)
	}
	b.shows(b.twice(page, at+"/resolve", "Stripe lists it", url.Values{"delivered": {"yes"}}), "DELIVERED", "Stripe lists it", "Done: Resolve.")
	w.once(events.PushDelivered, 1)
	w.same("states", w.listedPushes("?tenantId="+a.id, "state"), []string{"DELIVERED", "PENDING"})
	w.same("of another tenant", w.listedPushes("?tenantId="+other.id, "state"), []string{"FAILED"})
	for n := 1; n <= 2; n++ { // a comparison for each display
		b.shows(b.twice(b.open("/console/pushes"), "/console/new/comparison", "before the invoices", nil), "Done: Compare with the provider.", "RUNNING")
		w.same("comparisons", w.number(`SELECT count(*) FROM sagas WHERE kind = 'billing_compare'`), n)
	}
	if got := b.open("/console/pushes/" + newID().String()); got.status != 404 {
		t.Errorf("an unknown push gives %d", got.status)
	}
}

// TestConsole_WebhooksAreManaged: the secret is shown once, a test and a resending happen once for a display.
func TestConsole_WebhooksAreManaged(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a, other := w.newAccount("A"), w.newAccount("B")
	foreign, _ := w.webhookOf(other)
	b, tenant := w.signIn(bootstrap), "/console/tenants/"+a.id
	b.shows(b.open(tenant+"/webhooks"), "The tenant has no webhook")
	form := b.follow(b.open(tenant + "/new/webhook"))
	b.problemShown(b.act(form, tenant+"/new/webhook", "for their ERP", url.Values{"url": {"http://127.0.0.1"}, "events": {"period.closed"}}), 400, "url_invalid", `value="http://127.0.0.1"`)
	sent := url.Values{"url": {"https://example.com/?q=<script>"}, "events": {"push.failed", "period.closed"}}
	made := b.act(form, tenant+"/new/webhook", "for their ERP", sent)
	b.shows(made, "whsec_", "shown once")
	secret := firstMatch(`whsec_[A-Za-z0-9&#;+/=]+`, made.body)
	again := b.act(form, tenant+"/new/webhook", "clicked twice", sent)
	b.hides(again, "whsec_")
	w.once(events.WebhookChanged, 1)
	at := firstMatch(tenant+`/webhooks/[0-9a-f-]{36}`, made.body)
	page := b.open(at)
	b.shows(page, "https://example.com/?q=&lt;script&gt;", "period.closed, push.failed", "ENABLED", "No delivery matches")
	b.hides(page, "whsec_", secret)
	b.hides(b.open(tenant+"/webhooks"), foreign, "whsec_")

	page = b.twice(page, at+"/test", "does it work", nil)
	b.shows(page, "webhook.test", "PENDING")
	w.same("deliveries", w.number(`SELECT count(*) FROM webhook_deliveries d JOIN webhooks w ON w.id = d.webhook_id WHERE w.tenant_id = $1`, a.id), 1)
	delivery := firstMatch(at+`/deliveries/[0-9a-f-]{36}/resend`, page.body)
	b.shows(b.twice(page, delivery, "they lost it", nil), "Done: Resend.")

	rotation := b.follow(b.open(at + "/rotation"))
	rotated := b.act(rotation, at+"/rotation", "leaked", url.Values{"overlapSeconds": {"0"}})
	b.shows(rotated, "whsec_", "shown once")
	b.hides(b.act(rotation, at+"/rotation", "leaked", url.Values{"overlapSeconds": {"0"}}), "whsec_")
	w.once(events.WebhookChanged, 2)
	b.hides(b.open(at), "whsec_")
	b.problemShown(b.act(b.follow(b.open(at+"/rotation")), at+"/rotation", "leaked", url.Values{"overlapSeconds": {"1e3"}}), 400, "overlap_seconds_invalid", `value="1e3"`)

	resending := b.follow(b.open(at + "/resending"))
	b.problemShown(b.act(resending, at+"/resending", "they lost it", url.Values{"from": {"yesterday"}, "to": {"2026-05-01T00:00:00Z"}}), 400, "from_invalid", `value="yesterday"`)
	b.shows(b.twice(resending, at+"/resending", "they lost it", url.Values{"from": {"2026-04-01T00:00:00Z"}, "to": {"2026-04-02T00:00:00Z"}}), "Done: Resend the events.")

	b.shows(b.twice(b.open(at), at+"/change-webhook", "moved", url.Values{"url": {"https://example.com/new"}, "events": {"period.closed", "push.failed"}}), "https://example.com/new")
	w.once(events.WebhookChanged, 3)
	b.shows(b.twice(b.open(at), at+"/disable-webhook", "too slow", nil), "DISABLED")
	b.shows(b.twice(b.open(at), at+"/enable-webhook", "faster", nil), "ENABLED")
	w.once(events.WebhookChanged, 5)
	b.shows(b.twice(b.open(at), at+"/remove", "no longer used", nil), "The tenant has no webhook")
	w.once(events.WebhookChanged, 6)
	w.same("webhooks of another tenant", w.number(`SELECT count(*) FROM webhooks WHERE tenant_id = $1 AND status = 'ENABLED'`, other.id), 1)
	if got := b.open(tenant + "/webhooks/" + foreign); got.status != 404 {
		t.Errorf("another tenant's webhook gives %d", got.status)
	}
}

// TestConsole_ThresholdsAreCreatedAndRemoved: a threshold that was removed can be created again, from another display.
func TestConsole_ThresholdsAreCreatedAndRemoved(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("A")
	b, tenant := w.signIn(bootstrap), "/console/tenants/"+a.id
	b.shows(b.open(tenant+"/thresholds"), "The tenant has no threshold")
	for n := 1; n <= 2; n++ {
		form := b.follow(b.open(tenant + "/new/threshold"))
		b.problemShown(b.act(form, tenant+"/new/threshold", "warn them", url.Values{"percent": {"5.0"}}), 400, "percent_invalid", `value="5.0"`)
		list := b.twice(form, tenant+"/new/threshold", "warn them", url.Values{"feature": {"api_calls"}, "percent": {"80"}})
		b.shows(list, "api_calls", `<td class="number">80</td>`)
		w.once(events.ThresholdChanged, 2*n-1)
		b.shows(b.twice(list, firstMatch(tenant+`/thresholds/[0-9a-f-]{36}/remove`, list.body), "not wanted", nil), "The tenant has no threshold")
		w.once(events.ThresholdChanged, 2*n)
	}
}
