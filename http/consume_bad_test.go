package http_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/commands"
)

// badMembers are members of a consumption that both routes refuse, each as the whole of the item but for its feature.
func badMembers() []badInput {
	const long = 256
	var list []badInput
	add := func(name, members, code string) {
		list = append(list, badInput{name, call{body: members}, 400, code})
	}
	for _, amount := range []string{"0", "-1", "1.0", "1e3", "1E3", "-0", `"1"`, "true", "[1]", "{}", "9007199254740992", "9223372036854775808", "1e400"} {
		add("amount "+amount, `"eventId":"bad","amount":`+amount, "amount_invalid")
	}
	for _, id := range []string{`""`, `"` + strings.Repeat("x", long) + `"`, `"a b"`, `" "`, `"a\u0000"`, `"a\r\nb"`, `"é"`, `"\u007f"`, "5", "true", `["a"]`} {
		add("eventId "+id[:min(len(id), 20)], `"eventId":`+id+`,"amount":1`, "event_id_invalid")
	}
	for _, metadata := range []string{"5", `"x"`, "[]", `{"a":"\u0000"}`, `{"a":[[[[[[1]]]]]]}`, `{"a":0.12345678901234567890}`} {
		add("metadata "+metadata, `"eventId":"bad","amount":1,"metadata":`+metadata, "metadata_invalid")
	}
	add("too much metadata", `"eventId":"bad","amount":1,"metadata":{"a":"`+strings.Repeat("x", 4096)+`"}`, "metadata_too_large")
	add("amount null", `"eventId":"bad","amount":null`, "amount_invalid")
	add("no amount", `"eventId":"bad"`, "member_missing")
	add("eventId null", `"eventId":null,"amount":1`, "event_id_invalid")
	add("no eventId", `"amount":1`, "member_missing")
	for _, member := range []string{"timestamp", "type", "source", "ttlSeconds", "Amount", "eventID", "tenantId"} {
		add("the member "+member, `"eventId":"bad","amount":1,"`+member+`":"x"`, "unknown_member")
	}
	add("a member twice", `"eventId":"bad","amount":1,"amount":1`, "malformed_json")
	return list
}

// badConsumes returns the cases of both routes.
func badConsumes(a *account) (list []badInput) {
	const one, several = "/api/v1/entitlements/api_calls/consume", "/api/v1/entitlements/consume"
	add := func(name, path string, body any, status int, code string) {
		list = append(list, badInput{name, call{"POST", path, a.key, nil, body}, status, code})
	}
	for _, c := range badMembers() {
		add("one, "+c.name, one, "{"+c.body.(string)+"}", c.status, c.code)
		add("several, "+c.name, several, `{"items":[{"feature":"storage","eventId":"good","amount":1},{"feature":"api_calls",`+c.body.(string)+`}]}`, c.status, c.code)
	}
	item := func(id int) string { return fmt.Sprintf(`{"feature":"api_calls","eventId":"%d","amount":1}`, id) }
	many := []string{}
	for i := range 21 {
		many = append(many, item(i))
	}
	for name, c := range map[string][2]string{
		"no items": {`{"items":[]}`, "items_invalid"}, "21 items": {`{"items":[` + strings.Join(many, ",") + `]}`, "items_invalid"},
		"items null": {`{"items":null}`, "items_invalid"}, "items an object": {`{"items":{}}`, "items_invalid"}, "items a string": {`{"items":"x"}`, "items_invalid"},
		"items missing": {`{}`, "member_missing"}, "an id twice": {`{"items":[` + item(1) + "," + item(2) + "," + item(1) + `]}`, "event_id_invalid"},
		"a bad feature": {`{"items":[` + item(1) + `,{"feature":"API","eventId":"2","amount":1}]}`, "feature_invalid"},
		"no feature":    {`{"items":[` + item(1) + `,{"eventId":"2","amount":1}]}`, "member_missing"}, "an item alone": {item(1), "unknown_member"},
		"dryRun": {`{"items":[` + item(1) + `],"dryRun":true}`, "unknown_member"}, "an array": {`[` + item(1) + `]`, "malformed_json"}, "an item is a number": {`{"items":[1]}`, "malformed_json"},
		"items twice": {`{"items":[` + item(1) + `],"items":[]}`, "malformed_json"},
	} {
		add(name, several, c[0], 400, c[1])
	}
	add("a feature in the body of one", one, `{"feature":"api_calls","eventId":"bad","amount":1}`, 400, "unknown_member")
	for _, feature := range []string{"API", "..", "../tenants", "a b", "'", strings.Repeat("a", 65), "9"} {
		add("the feature "+feature[:min(len(feature), 20)], "/api/v1/entitlements/"+url.PathEscape(feature)+"/consume", `{"eventId":"bad","amount":1}`, 400, "feature_invalid")
	}
	for path, body := range map[string]string{one: `{"eventId":"bad","amount":1}`, several: `{"items":[` + item(1) + `]}`} {
		add("a parameter of "+path, path+"?dryRun=true", body, 400, "unknown_parameter")
		add("an amount in the query of "+path, path+"?amount=1", body, 400, "unknown_parameter")
		list = append(list, badInput{"a misspelt replay of " + path, call{"POST", path, a.key, map[string]string{"Meterplex-Replay": "Offline"}, body}, 400, "header_invalid"})
	}
	refused := func(name, feature string, status int, code string) {
		add(name, "/api/v1/entitlements/"+feature+"/consume", `{"eventId":"bad","amount":1}`, status, code)
		add(name+" among others", several, `{"items":[`+item(1)+`,{"feature":"`+feature+`","eventId":"bad","amount":1}]}`, status, code)
	}
	refused("a BOOLEAN feature", "sso", 409, "not_entitled")
	refused("an unknown feature", "nothing", 404, "feature_not_found")
	add("too much", one, `{"eventId":"bad","amount":1001}`, 409, "quota_exceeded")
	add("too much together", several, `{"items":[{"feature":"api_calls","eventId":"1","amount":501},{"feature":"api_calls","eventId":"2","amount":500}]}`, 409, "quota_exceeded")
	return list
}

func TestBadConsumesAreRefusedAndStoreNothing(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a, ended, suspended := w.newAccount("A"), w.newAccount("Ended"), w.newAccount("Suspended")
	w.want(200, call{"PATCH", "/api/v1/tenants/" + suspended.id, bootstrap, nil, `{"status":"SUSPENDED"}`})
	w.want(200, call{"PATCH", "/api/v1/tenants/" + ended.id + "/subscriptions/" + ended.subscription, bootstrap, nil, `{"status":"CANCELLED"}`})
	reading, _ := w.key(a.id, nil, commands.ScopeEntitlementsRead, commands.ScopeUsageWrite)
	all := badConsumes(a)
	for path, body := range map[string]string{"api_calls/consume": `{"eventId":"bad","amount":1}`, "consume": `{"items":[{"feature":"api_calls","eventId":"bad","amount":1}]}`} {
		for key, c := range map[string]badInput{
			suspended.key: {"suspended", call{}, 403, "tenant_suspended"}, reading: {"without the scope", call{}, 403, "forbidden"}, bootstrap: {"an operator's key", call{}, 403, "forbidden"},
			ended.key: {"a cancelled subscription", call{}, 409, "no_active_subscription"}, "": {"no key", call{}, 401, "unauthenticated"},
		} {
			all = append(all, badInput{c.name + ", " + path, call{"POST", "/api/v1/entitlements/" + path, key, nil, body}, c.status, c.code})
		}
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
	if w.used(a.id)+w.used(ended.id)+w.used(suspended.id) != "000" {
		t.Errorf("refused requests changed an account: %s, %s, %s are used", w.used(a.id), w.used(ended.id), w.used(suspended.id))
	}
	if t.Logf("%d cases", len(all)); len(all) < 100 {
		t.Error("100 are the least")
	}
}

// An eventId is any printable text, and belongs to its tenant.
func TestP9_ConsumedEventIDsOfTwoTenantsAreIndependent(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a, b := w.newAccount("A"), w.newAccount("B")
	for _, id := range []string{"shared", "../../tenants", "'OR'1", strings.Repeat("x", 255)} {
		w.want(200, consuming(a.key, "api_calls", id, 1))
		if got := w.want(200, consuming(b.key, "api_calls", id, 10)); fmt.Sprint(got["amount"]) != "10" {
			t.Errorf("%s of B met that of A: %v", id, got)
		}
	}
	if w.used(a.id) != "4" || w.used(b.id) != "40" {
		t.Errorf("A has used %s, B %s", w.used(a.id), w.used(b.id))
	}
}
