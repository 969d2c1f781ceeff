package http_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/commands"
)

// badReservations returns requests about the reservation "held" of 10 and the ended one "ended" that are refused.
func badReservations(a *account) (list []badInput) {
	const several = "/api/v1/entitlements/reservations"
	add := func(name, method, path string, body any, status int, code string) {
		list = append(list, badInput{name, call{method, path, a.key, nil, body}, status, code})
	}
	ids := []string{`""`, `"` + strings.Repeat("x", 256) + `"`, `"a b"`, `" "`, `"a\u0000"`, `"a\r\nb"`, `"é"`, "5", "null", `["a"]`}
	for _, id := range ids {
		name, body := id[:min(len(id), 20)], `{"reservationId":`+id+`,"amount":1}`
		add("reservationId "+name, "POST", reservationsPath, body, 400, "reservation_id_invalid")
		add("reservationId of an item "+name, "POST", several, `{"items":[{"feature":"api_calls","reservationId":"good","amount":1},{"feature":"api_calls",`+body[1:]+`]}`, 400, "reservation_id_invalid")
		add("eventId of a commit "+name, "POST", reservationsPath+"/held/commit", `{"eventId":`+id+`,"amount":1}`, 400, "event_id_invalid")
	}
	for _, amount := range []string{"0", "-1", "1.0", "1e3", `"1"`, "null", "true", "9007199254740992", "[1]"} {
		add("amount "+amount, "POST", reservationsPath, `{"reservationId":"bad","amount":`+amount+`}`, 400, "amount_invalid")
		add("amount of a commit "+amount, "POST", reservationsPath+"/held/commit", `{"eventId":"bad","amount":`+amount+`}`, 400, "amount_invalid")
	}
	for _, ttl := range []string{"0", "-1", "86401", "1.5", "1e1", `"60"`, "null", "true", "99999999999999999999"} {
		add("ttlSeconds "+ttl, "POST", reservationsPath, `{"reservationId":"bad","amount":1,"ttlSeconds":`+ttl+`}`, 400, "ttl_seconds_invalid")
		add("ttlSeconds of an extension "+ttl, "POST", reservationsPath+"/held/extend", `{"ttlSeconds":`+ttl+`}`, 400, "ttl_seconds_invalid")
	}
	for _, overage := range []string{`""`, `"RECORD"`, "true", "null", "1"} {
		add("overage "+overage, "POST", reservationsPath+"/held/commit", `{"eventId":"bad","amount":1,"overage":`+overage+`}`, 400, "overage_invalid")
	}
	for _, path := range []string{reservationsPath + "/held/extend", reservationsPath + "/held/commit", reservationsPath, several} {
		add("no members, "+path, "POST", path, `{}`, 400, "member_missing")
		add("an unknown member, "+path, "POST", path, `{"dryRun":true}`, 400, "unknown_member")
		add("a parameter, "+path, "POST", path+"?ttlSeconds=5", `{}`, 400, "unknown_parameter")
		add("no JSON, "+path, "POST", path, `{`, 400, "malformed_json")
	}
	add("metadata", "POST", reservationsPath, `{"reservationId":"bad","amount":1,"metadata":{}}`, 400, "unknown_member")
	add("the reservationId of a commit in its body", "POST", reservationsPath+"/held/commit", `{"eventId":"bad","amount":1,"reservationId":"held"}`, 400, "unknown_member")
	list = append(list, badItems(a)...)
	many := strings.TrimSuffix(strings.Repeat(`{"feature":"api_calls","reservationId":"x","amount":1},`, 21), ",")
	add("no items", "POST", several, `{"items":[]}`, 400, "items_invalid")
	add("21 items", "POST", several, `{"items":[`+strings.ReplaceAll(many, `"x"`, `"y"`)+`]}`, 400, "items_invalid")
	add("an id twice", "POST", several, `{"items":[`+many[:2*len(many)/21]+`]}`, 400, "reservation_id_invalid")
	for _, id := range []string{"../api-keys", "a b", strings.Repeat("x", 256), "é"} {
		for method, end := range map[string]string{"DELETE": "", "POST": "/commit"} {
			body := any(nil)
			if end != "" {
				body = `{"eventId":"bad","amount":1}`
			}
			add(method+" of the id "+id[:min(len(id), 20)], method, reservationsPath+"/"+url.PathEscape(id)+end, body, map[bool]int{true: 404, false: 400}[id == "../api-keys"],
				map[bool]string{true: "reservation_not_found", false: "reservation_id_invalid"}[id == "../api-keys"])
		}
	}
	refused := func(name, id, end, body string, status int, code string) {
		add(name, map[bool]string{true: "DELETE", false: "POST"}[end == ""], reservationsPath+"/"+id+end, map[bool]any{true: nil, false: body}[end == ""], status, code)
	}
	refused("a commit above the hold", "held", "/commit", `{"eventId":"bad","amount":11}`, 409, "amount_exceeds_hold")
	refused("a commit above the hold with deny", "held", "/commit", `{"eventId":"bad","amount":11,"overage":"deny"}`, 409, "amount_exceeds_hold")
	refused("a commit of an ended one", "ended", "/commit", `{"eventId":"bad","amount":1}`, 409, "reservation_ended")
	refused("an extension of an ended one", "ended", "/extend", `{"ttlSeconds":5}`, 409, "reservation_ended")
	refused("a commit of an unknown one", "nobody", "/commit", `{"eventId":"bad","amount":1}`, 404, "reservation_not_found")
	refused("an extension of an unknown one", "nobody", "/extend", `{"ttlSeconds":5}`, 404, "reservation_not_found")
	refused("a release of an unknown one", "nobody", "", "", 404, "reservation_not_found")
	add("a release by another feature", "DELETE", "/api/v1/entitlements/storage/reservations/held", nil, 404, "reservation_not_found")
	add("a commit by another feature", "POST", "/api/v1/entitlements/storage/reservations/held/commit", `{"eventId":"bad","amount":1}`, 404, "reservation_not_found")
	add("the reservationId with another amount", "POST", reservationsPath, `{"reservationId":"held","amount":11}`, 409, "reservation_conflict")
	add("the reservationId with another feature", "POST", "/api/v1/entitlements/storage/reservations", `{"reservationId":"held","amount":10}`, 409, "reservation_conflict")
	for feature, want := range map[string]string{"sso": "not_entitled", "nothing": "feature_not_found"} {
		add("of "+feature, "POST", "/api/v1/entitlements/"+feature+"/reservations", `{"reservationId":"bad","amount":1}`, map[string]int{"sso": 409, "nothing": 404}[feature], want)
	}
	add("too much", "POST", reservationsPath, `{"reservationId":"bad","amount":991}`, 409, "quota_exceeded")
	add("an unknown state", "GET", reservationsPath+"?state=held", nil, 400, "parameter_invalid")
	return list
}

// badItems returns requests to hold several amounts of which the second cannot be held.
func badItems(a *account) (list []badInput) {
	add := func(name, items string, status int, code string) {
		const good = `{"feature":"api_calls","reservationId":"good","amount":1},`
		list = append(list, badInput{name, call{"POST", "/api/v1/entitlements/reservations", a.key, nil, `{"items":[` + good + items + `]}`}, status, code})
	}
	for feature, c := range map[string]badInput{`"API"`: {status: 400, code: "feature_invalid"}, `""`: {status: 400, code: "feature_invalid"}, "null": {status: 400, code: "feature_invalid"},
		"5": {status: 400, code: "feature_invalid"}, `"sso"`: {status: 409, code: "not_entitled"}, `"nothing"`: {status: 404, code: "feature_not_found"}} {
		add("the feature of an item "+feature, `{"feature":`+feature+`,"reservationId":"bad","amount":1}`, c.status, c.code)
	}
	add("an item without a feature", `{"reservationId":"bad","amount":1}`, 400, "member_missing")
	add("an item above the limit with the one before", `{"feature":"api_calls","reservationId":"bad","amount":990}`, 409, "quota_exceeded")
	add("an item with the reservationId of another amount", `{"feature":"api_calls","reservationId":"held","amount":11}`, 409, "reservation_conflict")
	add("an item with an eventId", `{"feature":"api_calls","reservationId":"bad","eventId":"bad","amount":1}`, 400, "unknown_member")
	return list
}

func TestBadReservationsAreRefusedAndStoreNothing(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a, ended, suspended := w.newAccount("A"), w.newAccount("Ended"), w.newAccount("Suspended")
	w.want(201, holding(a.key, "held", 10, 86400))
	w.want(201, holding(a.key, "ended", 10, 86400))
	w.want(200, releasing(a.key, "ended"))
	w.want(200, call{"PATCH", "/api/v1/tenants/" + suspended.id, bootstrap, nil, `{"status":"SUSPENDED"}`})
	w.want(200, call{"PATCH", "/api/v1/tenants/" + ended.id + "/subscriptions/" + ended.subscription, bootstrap, nil, `{"status":"CANCELLED"}`})
	reading, _ := w.key(a.id, nil, commands.ScopeEntitlementsRead)
	all := badReservations(a)
	for key, c := range map[string]badInput{
		suspended.key: {"suspended", call{}, 403, "tenant_suspended"}, reading: {"without the scope", call{}, 403, "forbidden"}, bootstrap: {"an operator's key", call{}, 403, "forbidden"},
		ended.key: {"a cancelled subscription", call{}, 409, "no_active_subscription"}, "": {"no key", call{}, 401, "unauthenticated"},
	} {
		all = append(all, badInput{c.name, call{"POST", reservationsPath, key, nil, `{"reservationId":"bad","amount":1}`}, c.status, c.code})
	}
	before := w.stored()
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			mine := &testService{TB: t, url: w.url, client: w.client, pool: w.pool}
			mine.refused(mine.do(c.call), c.status, c.code)
			if after := mine.stored(); after != before {
				t.Errorf("%d events were stored", after-before)
				before = after
			}
		})
	}
	if w.accountOf(a) != "0 10 1" {
		t.Errorf("refused requests changed the account: %s", w.accountOf(a))
	}
	if t.Logf("%d cases", len(all)); len(all) < 100 {
		t.Error("100 are the least")
	}
}

// A reservationId is any printable text, and belongs to its tenant and to no eventId.
func TestP9_ReservationIDsOfTwoTenantsAreIndependent(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a, b := w.newAccount("A"), w.newAccount("B")
	for n, id := range []string{"r", `"\/!~%2F`, "a/b/commit", "u/x", strings.Repeat("~", 255)} {
		for _, of := range []*account{a, b} {
			w.want(201, call{"POST", reservationsPath, of.key, nil, map[string]any{"reservationId": id, "amount": 10}})
			w.want(200, consuming(of.key, "api_calls", id, 1))
			path := reservationsPath + "/" + strings.ReplaceAll(url.PathEscape(id), "~", "%7E")
			if got := w.want(200, call{method: "GET", path: path, key: of.key}); got["reservationId"] != id {
				t.Errorf("%v", got)
			}
			w.want(200, call{"POST", path + "/commit", of.key, nil, map[string]any{"eventId": fmt.Sprint("use", n), "amount": 10}})
		}
	}
	if w.accountOf(a) != "55 0 0" || w.accountOf(b) != "55 0 0" {
		t.Errorf("%s and %s", w.accountOf(a), w.accountOf(b))
	}
}
