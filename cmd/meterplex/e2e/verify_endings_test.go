package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"
)

// hooksAllowed lets the endpoints of webhooks be on this machine.
const hooksAllowed = "METERPLEX_WEBHOOK_ALLOW=127.0.0.0/8"

// sendWebhooks gives a tenant a webhook of its closed periods and adjustments, whose endpoint accepts the second attempt.
func (w *deployment) sendWebhooks(at *instance, x *tenant) {
	w.t.Helper()
	var refused bool
	endpoint := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, _ *http.Request) {
		if !refused {
			refused = true
			answer.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	w.t.Cleanup(func() { endpoint.CloseClientConnections(); endpoint.Close() })
	w.ask(w.operator, http.MethodPost, at, "/api/v1/tenants/"+x.id+"/webhooks", object{"url": endpoint.URL, "events": []string{"period.closed", "adjustment.pending"}}, nil, http.StatusCreated)
}

// delivered waits until all deliveries of webhooks have ended.
func (w *deployment) delivered() {
	w.t.Helper()
	within(w.t, "the deliveries of webhooks have ended", func(ctx context.Context) (bool, string) {
		var waiting, behind, all int64
		err := w.sql.QueryRow(ctx, `SELECT (SELECT count(*) FROM webhook_deliveries WHERE state = 'PENDING'), (SELECT count(*) FROM webhooks w JOIN log_heads h USING (partition)
 WHERE w.status = 'ENABLED' AND w.cursor < h.topic_positions[7]), (SELECT count(*) FROM webhook_deliveries)`).Scan(&waiting, &behind, &all)
		return err == nil && waiting+behind == 0, fmt.Sprintf("%d of %d wait, %d webhooks are behind: %v", waiting, all, behind, err)
	})
}

// offboard ends a tenant.
func (w *deployment) offboard(at *instance, x *tenant) {
	w.t.Helper()
	path := "/api/v1/tenants/" + x.id + "/offboard"
	w.ask(w.operator, http.MethodPost, at, path, object{"reason": "a test"}, nil, http.StatusAccepted)
	within(w.t, "the tenant is archived", func(ctx context.Context) (bool, string) {
		var o struct{ State, Step string }
		w.outdateKeys(ctx, x)
		err := w.get(ctx, w.operator, at, path, &o)
		return o.State == "ARCHIVED", fmt.Sprintf("%+v %v", o, err)
	})
}

// outdateKeys ends the minute at once that an offboarding waits once its tenant is suspended, because an instance may still accept a key, as the clock does. The
// torture waits for the clock.
func (w *deployment) outdateKeys(ctx context.Context, x *tenant) {
	w.t.Helper()
	for _, end := range []string{
		`UPDATE offboardings SET suspended_at = suspended_at - interval '1 minute' WHERE tenant_id = $1 AND state = 'RUNNING' AND drained_to = 0 AND suspended_at > now() - interval '1 minute'`,
		`UPDATE sagas SET next_at = now() WHERE tenant_id = $1 AND lease IS NULL AND 'keys' = ANY(missing) AND next_at > now()`,
	} {
		if _, err := w.sql.Exec(ctx, end, x.id); err != nil && ctx.Err() == nil {
			w.t.Error(err)
		}
	}
}

// definePrice defines a price with tiers, and changes it.
func (w *deployment) definePrice(at *instance) {
	w.t.Helper()
	for n, status := range []int{http.StatusCreated, http.StatusOK} {
		w.ask(w.operator, http.MethodPut, at, "/api/v1/prices/tiered", object{"name": "Tiered", "currency": "EUR", "model": "graduated",
			"tiers": []object{{"upTo": 10, "microUnits": 3000, "flatMicroUnits": 5 + n}, {"upTo": nil, "microUnits": 2000}}}, nil, status)
	}
}

// plantsInEndings returns plants in the webhook of a tenant with closeAndAdjust, in the tenant that was offboarded, and in prices and failed pushes.
func (w *deployment) plantsInEndings(x, ended *tenant) []planted {
	w.t.Helper()
	of := func(p int, list ...planted) []planted {
		for n := range list {
			list[n].args = []string{"--only", "database", "--partition", fmt.Sprint(p)}
		}
		return list
	}
	const hooks = "P3 each event that a webhook selects has one delivery, and each delivery an event of its tenant"
	const prices = "P8 each price is its last version in the log"
	hook := ` WHERE tenant_id = '` + x.id + `'`
	closed := hook + ` AND type = 'period.closed'`
	all := of(partitionOf(x.id), append(w.plantsInPushFailures(x),
		planted{check: hooks, do: []string{`UPDATE webhook_deliveries SET type = 'push.failed'` + closed}, undo: []string{`UPDATE webhook_deliveries SET type = 'period.closed'` + hook + ` AND type = 'push.failed'`}},
		planted{check: hooks, do: []string{`UPDATE webhook_attempts SET status = 500` + hook + ` AND status = 200`}, undo: []string{`UPDATE webhook_attempts SET status = 200` + hook + ` AND status = 500`}},
		planted{check: hooks, do: []string{`UPDATE webhook_attempts SET n = 3` + hook + ` AND n = 2`}, undo: []string{`UPDATE webhook_attempts SET n = 2` + hook + ` AND n = 3`}},
		changed(hooks, "webhooks", hook, "url = url || '/'", "url = left(url, -1)"),
		changed(hooks, "webhooks", hook, "cursor = cursor + 1000000", "cursor = cursor - 1000000"),
		planted{check: hooks, do: []string{`CREATE TABLE kept AS SELECT * FROM webhook_deliveries` + closed, `CREATE TABLE kept_attempts AS SELECT * FROM webhook_attempts WHERE delivery_id IN (SELECT id FROM kept)`,
			`DELETE FROM webhook_deliveries` + closed}, undo: []string{`INSERT INTO webhook_deliveries SELECT * FROM kept`, `INSERT INTO webhook_attempts SELECT * FROM kept_attempts`, `DROP TABLE kept`, `DROP TABLE kept_attempts`}},
	)...)
	all = append(all, of(partitionOf(ended.id), w.plantsInOffboarding(ended)...)...)
	return append(all, of(0,
		changed(prices, "prices", ` WHERE key = 'tiered'`, "currency = 'USD'", "currency = 'EUR'"),
		gone(prices, "prices", ""),
	)...)
}

// plantsInOffboarding returns plants in a tenant that was offboarded.
func (w *deployment) plantsInOffboarding(ended *tenant) []planted {
	w.t.Helper()
	const check = "P8 each offboarding follows its steps, keeps what its manifest lists, and ends the tenant's keys and usage"
	of := ` WHERE tenant_id = '` + ended.id + `'`
	p := partitionOf(ended.id)
	drained := w.number(`SELECT position FROM event_log_rows WHERE partition = $1 AND subject = 80 AND tenant_id = $2 AND body ->> 'step' = 'drained'`, p, ended.id)
	to := w.number(`SELECT drained_to FROM offboardings WHERE tenant_id = $1`, ended.id)
	step := func(was, is string) string { // the other bytes stay
		return `body = replace(body::text, '"step":"` + was + `"', '"step":"` + is + `"')::json`
	}
	return []planted{
		changed(check, "offboardings", of, "state = 'RUNNING', ended_at = NULL", "state = 'ARCHIVED', ended_at = now()"),
		changed(check, "offboardings", of, "manifest = manifest || ' '", "manifest = left(manifest, -1)"),
		changed(check, "offboardings", of, "drained_to = 1", fmt.Sprintf("drained_to = %d", to)),
		changed(check, "tenants", ` WHERE id = '`+ended.id+`'`, "status = 'SUSPENDED'", "status = 'ARCHIVED'"),
		{check: check, do: []string{`CREATE TABLE kept AS SELECT id, revoked_at FROM api_keys` + of, `UPDATE api_keys SET revoked_at = NULL` + of},
			undo: []string{`UPDATE api_keys k SET revoked_at = o.revoked_at FROM kept o WHERE o.id = k.id`, `DROP TABLE kept`}},
		{check: check, do: []string{inLog(p, drained, step("drained", "closed"))}, undo: []string{inLog(p, drained, step("closed", "drained"))}},
	}
}

// plantsInPushFailures returns plants in pushes of a tenant without billing.
func (w *deployment) plantsInPushFailures(x *tenant) []planted {
	w.t.Helper()
	const check = "P8 the failures of pushes and the differences to the provider's totals are those of the log"
	const id = "01900000-0000-7000-8000-00000000b222"
	month := time.Now().UTC().Format("2006-01")
	push := func(failures, state string) string {
		key := x.id + ":grouped:2001-01:1"
		return `INSERT INTO pushes (id, tenant_id, feature, period_key, snapshot, n, amount, provider, customer, event, key, identifier, counted_at, state, attempts, failures, stored_at, last_code)
 VALUES ('` + id + `', '` + x.id + `', 'grouped', '2001-01', 1, 0, 3, 'stripe', 'cus_9', 'grouped', '` + key + `', 'mp_' || left(encode(sha256(convert_to('` + key + `', 'UTF8')), 'hex'), 40), now(), '` + state + `', 1, ` + failures + `, now(), 'refused')`
	}
	undo := `DELETE FROM pushes WHERE id = '` + id + `'`
	return []planted{
		{check: check, do: []string{push("1", "FAILED")}, undo: []string{undo}},
		{check: check, do: []string{push("0", "FAILED")}, undo: []string{undo}},
		{check: check, do: []string{push("0", "PENDING"), `INSERT INTO push_comparisons VALUES ('stripe', 'cus_9', 'grouped', '` + month + `', 5, 3, now())`},
			undo: []string{undo, `DELETE FROM push_comparisons WHERE customer = 'cus_9'`}},
	}
}
