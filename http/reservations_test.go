package http_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
)

const reservationsPath = "/api/v1/entitlements/api_calls/reservations"

func holding(key, id string, amount, ttl int) call {
	return call{"POST", reservationsPath, key, nil, map[string]any{"reservationId": id, "amount": amount, "ttlSeconds": ttl}}
}

func committing(key, id, event string, amount int) call {
	return call{"POST", reservationsPath + "/" + id + "/commit", key, nil, map[string]any{"eventId": event, "amount": amount}}
}

func releasing(key, id string) call {
	return call{method: "DELETE", path: reservationsPath + "/" + id, key: key}
}

// valuesOf returns members of an answer side by side.
func valuesOf(got map[string]any, names ...string) string {
	var list []string
	for _, name := range names {
		list = append(list, fmt.Sprint(got[name]))
	}
	return strings.Join(list, " ")
}

// accountOf returns used, held and the number of open reservations of api_calls.
func (w *testService) accountOf(a *account) string {
	w.Helper()
	list := w.want(200, call{method: "GET", path: "/api/v1/quota/accounts?feature=api_calls&tenantId=" + a.id, key: bootstrap})["data"].([]any)
	if len(list) != 1 {
		w.Fatalf("%v", list)
	}
	return valuesOf(list[0].(map[string]any), "used", "held", "openReservations")
}

func TestP7_AHeldAmountIsCommittedOnce(t *testing.T) {
	w, a := newServiceWithAccount(t)
	hold := holding(a.key, "job", 500, 300)
	first := w.want(201, hold)
	w.same("held", valuesOf(first, "reservationId", "feature", "amount", "state", "limit", "used", "held", "remaining", "released"),
		"job api_calls 500 HELD 1000 0 500 500 <nil>")
	w.same("held again", w.want(200, hold), first)
	p := w.refused(w.do(consuming(a.key, "api_calls", "too-much", 501)), 409, "quota_exceeded")
	w.same("the refusal", []json.Number{p.Limit, p.Used, p.Held, p.Remaining}, "[1000 0 500 500]")
	checked := func(query, want string) {
		t.Helper()
		w.fold()
		check := w.want(200, call{method: "GET", path: checkPath + query, key: a.key})
		w.same("the check", valuesOf(check, "allowed", "used", "held", "remaining"), want)
	}
	checked("?amount=501", "false 0 500 500")
	commit := committing(a.key, "job", "job-use", 412)
	answer := w.do(commit)
	var got map[string]any
	w.must(json.Unmarshal(answer.body, &got))
	w.same("committed", valuesOf(got, "state", "eventId", "amount", "released", "used", "held", "remaining"),
		"COMMITTED job-use 412 88 412 0 588")
	w.same("committed again", string(w.do(commit).body), string(answer.body))
	w.same("held once more", valuesOf(w.want(200, hold), "state", "released", "amount"), "COMMITTED 88 500")
	for _, late := range []call{committing(a.key, "job", "other-use", 1), releasing(a.key, "job"),
		{"POST", reservationsPath + "/job/extend", a.key, nil, `{"ttlSeconds":60}`}} {
		w.same("the state", w.refused(w.do(late), 409, "reservation_ended").State, "COMMITTED")
	}
	checked("", "true 412 0 588")
	w.same("the account", w.accountOf(a), "412 0 0")
	one := w.want(200, call{method: "GET", path: reservationsPath + "/job", key: a.key})
	w.same("read", valuesOf(one, "state", "eventId", "committed", "amount", "position", "endPosition"),
		"COMMITTED job-use 412 500 "+valuesOf(first, "position")+" "+valuesOf(got, "position"))
	w.same("the receipt", w.receiptOf(a, "job-use")["status"], "AGGREGATED")
	w.want(201, holding(a.key, "free", 500, 60))
	for range 2 {
		released := w.want(200, releasing(a.key, "free"))
		w.same("released", valuesOf(released, "state", "released", "held", "remaining"), "RELEASED 500 0 588")
	}
	list := w.adjustmentsAt(reservationsPath+"?state=RELEASED&tenantId="+a.id, "reservationId")
	w.same("the released ones", list, []string{"free"})
}

// Any number of instances end the due reservations, each once.
func TestP7_ReservationsExpireOnce(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	tenants := []*account{w.newAccount("A"), w.newAccount("B"), w.newAccount("C")}
	for _, a := range tenants {
		for n := range 20 {
			w.want(201, holding(a.key, fmt.Sprint(n), 10, 1))
		}
		w.want(201, holding(a.key, "stays", 10, 600))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 3 {
		x := &metering.Expiry{Logger: slog.New(slog.DiscardHandler), Every: 20 * time.Millisecond,
			Quotas: &metering.Quotas{Log: w.log, Reservations: w.store, Now: time.Now, NewID: func(time.Time) uuid.UUID { return newID() }}}
		all.Go(func() { _ = x.Run(ctx) })
	}
	for patience := time.Now().Add(time.Minute); w.accountOf(tenants[0]) != "0 10 1" || w.accountOf(tenants[1]) != "0 10 1" ||
		w.accountOf(tenants[2]) != "0 10 1"; {
		if time.Now().After(patience) {
			t.Fatalf("after a minute, the accounts are %s, %s and %s", w.accountOf(tenants[0]), w.accountOf(tenants[1]),
				w.accountOf(tenants[2]))
		}
		time.Sleep(20 * time.Millisecond)
	}
	cancel()
	all.Wait()
	if n := w.events(events.ReservationExpired); n != 60 {
		t.Errorf("%d reservations expired", n)
	}
}

func TestP7_SeveralAmountsAreHeldTogether(t *testing.T) {
	w, a := newServiceWithAccount(t)
	together := func(items ...string) call {
		return call{"POST", "/api/v1/entitlements/reservations", a.key, nil, `{"items":[` + strings.Join(items, ",") + `]}`}
	}
	const calls, bytes = `{"feature":"api_calls","reservationId":"1","amount":600}`, `{"feature":"storage","reservationId":"2","amount":7}`
	before := w.stored()
	refused := w.do(together(calls, bytes, `{"feature":"api_calls","reservationId":"3","amount":401}`))
	w.same("the item", w.refused(refused, 409, "quota_exceeded").Errors[0].Pointer, "/items/2")
	w.same("stored", w.stored(), before)
	got := w.want(201, together(calls, bytes))["data"].([]any)
	w.same("the first", valuesOf(got[0].(map[string]any), "held", "remaining"), "600 400")
	w.same("the METERED one", valuesOf(got[1].(map[string]any), "state", "held", "limit"), "HELD <nil> <nil>")
	w.want(200, together(calls, bytes))
	w.want(200, call{"POST", "/api/v1/entitlements/storage/reservations/2/commit", a.key, nil, `{"eventId":"bytes","amount":5}`})
	w.same("the account", w.accountOf(a), "0 600 1")
}

// An account that differs from the log, because its row was changed by hand, is found, and repaired by an event.
func TestAccountsAreReconciledWithTheLog(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.want(200, consuming(a.key, "api_calls", "1", 7))
	w.want(201, holding(a.key, "open", 30, 600))
	w.want(201, holding(a.key, "used", 20, 600))
	w.want(200, committing(a.key, "used", "2", 5))
	w.want(201, holding(a.key, "free", 20, 600))
	w.want(200, releasing(a.key, "free"))
	w.ingest(a, batch(event("3", map[string]any{"amount": 4})))
	w.fold()
	reconcile := func(body string) call {
		return call{"POST", "/api/v1/quota/accounts/reconcile", bootstrap, nil, `{"tenantId":"` + a.id + `"` + body + `}`}
	}
	before := w.stored()
	w.same("none differs", valuesOf(w.want(200, reconcile(`,"repair":true,"reason":"none differs"`)), "drift", "repaired"), "[] false")
	w.same("the account", w.accountOf(a), "16 30 1")
	w.exec(`UPDATE quota_accounts SET used = used + 99999999999999999999, held = 0 WHERE tenant_id = $1`, a.id)
	found := w.want(200, reconcile(""))
	of := found["drift"].([]any)[0].(map[string]any)
	w.same("found", valuesOf(of["used"].(map[string]any), "was", "is")+" "+valuesOf(of["held"].(map[string]any), "was", "is"),
		"100000000000000000015 16 0 30")
	w.same("repaired, and stored", fmt.Sprint(found["repaired"], w.stored()-before), "false 0")
	w.refused(w.do(reconcile(`,"repair":true`)), 400, "reason_invalid")
	w.same("repaired", w.want(200, reconcile(`,"repair":true,"reason":"a row was restored"`))["repaired"], true)
	w.same("the account after the repair", w.accountOf(a), "16 30 1")
	w.same("drift after it", len(w.want(200, reconcile(""))["drift"].([]any)), 0)
	w.same("repairs are in the log", w.events(events.AccountReconciled) > 0, true)
	w.refused(w.do(call{"POST", "/api/v1/quota/accounts/reconcile", bootstrap, nil, `{"tenantId":"` + newID().String() + `"}`}), 404,
		"tenant_not_found")
	// A repetition under an Idempotency-Key makes no second repair.
	repair := reconcile(`,"repair":true,"reason":"once"`)
	repair.header = map[string]string{"Idempotency-Key": "repair"}
	w.exec(`UPDATE quota_accounts SET used = used + 1 WHERE tenant_id = $1`, a.id)
	first := w.want(200, repair)
	w.exec(`UPDATE quota_accounts SET used = used + 1 WHERE tenant_id = $1`, a.id)
	w.same("repeated", w.want(200, repair), first)
	w.same("the account after a repetition", w.accountOf(a), "17 30 1")
}
