package e2e

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	service "github.com/meterplex/meterplex/http"
)

// consoleAction is an action of the console, as a person executes it on one of its pages.
type consoleAction struct {
	route  string            // its row in the table of routes
	page   string            // that offers it; {name} is a value of the subject
	fields map[string]string // what is entered, by name; of checkboxes, the values that are chosen
	before func(s *subject)  // makes its target
	own    bool              // the tenant's key executes it
	events int               // in the log, with the reason of the form; 0: 1
	made   string            // SQL that counts its executions by that reason, if the log has no event of it
}

// subject has the targets of all actions, once.
type subject struct {
	*consoleWorld
	mark                    string // in names and reasons
	ids                     map[string]string
	changed, billed, failed *tenant
}

// newSubject makes the targets that no action makes.
func (w *consoleWorld) newSubject(mark string) *subject {
	w.t.Helper()
	made := w.createTenants(w.at, 3)
	s := &subject{consoleWorld: w, mark: mark, changed: made[0], billed: made[1], failed: made[2]}
	s.ids = map[string]string{"changed": s.changed.id, "billed": s.billed.id, "failed": s.failed.id, "mark": mark}
	w.patch("/tenants/"+s.billed.id, object{"lateUsage": "ADJUST"})
	w.ingest(w.at, s.billed, "accepted", events("before", 3, "api_calls")...)
	s.billed.key = w.keyOf(w.at, s.billed, "usage:write", "entitlements:read", "entitlements:reserve")
	w.ask(s.billed.key, http.MethodPost, w.at, "/api/v1/entitlements/calls/reservations", object{"reservationId": "job-8", "amount": 5, "ttlSeconds": 3600}, nil, http.StatusCreated)
	for feature, n := range map[string]int{"lost": 1, "stray": 1, "late": 2, "gone": 2, "kept": 1} {
		w.lettersOf(s.failed, feature, n)
	}
	for _, state := range []string{"FAILED", "UNKNOWN"} {
		s.ids[strings.ToLower(state)+"-push"] = w.push(s.billed, state)
	}
	return s
}

// fill replaces the names in braces by values of the subject.
func (s *subject) fill(text string) string {
	for name, value := range s.ids {
		text = strings.ReplaceAll(text, "{"+name+"}", value)
	}
	return text
}

// find reads an id that an action has made.
func (s *subject) find(name, sql string, args ...any) {
	s.t.Helper()
	var id string
	within(s.t, "there is a target: "+name, func(ctx context.Context) (bool, string) {
		err := s.sql.QueryRow(ctx, sql, args...).Scan(&id)
		return err == nil, fmt.Sprint(err)
	})
	s.ids[name] = id
}

// answered counts the requests of the console that the service has executed and answered since an action began: the log of events has none of them.
const answered = `SELECT count(*) FROM idempotency_answers WHERE key LIKE '%console-%' AND created_at > '{began}' AND $1 <> ''`

// consoleActions lists the actions of all pages, in an order in which each finds its target.
func consoleActions() []consoleAction {
	const tenant, webhook = "/console/tenants/{tenantId}", "/console/tenants/{tenantId}/webhooks/{webhookId}"
	const changed, hook = "/console/tenants/{changed}", "/console/tenants/{changed}/webhooks/{webhook}"
	hooked := func(s *subject) {
		s.find("webhook", `SELECT id::text FROM webhooks WHERE tenant_id = $1 ORDER BY id DESC LIMIT 1`, s.changed.id)
	}
	all := []consoleAction{
		{route: "/console/new/tenant", page: "/console/new/tenant", fields: map[string]string{"name": "By {mark}"}},
		{route: tenant + "/change", page: changed + "/change", fields: map[string]string{"name": "Renamed by {mark}"}},
		{route: tenant + "/subscriptions/{subscriptionId}/apply-plan", page: changed},
		{route: tenant + "/subscriptions/{subscriptionId}/set-status", page: changed, fields: map[string]string{"status": "CANCELLED"}},
		{route: tenant + "/subscribe", page: changed, fields: map[string]string{"plan": "all"}},
		{route: tenant + "/keys", page: changed, fields: map[string]string{"name": "key", "scopes": "usage:read"}},
		{route: tenant + "/keys/{keyId}/rotate", page: changed},
		{route: tenant + "/keys/{keyId}/revoke", page: changed},
		{route: tenant + "/billing", page: changed, fields: map[string]string{"customer": "cus_1"}},
		{route: tenant + "/billing/remove", page: changed},
		{route: tenant + "/new/webhook", page: changed + "/new/webhook", fields: map[string]string{"url": "https://example.com/{mark}", "events": "push.failed"}},
		{route: webhook + "/change-webhook", page: hook, fields: map[string]string{"url": "https://example.com/changed"}, before: hooked},
		{route: webhook + "/test", page: hook, made: answered},
		{route: webhook + "/deliveries/{deliveryId}/resend", page: hook, made: answered},
		{route: webhook + "/resending", page: hook + "/resending", fields: map[string]string{"from": "2026-04-01T00:00:00Z", "to": "2026-04-02T00:00:00Z"},
			made: answered},
		{route: webhook + "/rotation", page: hook + "/rotation", fields: map[string]string{"overlapSeconds": "60"}},
		{route: webhook + "/disable-webhook", page: hook},
		{route: webhook + "/enable-webhook", page: hook},
		{route: webhook + "/remove", page: hook},
		{route: tenant + "/new/threshold", page: changed + "/new/threshold", fields: map[string]string{"feature": "calls", "percent": "80"}},
		{route: tenant + "/thresholds/{thresholdId}/remove", page: changed + "/thresholds"},
		{route: tenant + "/suspend", page: changed},
		{route: tenant + "/activate", page: changed},
	}
	return append(all, operatorsActions()...)
}

// operatorsActions are those on the catalogue, keys, the system, and what has failed.
func operatorsActions() []consoleAction {
	letter := func(feature string) func(*subject) {
		return func(s *subject) {
			s.find("letter", `SELECT id::text FROM dead_letter_events WHERE tenant_id = $1 AND feature = $2 AND status = 'FAILED' LIMIT 1`, s.failed.id, feature)
		}
	}
	const catalogue, push = "/console/catalogue", "/console/pushes/{pushId}"
	all := []consoleAction{
		{route: "/console/new/operator-key", page: "/console/new/operator-key", fields: map[string]string{"name": "by {mark}", "scopes": "audit"}},
		{route: "/console/keys/{keyId}/rotate", page: "/console/keys"},
		{route: "/console/keys/{keyId}/revoke", page: "/console/keys"},
		{route: "/console/new/feature", page: "/console/new/feature", fields: map[string]string{"lookupKey": "by_{mark}", "name": "Feature", "unit": "each"}},
		{route: catalogue + "/features/{lookupKey}/change", page: catalogue + "/features/by_{mark}", fields: map[string]string{"name": "Renamed"}},
		{route: "/console/new/price", page: "/console/new/price", fields: map[string]string{"priceKey": "by_{mark}", "name": "Price", "currency": "EUR", "microUnits": "5"}},
		{route: catalogue + "/prices/{priceKey}/change", page: catalogue + "/prices/by_{mark}", fields: map[string]string{"name": "Renamed"}},
		{route: "/console/new/plan", page: "/console/new/plan", fields: map[string]string{"key": "by_{mark}", "name": "Plan", "entitlements": `[{"feature":"api_calls","limit":5,"limitBehavior":"HARD","resetPeriod":"MONTHLY"}]`}},
		{route: catalogue + "/plans/{key}/change", page: catalogue + "/plans/by_{mark}", fields: map[string]string{"name": "Renamed"}},
		{route: "/console/dead-letters/{deadLetterId}/retry", page: "/console/dead-letters/{letter}", before: letter("lost")},
		{route: "/console/dead-letters/{deadLetterId}/discard", page: "/console/dead-letters/{letter}", before: letter("stray")},
		{route: "/console/dead-letters/bulk/retry", page: "/console/dead-letters/bulk?action=retry&feature=gone&status=FAILED&tenantId={failed}", before: letter("gone"), events: 3},
		{route: "/console/dead-letters/bulk/discard", page: "/console/dead-letters/bulk?action=discard&feature=late&status=FAILED&tenantId={failed}", before: letter("late"), events: 3},
		{route: "/console/new/replay", page: "/console/new/replay", fields: map[string]string{"topic": "usage.raw", "fromTime": "2026-01-01T00:00:00Z", "tenantId": "{changed}"}},
		{route: "/console/new/rewind", page: "/console/new/rewind", fields: map[string]string{"to": "consumers"}},
		{route: "/console/new/comparison", page: "/console/pushes", made: `SELECT count(*) FROM sagas WHERE kind = 'billing_compare' AND created_at > '{began}' AND $1 <> ''`},
		{route: push + "/retry", page: "/console/pushes/{failed-push}", made: `SELECT count(*) FROM pushes WHERE last_reason = $1`},
		{route: push + "/resolve", page: "/console/pushes/{unknown-push}", fields: map[string]string{"delivered": "yes"}},
		{route: "/console/entitlements/comparison/{tenantId}/repair", page: "/console/entitlements/comparison?tenantId={billed}", before: func(s *subject) {
			s.count(`WITH u AS (UPDATE quota_accounts SET used = used + 1 WHERE tenant_id = $1 RETURNING 1) SELECT count(*) FROM u`, s.billed.id)
		}},
		{route: "/console/reservations/{feature}/{reservationId}/release", page: "/console/reservations?feature=calls", own: true, made: `SELECT count(*) FROM event_log_rows l JOIN log_origins o ON o.id = l.origin
 WHERE l.tenant_id = '{billed}' AND o.via = 'console' AND o.actor_type = 'api_key' AND l.payload ->> 'reservationId' = 'job-8' AND $1 <> ''`},
	}
	return append(all, billingActions()...)
}

// billingActions are those on rebuilds and on a period, its saga and its adjustments.
func billingActions() []consoleAction {
	const rebuild, period = "/console/rebuilds/{rebuild}", "/console/tenants/{billed}/periods/{month}"
	const pending = "/console/adjustments?state=PENDING&tenantId={billed}"
	state := func(name, wanted string) func(*subject) {
		return func(s *subject) {
			s.find(name, `SELECT id::text FROM projection_rebuilds WHERE tenant_id = $1 AND state = $2 ORDER BY id DESC LIMIT 1`, s.billed.id, wanted)
		}
	}
	return []consoleAction{
		{route: "/console/new/rebuild", page: "/console/new/rebuild?projection=usage_aggregates", fields: map[string]string{"tenantId": "{billed}"}, before: func(s *subject) { s.abandonReady() }},
		{route: "/console/tenants/{tenantId}/periods/{periodKey}/close", page: period, fields: map[string]string{"early": "true"}, before: func(s *subject) {
			state("rebuild", "READY")(s) // the close waits for it
			s.find("month", `SELECT period_key FROM usage_aggregates WHERE tenant_id = $1 AND feature = 'api_calls' LIMIT 1`, s.billed.id)
		}},
		{route: "/console/sagas/{sagaId}/retry", page: "/console/sagas/{saga}", fields: map[string]string{"despite": "rebuilds"}, made: `SELECT count(*) FROM sagas WHERE last_reason = $1 AND retries = 1`,
			before: func(s *subject) {
				s.find("saga", `SELECT id::text FROM sagas WHERE tenant_id = $1 AND kind = 'period_close' AND 'rebuilds' = ANY(missing)`, s.billed.id)
			}},
		{route: "/console/adjustments/{adjustmentId}/approve", page: pending, before: func(s *subject) {
			within(s.t, "the period is closed", func(context.Context) (bool, string) {
				n := s.count(`SELECT count(*) FROM period_snapshots WHERE tenant_id = $1`, s.billed.id)
				return n == 1, fmt.Sprint(n)
			})
			s.ingest(s.at, s.billed, "accepted", events("late", 3, "api_calls")...)
			within(s.t, "there are adjustments", func(context.Context) (bool, string) {
				n := s.count(`SELECT count(*) FROM adjustments WHERE tenant_id = $1 AND state = 'PENDING'`, s.billed.id)
				return n == 3, fmt.Sprint(n)
			})
		}},
		{route: "/console/adjustments/{adjustmentId}/waive", page: pending},
		{route: "/console/adjustments/decision", page: "/console/adjustments/decision?tenantId={billed}"},
		{route: "/console/rebuilds/{rebuildId}/diff/promote", page: rebuild + "/diff", before: state("rebuild", "READY")},
		{route: "/console/rebuilds/{rebuildId}/rollback", page: rebuild, before: state("rebuild", "PROMOTED")},
		{route: "/console/rebuilds/{rebuildId}/abandon", page: rebuild, before: state("rebuild", "ROLLED_BACK")},
		{route: "/console/new/verify", page: "/console/new/verify?projection=usage_aggregates", fields: map[string]string{"tenantId": "{billed}"}},
		{route: "/console/tenants/{tenantId}/periods/{periodKey}/reopen", page: period},
		{route: "/console/tenants/{tenantId}/offboard", page: "/console/tenants/{failed}", made: `SELECT count(*) FROM offboardings WHERE reason = $1 AND actor LIKE 'api_key/%'`},
		{route: "/console/tenants/{tenantId}/offboard/cancel", page: "/console/tenants/{failed}", made: `SELECT count(*) FROM offboardings WHERE cancel_reason = $1 AND cancel_actor LIKE 'api_key/%'`},
	}
}

// Each action of the console has a row in the table, and each row an action.
func TestConsole_EachActionHasARow(t *testing.T) {
	rows := map[string]bool{}
	for _, a := range consoleActions() {
		rows[a.route] = true
	}
	for _, r := range service.ConsoleRoutes() {
		if r.Method == http.MethodPost && r.Session && !rows[r.Path] {
			t.Errorf("no row of the table executes %s", r.Path)
		}
		if r.Method == http.MethodPost {
			delete(rows, r.Path)
		}
	}
	for path := range rows {
		t.Errorf("no action has the path %s", path)
	}
}

// reasonOf is the reason that a test gives for an action.
func (s *subject) reasonOf(a consoleAction) string {
	return "by " + s.mark + ": " + regexp.MustCompile(`[{}/]+`).ReplaceAllString(a.route, " ")
}

// executed fails unless an action was executed once: its events in the log have the reason, the key as actor, and console as the way.
func (s *subject) executed(a consoleAction, when string) {
	s.t.Helper()
	reason, want := s.reasonOf(a), max(a.events, 1)
	if a.made != "" {
		if n := s.count(s.fill(a.made), reason); n != want {
			s.t.Errorf("%s: %s was executed %d times", when, a.route, n)
		}
		return
	}
	of := s.count(`SELECT count(*) FROM event_log_rows l WHERE l.payload ->> 'reason' = $1`, reason)
	by := s.count(`SELECT count(*) FROM event_log_rows l JOIN log_origins o ON o.id = l.origin WHERE l.payload ->> 'reason' = $1 AND o.via = 'console' AND o.actor_type = 'api_key' AND o.actor_id <> ''`, reason)
	if of != want || by != want {
		s.t.Errorf("%s: %s has %d events with its reason, %d of them by the key via the console, instead of %d", when, a.route, of, by, want)
	}
}
