package e2e

// plantsInPushes returns plants in the pushes of a tenant with closeAndAdjust, of which nothing is pushed.
func (w *deployment) plantsInPushes(x *tenant) []planted {
	w.t.Helper()
	const check = "P8 the pushes of each closed period are its billable figure, and each is delivered once"
	const id = "01900000-0000-7000-8000-00000000b111"
	push := func(n, state, key string) planted {
		return planted{check: check, do: []string{`INSERT INTO pushes (id, tenant_id, feature, period_key, snapshot, n, amount, provider, customer, event, key, identifier, counted_at, state, attempts, stored_at, delivered_at)
 SELECT '` + id + `', tenant_id, 'grouped', period_key, 1, ` + n + `, 3, 'stripe', 'cus_1', 'grouped', ` + key + `, 'mp_' || left(encode(sha256(convert_to(` + key + `, 'UTF8')), 'hex'), 40), now(), '` + state + `', 1, now(),
 CASE WHEN '` + state + `' = 'DELIVERED' THEN now() END FROM period_snapshots WHERE tenant_id = '` + x.id + `' AND snapshot = 1`},
			undo: []string{`DELETE FROM pushes WHERE id = '` + id + `'`}}
	}
	const key = `tenant_id || ':grouped:' || period_key || ':1'`
	return []planted{
		push("0", "DELIVERED", key), // without an event
		push("1", "PENDING", key),   // under the key of the first
		{check: check, do: []string{ // a saga of the last snapshot that stored no push of the billable figure
			`UPDATE tenants SET billing_provider = 'stripe', billing_customer = 'cus_1' WHERE id = '` + x.id + `'`,
			`INSERT INTO sagas (id, kind, tenant_id, key, step, state, next_at, created_at, ended_at, outcome)
 SELECT '` + id + `', 'billing_push', tenant_id, 'close/' || period_key || '/' || max(snapshot), 'send', 'COMPLETED', now(), now(), now(), 'success' FROM period_snapshots WHERE tenant_id = '` + x.id + `'
 GROUP BY tenant_id, period_key ORDER BY count(*) DESC LIMIT 1`},
			undo: []string{`DELETE FROM sagas WHERE id = '` + id + `'`, `UPDATE tenants SET billing_provider = NULL, billing_customer = NULL WHERE id = '` + x.id + `'`}},
	}
}
