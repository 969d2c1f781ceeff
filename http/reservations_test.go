package http_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
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
	if got := valuesOf(first, "reservationId", "feature", "amount", "state", "limit", "used", "held", "remaining", "released"); got != "job api_calls 500 HELD 1000 0 500 500 <nil>" {
		t.Errorf("held: %s", got)
	}
	if again := w.want(200, hold); fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("again: %v instead of %v", again, first)
	}
	refused := w.do(consuming(a.key, "api_calls", "too-much", 501))
	w.refused(refused, 409, "quota_exceeded")
	if !strings.Contains(string(refused.body), `"limit":1000,"used":0,"held":500,"remaining":500`) {
		t.Errorf("%s", refused.body)
	}
	w.fold()
	if check := w.want(200, call{method: "GET", path: "/api/v1/entitlements/api_calls/check?amount=501", key: a.key}); valuesOf(check, "allowed", "used", "held", "remaining") != "false 0 500 500" {
		t.Errorf("%v", check)
	}
	commit := committing(a.key, "job", "job-use", 412)
	answer := w.do(commit)
	var got map[string]any
	w.must(json.Unmarshal(answer.body, &got))
	if have := valuesOf(got, "state", "eventId", "amount", "released", "used", "held", "remaining"); answer.status != 200 || have != "COMMITTED job-use 412 88 412 0 588" {
		t.Errorf("%d %s", answer.status, have)
	}
	if again := w.do(commit); again.status != 200 || string(again.body) != string(answer.body) {
		t.Errorf("%d %s is not the first answer, %s", again.status, again.body, answer.body)
	}
	if again := w.want(200, hold); valuesOf(again, "state", "released", "amount") != "COMMITTED 88 500" {
		t.Errorf("%v", again)
	}
	for _, late := range []call{committing(a.key, "job", "other-use", 1), releasing(a.key, "job"), {"POST", reservationsPath + "/job/extend", a.key, nil, `{"ttlSeconds":60}`}} {
		ended := w.do(late)
		w.refused(ended, 409, "reservation_ended")
		if !strings.Contains(string(ended.body), `"state":"COMMITTED"`) {
			t.Errorf("%s", ended.body)
		}
	}
	w.fold()
	if check := w.want(200, call{method: "GET", path: "/api/v1/entitlements/api_calls/check", key: a.key}); valuesOf(check, "used", "held", "remaining") != "412 0 588" || w.accountOf(a) != "412 0 0" {
		t.Errorf("%v, %s", check, w.accountOf(a))
	}
	one := w.want(200, call{method: "GET", path: reservationsPath + "/job", key: a.key})
	if valuesOf(one, "state", "eventId", "committed", "amount") != "COMMITTED job-use 412 500" || one["endPosition"] != got["position"] || one["position"] != first["position"] {
		t.Errorf("%v", one)
	}
	if receipt := w.want(200, call{method: "GET", path: "/api/v1/usage/events/job-use", key: a.key}); receipt["status"] != "AGGREGATED" {
		t.Errorf("%v", receipt)
	}
}

func TestAReservationIsReleasedOnce(t *testing.T) {
	w, a := newServiceWithAccount(t)
	w.want(201, holding(a.key, "r", 900, 60))
	w.refused(w.do(holding(a.key, "s", 101, 60)), 409, "quota_exceeded")
	released := w.do(releasing(a.key, "r"))
	if !strings.Contains(string(released.body), `"state":"RELEASED","released":900,`) || !strings.Contains(string(released.body), `"held":0,"remaining":1000,`) {
		t.Errorf("%s", released.body)
	}
	if again := w.do(releasing(a.key, "r")); again.status != 200 || string(again.body) != string(released.body) {
		t.Errorf("%d %s", again.status, again.body)
	}
	w.refused(w.do(committing(a.key, "r", "use", 1)), 409, "reservation_ended")
	w.want(201, holding(a.key, "s", 1000, 60))
	if w.accountOf(a) != "0 1000 1" {
		t.Errorf("%s", w.accountOf(a))
	}
	if list := w.want(200, call{method: "GET", path: reservationsPath + "?state=RELEASED", key: a.key})["data"].([]any); len(list) != 1 {
		t.Errorf("%v", list)
	}
	page := w.want(200, call{method: "GET", path: reservationsPath + "?limit=1&tenantId=" + a.id, key: bootstrap})
	next := w.want(200, call{method: "GET", path: reservationsPath + "?limit=1&tenantId=" + a.id + "&cursor=" + fmt.Sprint(page["nextCursor"]), key: bootstrap})
	ids := fmt.Sprint(page["data"].([]any)[0].(map[string]any)["reservationId"], next["data"].([]any)[0].(map[string]any)["reservationId"])
	if ids != "rs" && ids != "r s" || next["nextCursor"] != nil {
		t.Errorf("%s", ids)
	}
}

// Time that is over ends a reservation before a request is denied because of it, and until then it can be committed.
func TestP7_WhatIsDueMakesRoom(t *testing.T) {
	w, c := newClocked(t, "2027-05-10T12:00:00Z")
	a := w.newAccount("A")
	for n := range 10 {
		w.want(201, holding(a.key, fmt.Sprint("due", n), 70, 1))
	}
	w.want(201, holding(a.key, "long", 200, 600))
	w.refused(w.do(holding(a.key, "early", 200, 600)), 409, "quota_exceeded")
	w.want(200, call{"POST", reservationsPath + "/due9/extend", a.key, nil, `{"ttlSeconds":600}`})
	c.set("2027-05-10T12:00:02Z")
	w.want(200, committing(a.key, "due0", "late-use", 70))
	got := w.want(201, holding(a.key, "next", 600, 600))
	if valuesOf(got, "used", "held", "remaining") != "70 870 60" {
		t.Errorf("%v", got)
	}
	if w.accountOf(a) != "70 870 3" {
		t.Errorf("%s", w.accountOf(a))
	}
	expired := w.do(releasing(a.key, "due1"))
	w.refused(expired, 409, "reservation_ended")
	if !strings.Contains(string(expired.body), `"state":"EXPIRED"`) {
		t.Errorf("%s", expired.body)
	}
	if again := w.want(200, holding(a.key, "due1", 70, 1)); valuesOf(again, "state", "released") != "EXPIRED 70" {
		t.Errorf("%v", again)
	}
	denied := w.do(holding(a.key, "last", 61, 600))
	w.refused(denied, 409, "quota_exceeded")
	if w.events(events.ReservationExpired) != 8 {
		t.Errorf("%d reservations expired", w.events(events.ReservationExpired))
	}
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
		x := &commands.Expiry{Logger: slog.New(slog.DiscardHandler), Every: 20 * time.Millisecond,
			Quotas: &commands.Quotas{Log: w.log, Reservations: w.store, Now: time.Now, NewID: func(time.Time) uuid.UUID { return newID() }}}
		all.Go(func() { _ = x.Run(ctx) })
	}
	for patience := time.Now().Add(time.Minute); w.accountOf(tenants[0]) != "0 10 1" || w.accountOf(tenants[1]) != "0 10 1" || w.accountOf(tenants[2]) != "0 10 1"; {
		if time.Now().After(patience) {
			t.Fatalf("after a minute, the accounts are %s, %s and %s", w.accountOf(tenants[0]), w.accountOf(tenants[1]), w.accountOf(tenants[2]))
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
	together := func(items string) call {
		return call{"POST", "/api/v1/entitlements/reservations", a.key, nil, `{"items":[` + items + `]}`}
	}
	const calls, bytes = `{"feature":"api_calls","reservationId":"1","amount":600}`, `{"feature":"storage","reservationId":"2","amount":7}`
	before := w.stored()
	refused := w.do(together(calls + "," + bytes + `,{"feature":"api_calls","reservationId":"3","amount":401}`))
	w.refused(refused, 409, "quota_exceeded")
	if !strings.Contains(string(refused.body), `"pointer":"/items/2"`) || w.stored() != before {
		t.Errorf("%s; %d rows", refused.body, w.stored()-before)
	}
	got := w.want(201, together(calls+","+bytes))["data"].([]any)
	if valuesOf(got[0].(map[string]any), "held", "remaining") != "600 400" || valuesOf(got[1].(map[string]any), "state", "held", "limit") != "HELD <nil> <nil>" {
		t.Errorf("%v", got)
	}
	w.want(200, together(calls+","+bytes))
	w.want(200, call{"POST", "/api/v1/entitlements/storage/reservations/2/commit", a.key, nil, `{"eventId":"bytes","amount":5}`})
	w.want(201, together(calls+`,{"feature":"storage","reservationId":"4","amount":1}`))
	if w.accountOf(a) != "0 600 1" {
		t.Errorf("%s", w.accountOf(a))
	}
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
	reconcile := func(body string) map[string]any {
		return w.want(200, call{"POST", "/api/v1/quota/accounts/reconcile", bootstrap, nil, `{"tenantId":"` + a.id + `"` + body + `}`})
	}
	before := w.stored()
	if got := reconcile(`,"repair":true,"reason":"none differs"`); fmt.Sprint(got["drift"], got["repaired"]) != "[] false" || w.accountOf(a) != "16 30 1" {
		t.Fatalf("%v; the account has %s", got, w.accountOf(a))
	}
	_, err := w.pool.Exec(t.Context(), `UPDATE quota_accounts SET used = used + 99999999999999999999, held = 0 WHERE tenant_id = $1`, a.id)
	w.must(err)
	found := reconcile("")
	drift := found["drift"].([]any)
	if len(drift) != 1 || found["repaired"] != false || w.stored() != before {
		t.Fatalf("%v", found)
	}
	of := drift[0].(map[string]any)
	if valuesOf(of["used"].(map[string]any), "was", "is")+" "+valuesOf(of["held"].(map[string]any), "was", "is") != "100000000000000000015 16 0 30" {
		t.Errorf("%v", found)
	}
	w.refused(w.do(call{"POST", "/api/v1/quota/accounts/reconcile", bootstrap, nil, `{"tenantId":"` + a.id + `","repair":true}`}), 400, "reason_invalid")
	if got := reconcile(`,"repair":true,"reason":"a row was restored"`); got["repaired"] != true || len(got["drift"].([]any)) != 1 || w.accountOf(a) != "16 30 1" {
		t.Errorf("%v; the account has %s", got, w.accountOf(a))
	}
	if w.events(events.AccountReconciled) == 0 || len(reconcile("")["drift"].([]any)) != 0 {
		t.Errorf("%d repairs are recorded", w.events(events.AccountReconciled))
	}
	w.refused(w.do(call{"POST", "/api/v1/quota/accounts/reconcile", bootstrap, nil, `{"tenantId":"` + newID().String() + `"}`}), 404, "tenant_not_found")
	// A repetition under an Idempotency-Key makes no second repair.
	once := map[string]string{"Idempotency-Key": "repair"}
	repair := call{"POST", "/api/v1/quota/accounts/reconcile", bootstrap, once, `{"tenantId":"` + a.id + `","repair":true,"reason":"once"}`}
	damage := func() {
		_, err := w.pool.Exec(t.Context(), `UPDATE quota_accounts SET used = used + 1 WHERE tenant_id = $1`, a.id)
		w.must(err)
	}
	damage()
	first := w.want(200, repair)
	damage()
	if again := w.want(200, repair); first["repaired"] != true || !reflect.DeepEqual(again, first) || w.accountOf(a) != "17 30 1" {
		t.Errorf("%v, repeated: %v; the account has %s", first, again, w.accountOf(a))
	}
	repair.body = `{"tenantId":"` + a.id + `","repair":true,"reason":"twice"}`
	w.refused(w.do(repair), 422, "idempotency_key_reused")
}
