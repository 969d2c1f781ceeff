package http_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/tier"
)

// maxPage bounds the HTML of a page.
const maxPage = 200 << 10

// TestConsole_PagesStaySmall: at the limits of names, metadata, ids and lists, each page that lists or shows them has at most 200 KiB.
func TestConsole_PagesStaySmall(t *testing.T) {
	tier.AtSize(t)
	w := newTestService(t)
	w.catalogue()
	wide, reason, id := strings.Repeat("界", 200), strings.Repeat("&", 500), strings.Repeat("&", 250)
	granted := make([]string, 200)
	for n := range granted {
		feature := fmt.Sprintf("%s%03d", strings.Repeat("f", 61), n)
		granted[n] = fmt.Sprintf(
			`{"feature":%q,"limit":9007199254740991,"limitBehavior":"HARD","resetPeriod":"ANNUALLY","onIngest":"enforce"}`,
			feature)
		w.want(201, call{"PUT", "/api/v1/features/" + feature, bootstrap, nil, map[string]any{"name": wide, "type": "QUOTA"}})
	}
	w.want(201, call{"PUT", "/api/v1/plans/large", bootstrap, nil, `{"name":"` + wide + `","entitlements":[` + strings.Join(granted, ",") +
		`]}`})
	metadata := map[string]string{}
	for n := range 50 {
		metadata[fmt.Sprintf("%s%02d", strings.Repeat("&", 62), n)] = reason
	}
	a := w.newAccount("A")
	w.want(200, call{"PATCH", "/api/v1/tenants/" + a.id, bootstrap, nil, map[string]any{"name": wide, "metadata": metadata}})
	for n := range 30 {
		w.key(a.id, map[string]any{"name": wide}, "usage:read", "usage:write")
		s := w.want(201, call{"POST", "/api/v1/tenants/" + a.id + "/subscriptions", bootstrap, nil,
			map[string]any{"plan": "large", "status": "EXPIRED"}})
		if n == 0 {
			w.asOwner(`INSERT INTO adjustments SELECT gen_random_uuid(), $1, '2026-04', 1, $2, $3, 'CORRECTION', -9007199254740991, 1, n, n,
				$4, NULL, CASE WHEN n % 2 = 0 THEN 'PENDING' ELSE 'WAIVED' END,
				CASE WHEN n % 2 = 1 THEN $5 END, CASE WHEN n % 2 = 1 THEN n END FROM generate_series(1, 300) n`, a.id,
				strings.Repeat("f", 64), s["id"], id, reason)
		}
	}
	webhook, _ := w.webhookOf(a)
	w.asOwner(`INSERT INTO webhook_deliveries (id, webhook_id, tenant_id, event_id, type, position, state, sent, next_at, created_at)
		SELECT gen_random_uuid(), $1, $2, gen_random_uuid(), 'adjustment.pending', n, 'PENDING', 100, now(), now() FROM generate_series(1,
		50) n`, webhook, a.id)
	w.asOwner(`INSERT INTO webhook_attempts SELECT id, tenant_id, n, now(), 500, 10000, $1 FROM webhook_deliveries, generate_series(81,
		100) n`,
		strings.Repeat("&", 200))
	for range 50 {
		w.want(201, call{"POST", "/api/v1/tenants/" + a.id + "/thresholds", bootstrap, nil,
			map[string]any{"feature": "api_calls", "percent": 1000}})
	}
	for n := range 60 {
		w.want(201, holding(a.key, strings.Repeat("&", 250)+fmt.Sprint(n), 1, 3600))
		w.push(a.id, n+1, "FAILED")
	}
	w.asOwner(`UPDATE pushes SET last_error = $1`, reason)
	for n := range 40 {
		w.rejections(a, fmt.Sprintf("feature-%s-%d", strings.Repeat("x", 40), n), 2)
	}
	var used []any
	for n := range 60 {
		notes := map[string]any{"region": strings.Repeat("&", 2000), strings.Repeat("界", 64): strings.Repeat("<", 1700)}
		used = append(used, event(fmt.Sprint(strings.Repeat("&", 240), n), map[string]any{"metadata": notes}))
	}
	w.accept(a, used...)
	w.fold()
	b, tenant := w.signIn(bootstrap), "/console/tenants/"+a.id
	for _, path := range []string{"/console/adjustments", "/console/adjustments?state=PENDING",
		"/console/adjustments/decision?tenantId=" + a.id, tenant, tenant + "/change", tenant + "/webhooks/" + webhook,
		tenant + "/thresholds", tenant + "/periods/2026-04", "/console/catalogue", "/console/catalogue/plans/large", "/console/pushes",
		"/console/reservations?feature=api_calls&tenantId=" + a.id,
		"/console/dead-letters", "/console/usage/events?tenantId=" + a.id, "/console/events?tenantId=" + a.id,
		"/console/usage?feature=api_calls&groupBy=region&tenantId=" + a.id,
		"/console/usage/explain?feature=api_calls&include=rejected&period=" + now()[:7] + "&tenantId=" + a.id} {
		b.small(path)
	}
	w.signIn(a.key).small("/console/reservations?feature=api_calls")
}

func (b *browser) small(path string) {
	b.Helper()
	page := b.open(path)
	if page.status != 200 || len(page.body) > maxPage {
		b.Errorf("%s gives %d and %d bytes", path, page.status, len(page.body))
	}
}
