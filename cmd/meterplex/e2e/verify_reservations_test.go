package e2e

import (
	"context"
	"fmt"
	"net/http"
)

// limitedUsage sends every kind of request about the tenant's limit of calls: amounts are consumed, and reservations end in each way. The last
// commit brings the account above its limit of 1000.
func (w *deployment) limitedUsage(at *instance, x *tenant) {
	w.t.Helper()
	key, path := w.keyOf(at, x, "entitlements:reserve", "entitlements:read"), "/api/v1/entitlements/calls"
	post := func(to string, in object, want int) {
		w.t.Helper()
		w.ask(key, http.MethodPost, at, path+to, in, nil, want)
	}
	hold := func(id string, amount, seconds int) {
		w.t.Helper()
		post("/reservations", object{"reservationId": id, "amount": amount, "ttlSeconds": seconds}, http.StatusCreated)
	}
	w.ask(w.operator, http.MethodPost, at, "/api/v1/tenants/"+x.id+"/thresholds", object{"feature": "calls", "amount": 5}, nil, http.StatusCreated)
	hold("expires", 5, 1)
	for n := range 3 {
		post("/consume", object{"eventId": fmt.Sprint("consumed", n), "amount": 10 + n}, http.StatusOK)
	}
	hold("part", 100, 60)
	post("/reservations/part/extend", object{"ttlSeconds": 120}, http.StatusOK)
	post("/reservations/part/commit", object{"eventId": "part-usage", "amount": 40}, http.StatusOK)
	hold("released", 20, 60)
	w.ask(key, http.MethodDelete, at, path+"/reservations/released", nil, nil, http.StatusOK)
	hold("stays", 7, 3600)
	hold("more", 50, 60)
	post("/reservations/more/commit", object{"eventId": "more-usage", "amount": 2000, "overage": "record"}, http.StatusOK)
	within(w.t, "the time of a reservation is over", func(ctx context.Context) (bool, string) {
		var r struct{ State string }
		err := w.get(ctx, key, at, path+"/reservations/expires", &r)
		return r.State == "EXPIRED", fmt.Sprint(r.State, " ", err)
	})
}

// plantsInLimits returns plants in the accounts, the grants and the reservations of a partition with limitedUsage.
func (w *deployment) plantsInLimits(p int) []planted {
	of := func(subject int) string {
		return fmt.Sprintf(` WHERE partition = %d AND position = (SELECT min(position) FROM event_log_rows WHERE partition = %d AND subject = %d)`, p, p, subject)
	}
	account := fmt.Sprintf(` WHERE feature = 'calls' AND tenant_id IN (SELECT tenant_id FROM event_log_rows WHERE partition = %d AND subject = 8)`, p)
	checks := account + ` AND generation = live_generation('entitlement_reads', tenant_id)`
	const accounts, grants = "P7 quota_accounts equal the grants, the verdicts and the reservations in the log", "P7 no grant passes a HARD limit, and each records its account"
	const crossings = "P7 each threshold is crossed once for each period and value, by the event that rises to it"
	const lives, reservations = "P7 each reservation is held once and ends once", "P7 the reservations in the table are those of the log"
	stays := fmt.Sprintf(` WHERE reservation_id = 'stays' AND tenant_id IN (SELECT tenant_id FROM event_log_rows WHERE partition = %d)`, p)
	return []planted{
		changed(accounts, "quota_accounts", account, "used = used + 1", "used = used - 1"),
		changed(accounts, "quota_accounts", account, "held = held + 1", "held = held - 1"),
		rewritten(grants, of(8), "admitted,used", "3"),
		rewritten(grants, of(60), "held", "3"),
		rewritten(crossings, of(65), "before", `"3"`),
		changed(crossings, "thresholds", account, "amount = amount + 1", "amount = amount - 1"),
		changed("P5 entitlement_usage equals the sum of the log up to its checkpoint", "entitlement_usage", checks, "held = held - 1", "held = held + 1"),
		rewritten(lives, of(63), "expiresAt", `"2100-01-01T00:00:00Z"`),
		changed(reservations, "reservations", account+` AND state = 'COMMITTED'`, "committed = committed + 1", "committed = committed - 1"),
		gone(reservations, "reservations", stays),
	}
}
