package http_test

import (
	"fmt"
	nethttp "net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/auth"
)

// consoleAction is an action of the console on the entities of tenant A.
type consoleAction struct {
	action  string         // the path of its route
	page    string         // the page that has its form; "": at the path before the last element
	sent    string         // the other values of its form, as a query
	subject events.Subject // of the event that it makes; 0: none
	shows   string         // by the page that it leads to; the form of a secret that is shown once
}

const (
	consoleTenant  = "/console/tenants/{tenantId}"
	consoleWebhook = consoleTenant + "/webhooks/{webhookId}"
	consoleRebuild = "/console/rebuilds/{rebuildId}"
	opSecret       = `mp_op_[A-Za-z0-9_-]{43}`
	liveSecret     = `mp_live_[A-Za-z0-9_-]{43}`
	linkSecret     = `/console/portal/live_[A-Za-z0-9_-]{43}`
	hookSecret     = `whsec_[A-Za-z0-9+/=]{40,}`
	anyURL         = "https://example.com/%3Fq=<script>"
)

// consoleActions returns the actions, in an order in which each is possible.
func consoleActions() []consoleAction {
	const subscription, period = consoleTenant + "/subscriptions/{subscriptionId}", consoleTenant + "/periods/{periodKey}"
	return []consoleAction{
		{consoleTenant + "/change", consoleTenant + "/change",
			"name=<b>A&class=large&lateUsage=ADJUST&externalIds=crm-1&metadata={\"q\":\"'\"}",
			events.TenantChanged, "crm-1"},
		{consoleTenant + "/suspend", "", "", events.TenantChanged, "SUSPENDED"},
		{consoleTenant + "/activate", "", "", events.TenantChanged, "ACTIVE"},
		{consoleTenant + "/subscribe", "", "plan=basic&status=ACTIVE", events.SubscriptionCreated, "basic"},
		{consoleTenant + "/keys", "", "name=server&scopes=usage:write&scopes=usage:read", events.APIKeyCreated, liveSecret},
		{consoleTenant + "/keys/{keyId}/rotate", consoleTenant, "overlapSeconds=3600", events.APIKeyRotated, liveSecret},
		{consoleTenant + "/portal-link", consoleTenant, "expiresInSeconds=60", events.APIKeyCreated, linkSecret},
		{subscription + "/apply-plan", consoleTenant, "plan=basic", events.SubscriptionChanged, "as in the plan"},
		{subscription + "/set-status", consoleTenant, "status=TRIALING", events.SubscriptionChanged, "TRIALING"},
		{consoleTenant + "/billing", "", "provider=stripe&customer=cus_1<b>", events.TenantChanged, "stripe: cus_1&lt;b&gt;"},
		{"/console/new/comparison", "/console/pushes", "", 0, "RUNNING"},
		{consoleTenant + "/billing/remove", consoleTenant, "", events.TenantChanged, ""},
		{"/console/adjustments/{adjustmentId}/approve", "/console/adjustments?tenantId={tenantId}", "", events.AdjustmentDecided,
			"APPROVED"},
		{"/console/adjustments/{adjustmentId}/waive", "/console/adjustments?tenantId={tenantId}", "", events.AdjustmentDecided, "WAIVED"},
		{"/console/adjustments/decision", "/console/adjustments/decision?tenantId={tenantId}&periodKey={periodKey}", "decision=approve",
			events.AdjustmentDecided, ""},
		{"/console/catalogue/features/{lookupKey}/change", "", "name=Tokens&type=QUOTA&unit=token&groupBy=region, model",
			events.FeatureDefined,
			"region, model"},
		{"/console/new/feature", "/console/new/feature", "lookupKey=extra&name=<b>E&type=METERED", events.FeatureDefined, "extra"},
		{"/console/catalogue/prices/{priceKey}/change", "",
			"name=C&currency=EUR&model=graduated&microUnits=&tiers=[{\"upTo\":9007199254740990,\"microUnits\":3},{\"microUnits\":2}]",
			events.PriceDefined, `<td class="number">9,007,199,254,740,990</td>`},
		{"/console/new/price", "/console/new/price", "priceKey=extra&name=E&currency=EUR&model=per_unit&microUnits=9007199254740991",
			events.PriceDefined, "9007199254740991"},
		{"/console/catalogue/plans/{key}/change", "", "name=Basic&entitlements=[{\"feature\":\"api_calls\",\"limit\":9007199254740991}]",
			events.PlanDefined, "9007199254740991"},
		{"/console/new/plan", "/console/new/plan", "key=extra&name=E&entitlements=[{\"feature\":\"api_calls\",\"limit\":10}]",
			events.PlanDefined,
			"extra"},
		{"/console/dead-letters/{deadLetterId}/retry", "", "", events.RetryRequested, ""},
		{"/console/dead-letters/{deadLetterId}/discard", "", "", events.DeadLetterClosed, ""},
		{"/console/dead-letters/bulk/retry", "/console/dead-letters/bulk?action=retry&feature=of-a-retry", "", events.RetryRequested, ""},
		{"/console/dead-letters/bulk/discard", "/console/dead-letters/bulk?action=discard&feature=of-a-discard", "",
			events.DeadLetterClosed, ""},
		{consoleRebuild + "/diff/promote", "", "", events.RebuildPromoted, "PROMOTED"},
		{consoleRebuild + "/rollback", "", "", events.RebuildRolledBack, "ROLLED_BACK"},
		{consoleRebuild + "/abandon", "", "", events.RebuildAbandoned, "ABANDONED"},
		{"/console/new/rebuild", "/console/new/rebuild?projection=entitlement_reads", "workers=2", events.RebuildRequested, "FOLDING"},
		{"/console/new/verify", "/console/new/verify?projection=dead_letter_events", "", events.RebuildRequested, ""},
		{"/console/entitlements/comparison/{tenantId}/repair", "/console/entitlements/comparison?tenantId={tenantId}", "",
			events.AccountReconciled, "The accounts are those of the log"},
		{"/console/keys/{keyId}/rotate", "/console/keys", "overlapSeconds=3600", events.APIKeyRotated, opSecret},
		{"/console/keys/{keyId}/revoke", "/console/keys", "", events.APIKeyRevoked, ""},
		{"/console/new/operator-key", "/console/new/operator-key", "name=night <shift>&scopes=billing&scopes=audit", events.APIKeyCreated,
			opSecret},
		{period + "/reopen", "", "", events.PeriodReopened, "OPEN"},
		{period + "/close", "", "despite=rebuilds", events.PeriodCloseRequested, "CLOSING"},
		{"/console/pushes/{pushId}/retry", "", "", 0, "PENDING"},
		{"/console/pushes/{pushId}/resolve", "", "delivered=yes", events.PushDelivered, "DELIVERED"},
		{"/console/reservations/{feature}/{reservationId}/release", "/console/reservations?feature=api_calls", "",
			events.ReservationReleased,
			"RELEASED"},
		{"/console/sagas/{sagaId}/retry", "", "despite=dead_letters", 0, "dead_letters"},
		{"/console/new/replay", "/console/new/replay", "topic=usage.raw&fromTime=2026-01-01T00:00:00Z", events.ReplayRequested, "range"},
		{"/console/new/rewind", "/console/new/rewind", "consumer=meterplex-usage-commands&to=start", events.ReplayRequested,
			"meterplex-usage-commands"},
		{"/console/new/tenant", "/console/new/tenant", "name=Acme <b>&class=small", events.TenantCreated, "Acme &lt;b&gt;"},
	}
}

// lastConsoleActions are those that follow.
func lastConsoleActions() []consoleAction {
	return []consoleAction{
		{consoleTenant + "/new/threshold", consoleTenant + "/new/threshold", "feature=api_calls&percent=80", events.ThresholdChanged,
			`<td class="number">80</td>`},
		{consoleTenant + "/thresholds/{thresholdId}/remove", consoleTenant + "/thresholds", "", events.ThresholdChanged, ""},
		{consoleTenant + "/new/webhook", consoleTenant + "/new/webhook", "url=" + anyURL + "&events=push.failed", events.WebhookChanged,
			hookSecret},
		{consoleWebhook + "/change-webhook", "", "url=" + anyURL + "&events=push.failed", events.WebhookChanged,
			"https://example.com/?q=&lt;script&gt;"},
		{consoleWebhook + "/disable-webhook", "", "", events.WebhookChanged, "DISABLED"},
		{consoleWebhook + "/enable-webhook", "", "", events.WebhookChanged, "ENABLED"},
		{consoleWebhook + "/test", "", "", 0, "webhook.test"},
		{consoleWebhook + "/deliveries/{deliveryId}/resend", consoleWebhook, "", 0, "PENDING"},
		{consoleWebhook + "/rotation", consoleWebhook + "/rotation", "overlapSeconds=0", events.WebhookChanged, hookSecret},
		{consoleWebhook + "/resending", consoleWebhook + "/resending", "from=2026-04-01T00:00:00Z&to=2026-04-02T00:00:00Z", 0, ""},
		{consoleWebhook + "/remove", "", "", events.WebhookChanged, ""},
		{consoleTenant + "/keys/{keyId}/revoke", consoleTenant, "", events.APIKeyRevoked, ""},
		{consoleTenant + "/offboard", "", "", events.OffboardingStepped, "RUNNING"},
		{consoleTenant + "/offboard/cancel", consoleTenant, "", 0, "CANCELLING"},
	}
}

// prepared returns the ids of an action that are not those of the fixture, and makes its entities.
func (m *isolationFixture) prepared(action string) (ids map[string]string) {
	m.Helper()
	switch action {
	case consoleTenant + "/subscribe":
		return map[string]string{"tenantId": m.newAccountlessTenant("Lonely")}
	case "/console/adjustments/{adjustmentId}/waive":
		return map[string]string{"adjustmentId": m.ids["waive adjustmentId"]}
	case "/console/adjustments/decision":
		m.accept(m.a, correction("last-of-A", "old-of-A", 2))
		m.fold()
	case "/console/dead-letters/{deadLetterId}/discard":
		return map[string]string{"deadLetterId": m.letters("?stage=INGESTION")[0]["id"].(string)}
	case "/console/dead-letters/bulk/retry", "/console/dead-letters/bulk/discard":
		m.rejections(m.a, "of-a-"+action[strings.LastIndex(action, "/")+1:], 1)
	case "/console/entitlements/comparison/{tenantId}/repair":
		m.asOwner(`UPDATE quota_accounts SET used = used + 2 WHERE tenant_id = $1 AND held > 0`, m.a.id)
	case "/console/keys/{keyId}/rotate":
		return map[string]string{"keyId": m.ids["operator keyId"]}
	case "/console/keys/{keyId}/revoke": // a rotated key ends by itself
		_, id := m.key("", nil, "audit")
		return map[string]string{"keyId": id}
	case consoleTenant + "/keys/{keyId}/revoke":
		_, id := m.key(m.a.id, nil, "usage:read")
		return map[string]string{"keyId": id}
	case "/console/pushes/{pushId}/resolve":
		return map[string]string{"pushId": m.ids["resolve pushId"]}
	}
	return nil
}

// TestConsole_EveryActionIsMadeOnce for a display, however often and fast its button is clicked: with its event, its reason, and via
// console. Without the
// token of its form, from another site and without a session it changes nothing; keys that may only read see no form. A new action has to
// be in the table.
func TestConsole_EveryActionIsMadeOnce(t *testing.T) {
	m := newIsolationFixture(t)
	b, own, audit := m.signIn(bootstrap), m.signIn(m.a.key), m.signIn(m.audit)
	routes, known := http.ConsoleRoutes(), map[string]bool{}
	before := m.everyRow()
	for _, r := range routes {
		if r.Method == "POST" && r.Session {
			b.refusesForeignForms(routes, r.Path, m.consolePath(r.Path))
			known[r.Path] = true
		}
	}
	m.same("rows", m.everyRow(), before)
	for n, c := range slices.Concat(consoleActions(), lastConsoleActions()) {
		if !known[c.action] {
			t.Errorf("%s is no action", c.action)
		}
		delete(known, c.action)
		ids := m.prepared(c.action)
		fill := func(pattern string) string {
			for name, id := range ids {
				pattern = strings.ReplaceAll(pattern, "{"+name+"}", id)
			}
			return m.consolePath(pattern)
		}
		if c.page == "" {
			c.page = c.action[:strings.LastIndex(c.action, "/")]
		}
		by, action := b, fill(c.action)
		if strings.HasSuffix(c.action, "/release") {
			by = own
		}
		page := by.open(fill(c.page))
		if page.status == nethttp.StatusSeeOther { // to the address with an Idempotency-Key
			page = by.follow(page)
		}
		audit.hides(audit.open(fill(c.page)), `action="`+action+`"`)
		made := m.viaConsole(c.subject)
		c.page = fill(c.page)
		reason := fmt.Sprint(hostile, n)
		by.makes(c, page, action, reason)
		if c.subject == 0 {
			continue
		}
		reasoned := c.subject != events.ReservationReleased && c.subject != events.OffboardingStepped // which hold no reason
		if got := m.viaConsole(c.subject); got != made+1 || reasoned && b.recorded(c.subject, reason) != 1 {
			t.Errorf("%s makes %d events instead of 1, and %d with its reason", c.action, got-made, b.recorded(c.subject, reason))
		}
	}
	for action := range known {
		t.Errorf("%s is not in the table", action)
	}
	if changes := linesWith(m.pages(m.audit, "/api/v1/events?limit=1000&subject=meterplex.catalogue.tenant.changed"),
		`"via":"console"`); len(changes) < 5 {
		t.Errorf("the log shows the console as the way of %d changes of tenants", len(changes))
	}
}

// refusesForeignForms fails if an action takes a form without a token, of another site or without a session, or GET.
func (b *browser) refusesForeignForms(routes []auth.Route, pattern, path string) {
	b.Helper()
	b.pageRefused(pattern+" without a token", b.post(path, url.Values{"reason": {"x"}}), 403, "forbidden")
	header := b.header(map[string]string{"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "cross-site"})
	b.pageRefused(pattern+" of another site", b.do(call{method: "POST", path: path, header: header, body: "reason=x"}), 403, "forbidden")
	b.signedOut(pattern, (&browser{testService: b.testService}).post(path, nil))
	if !served(routes, pattern) { // as the page that has the form
		b.pageRefused("GET of "+pattern, b.open(path), 405, "method_not_allowed")
	}
}

// makes sends the form of an action two times at once and once more with another reason, which lead to the page of the first result, or to
// the list that has it.
func (b *browser) makes(c consoleAction, page answer, action, reason string) {
	b.Helper()
	more, err := url.ParseQuery(strings.NewReplacer("+", "%2B", ";", "%3B").Replace(c.sent))
	b.must(err)
	answers := b.clicks(page, action, reason, more)
	if slices.Contains([]string{opSecret, liveSecret, linkSecret, hookSecret}, c.shows) {
		secret := regexp.MustCompile(c.shows)
		shown := 0
		for _, got := range append(answers, b.open(c.page)) {
			shown += len(secret.FindAllString(strings.ReplaceAll(string(got.body), "&#43;", "+"), 1))
		}
		b.shows(answers[2], "This was done already")
		b.same(c.action+": times that its secret is shown", shown, 1)
		return
	}
	for click, got := range answers {
		to := pathOf(got)
		if got.status != nethttp.StatusSeeOther ||
			to != pathOf(answers[0]) && (click < 2 || !strings.HasPrefix(pathOf(answers[0]), to+"/")) {
			b.Fatalf("%s: click %d gives %d and leads to %s, the first to %s:\n%s", c.action, click+1, got.status, to, pathOf(answers[0]),
				got.body)
		}
		b.shows(b.follow(got), map[bool]string{true: c.shows}[to == pathOf(answers[0])])
	}
}

// recorded returns how many events of a subject are in the log with a reason and via: console.
func (b *browser) recorded(subject events.Subject, reason string) (n int) {
	b.Helper()
	b.must(b.pool.QueryRow(b.Context(), `SELECT count(*) FROM event_log_rows l JOIN log_origins o ON o.id = l.origin
 WHERE l.subject = $1 AND o.via = 'console' AND o.actor_type = 'api_key' AND l.payload ->> 'reason' = $2`, int16(subject), reason).Scan(&n))
	return n
}
