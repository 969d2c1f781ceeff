package http_test

import (
	"fmt"
	"slices"
	"strings"
)

func (w *testService) catalogueBodies(a *account) (list []badInput) {
	tenant := "/api/v1/tenants/" + a.id
	add := func(method, path, body string, status int, code string) {
		list = append(list, badInput{method + " " + path + " " + body[:min(len(body), 60)], call{method, path, bootstrap, nil, body}, status, code})
	}
	// Cases that are the same for every body.
	for _, c := range []struct{ method, path string }{
		{"POST", "/api/v1/tenants"}, {"PATCH", tenant}, {"POST", tenant + "/api-keys"}, {"POST", "/api/v1/operator-keys"}, {"PUT", "/api/v1/features/f"},
		{"PUT", "/api/v1/plans/p"}, {"PUT", "/api/v1/prices/p"}, {"POST", tenant + "/subscriptions"}, {"PATCH", tenant + "/subscriptions/" + a.subscription},
		{"POST", tenant + "/api-keys/" + a.keyID + "/rotate"},
	} {
		add(c.method, c.path, ``, 400, "malformed_json")
		add(c.method, c.path, `{"name":"a","name":"b"}`, 400, "malformed_json")
		add(c.method, c.path, `{} {}`, 400, "malformed_json")
		add(c.method, c.path, `{"`+strings.Repeat("x", 5000)+`":1}`, 400, "unknown_member")
		add(c.method, c.path, `{"NAME":"x"}`, 400, "unknown_member")
		add(c.method, c.path, `{"$schema":"x"}`, 400, "unknown_member")
		add(c.method, c.path, `{"name":"\ud800"}`, 400, "malformed_json")
		list = append(list, badInput{"no media type", call{c.method, c.path, bootstrap, map[string]string{"Content-Type": ""}, `{}`}, 415, "media_type_unsupported"},
			badInput{"merge patch", call{c.method, c.path, bootstrap, map[string]string{"Content-Type": "application/merge-patch+json"}, `{}`}, 415, "media_type_unsupported"})
	}
	add("POST", "/api/v1/tenants", `[]`, 400, "body_invalid")
	add("POST", "/api/v1/tenants", `null`, 400, "body_invalid")
	add("POST", "/api/v1/tenants", `{}`, 400, "member_missing")
	add("POST", "/api/v1/tenants", `{"name":"x"}`, 400, "member_missing")
	for _, name := range []string{`""`, `" "`, `null`, `1`, `true`, `[]`, `{}`, `"\u0000"`, `"a\nb"`, `"` + strings.Repeat("x", 201) + `"`, `"` + strings.Repeat("é", 201) + `"`} {
		add("POST", "/api/v1/tenants", `{"name":`+name+`,"class":"small"}`, 400, "name_invalid")
	}
	add("POST", "/api/v1/tenants", `{"name":"x","class":"huge"}`, 400, "class_invalid")
	add("POST", "/api/v1/tenants", `{"name":"x","class":"Small"}`, 400, "class_invalid")
	add("POST", "/api/v1/tenants", `{"name":"x","class":"small","id":"`+a.id+`"}`, 400, "unknown_member")
	add("PATCH", tenant, `{"status":"DELETED"}`, 400, "status_invalid")
	add("PATCH", tenant, `{"createdAt":"2026-05-01T00:00:00Z"}`, 400, "unknown_member")
	add("PATCH", "/api/v1/tenants/"+newID().String(), `{"name":"x"}`, 404, "tenant_not_found")
	list = append(list, w.tenantBodies(a)...)
	for _, key := range []string{"A", "9", "a%20b", "%C3%A9", strings.Repeat("a", 65)} {
		add("PUT", "/api/v1/features/"+key, `{"name":"x","type":"QUOTA"}`, 400, "lookup_key_invalid")
	}
	for _, key := range []string{"_a", "a%20b", "%C3%A9", "a%2Fb", strings.Repeat("a", 65)} {
		add("PUT", "/api/v1/plans/"+key, `{"name":"x","entitlements":[]}`, 400, "plan_key_invalid")
	}
	add("PUT", "/api/v1/features/f", `{"name":"x","type":"quota"}`, 400, "type_invalid")
	add("PUT", "/api/v1/features/f", `{"name":"x","type":"QUOTA","unit":5}`, 400, "unit_invalid")
	for _, groupBy := range []string{`5`, `"region"`, `[5]`, `["a","b","c"]`, `["a","a"]`, `[""]`, `["a b"]`, `["metadata.é"]`, `{}`} {
		add("PUT", "/api/v1/features/f", `{"name":"x","type":"QUOTA","groupBy":`+groupBy+`}`, 400, "group_by_invalid")
	}
	add("PUT", "/api/v1/features/f", `{"name":"x","type":"BOOLEAN","groupBy":["a"]}`, 400, "group_by_invalid")
	add("PUT", "/api/v1/features/f", `{"name":"x","type":"QUOTA","groupby":["a"]}`, 400, "unknown_member")
	add("PUT", "/api/v1/features/sso", `{"name":"x","type":"QUOTA"}`, 409, "feature_type_fixed")
	for entitlement, code := range map[string]string{
		`{"feature":"nothing"}`: "entitlements_invalid", `{}`: "member_missing", `5`: "entitlements_invalid", `{"feature":"api_calls","limit":-1}`: "limit_invalid",
		`{"feature":"api_calls","limit":1.0}`: "limit_invalid", `{"feature":"api_calls","limit":"5"}`: "limit_invalid", `{"feature":"api_calls","limit":9007199254740992}`: "limit_invalid",
		`{"feature":"api_calls","limit":1e400}`: "limit_invalid", `{"feature":"api_calls","limitBehavior":"hard"}`: "limit_behavior_invalid",
		`{"feature":"api_calls","resetPeriod":"DAILY"}`: "reset_period_invalid", `{"feature":"api_calls","Limit":5}`: "unknown_member", `{"feature":"sso","limit":5}`: "entitlements_invalid",
		`{"feature":"sso","resetPeriod":"DAILY"}`: "reset_period_invalid", `{"feature":"api_calls","onIngest":"enforce"}`: "entitlements_invalid",
		`{"feature":"api_calls"},{"feature":"api_calls"}`: "entitlements_invalid", `{"feature":"api_calls","price":5}`: "price_invalid", `{"feature":"api_calls","price":"a b"}`: "price_invalid",
	} {
		add("PUT", "/api/v1/plans/p", `{"name":"x","entitlements":[`+entitlement+`]}`, 400, code)
	}
	add("PUT", "/api/v1/plans/p", `{"name":"x","entitlements":{}}`, 400, "entitlements_invalid")
	add("POST", tenant+"/subscriptions", `{"plan":"nothing"}`, 404, "plan_not_found")
	add("POST", tenant+"/subscriptions", `{"plan":"basic","status":"PAUSED"}`, 400, "status_invalid")
	add("POST", tenant+"/subscriptions", `{"plan":"basic"}`, 409, "subscription_exists")
	add("POST", "/api/v1/tenants/"+newID().String()+"/subscriptions", `{"plan":"basic"}`, 404, "tenant_not_found")
	return slices.Concat(list, w.keyBodies(a), w.keyHeaders(), w.priceBodies(), w.thresholdBodies(a))
}

// tenantBodies returns invalid external ids and metadata.
func (w *testService) tenantBodies(a *account) (list []badInput) {
	const taken = "taken-in-the-table"
	w.want(201, call{"POST", "/api/v1/tenants", bootstrap, nil, `{"name":"T","class":"small","externalIds":["` + taken + `"]}`})
	add := func(members string, status int, code string) {
		name := " " + members[:min(len(members), 60)]
		list = append(list, badInput{"POST tenants" + name, call{"POST", "/api/v1/tenants", bootstrap, nil, `{"name":"x","class":"small",` + members + `}`}, status, code},
			badInput{"PATCH tenants" + name, call{"PATCH", "/api/v1/tenants/" + a.id, bootstrap, nil, `{` + members + `}`}, status, code})
	}
	seventeen := `"0"`
	for i := range 16 {
		seventeen += fmt.Sprintf(`,"%d"`, i+1)
	}
	for _, ids := range []string{`5`, `"x"`, `{}`, `true`, `[5]`, `[null]`, `[[]]`, `[""]`, `[" "]`, `["a b"]`, `["a\u0000"]`, `["a\n"]`, `["é"]`, `["a","b","a"]`,
		`["` + strings.Repeat("x", 256) + `"]`, `[` + seventeen + `]`} {
		add(`"externalIds":`+ids, 400, "external_ids_invalid")
	}
	add(`"externalIds":["\ud800"]`, 400, "malformed_json")
	add(`"externalIds":["free","`+taken+`"]`, 409, "external_id_taken")
	keys := `"k":"v"`
	for i := range 50 {
		keys += fmt.Sprintf(`,"k%d":"v"`, i)
	}
	for _, metadata := range []string{`5`, `"x"`, `[]`, `true`, `{"k":5}`, `{"k":null}`, `{"k":{}}`, `{"k":["v"]}`, `{"":"v"}`, `{"a\u0000":"v"}`, `{"k":"\u0000"}`, `{"k":"a\nb"}`,
		`{"` + strings.Repeat("k", 65) + `":"v"}`, `{"k":"` + strings.Repeat("é", 501) + `"}`, `{` + keys + `}`} {
		add(`"metadata":`+metadata, 400, "metadata_invalid")
	}
	add(`"metadata":{"k":"v","k":"w"}`, 400, "malformed_json")
	add(`"externalids":["x"]`, 400, "unknown_member")
	for _, id := range []string{"", "a%20b", "%00", "%C3%A9", strings.Repeat("x", 256)} {
		list = append(list, badInput{"externalId " + id[:min(len(id), 20)], call{method: "GET", path: "/api/v1/tenants?externalId=" + id, key: bootstrap}, 400, "parameter_invalid"})
	}
	for name, q := range map[string]string{"empty": "", "NUL": "a%00", "long": strings.Repeat("x", 256), "10 kB": strings.Repeat("x", 10_000), "two": "a&externalId=b", "a line feed": "a%0Ab", "twice": "a&q=b", "no UTF-8": "%ff"} {
		code := "parameter_invalid"
		if name == "twice" {
			code = "duplicate_parameter"
		}
		list = append(list, badInput{"q " + name, call{method: "GET", path: "/api/v1/tenants?q=" + q, key: bootstrap}, 400, code})
	}
	return list
}

func (w *testService) keyHeaders() (list []badInput) {
	for _, key := range []string{strings.Repeat("k", 256), "naïve", "a\tb"} {
		list = append(list, badInput{fmt.Sprintf("Idempotency-Key %.5q", key), call{"POST", "/api/v1/tenants", bootstrap, map[string]string{"Idempotency-Key": key},
			`{"name":"x","class":"small"}`}, 400, "idempotency_key_invalid"})
	}
	return list
}

func (w *testService) checkBodies(a *account) (list []badInput) {
	for body, code := range map[string]string{
		`{"features":[]}`: "features_invalid", `{}`: "member_missing", `{"features":["sso"]}`: "features_invalid", `{"features":[{"feature":"SSO"}]}`: "feature_invalid",
		`{"features":[{"feature":"sso","amount":-1}]}`: "amount_invalid", `{"features":[{"feature":"sso","amount":1.0}]}`: "amount_invalid",
		`{"features":[{"amount":1}]}`: "member_missing", `{"features":[` + strings.Repeat(`{"feature":"sso"},`, 100) + `{"feature":"sso"}]}`: "features_invalid",
	} {
		list = append(list, badInput{"check " + body[:min(len(body), 60)], call{"POST", "/api/v1/entitlements/check", a.key, nil, body}, 400, code})
	}
	return list
}

// keyBodies returns invalid bodies for the creation of keys.
func (w *testService) keyBodies(a *account) (list []badInput) {
	tenant := "/api/v1/tenants/" + a.id
	add := func(method, path, body string, status int, code string) {
		list = append(list, badInput{method + " " + path + " " + body[:min(len(body), 60)], call{method, path, bootstrap, nil, body}, status, code})
	}
	keys := tenant + "/api-keys"
	for _, scopes := range []string{`[]`, `"usage:read"`, `[1]`, `["usage:read","usage:read"]`, `["admin"]`, `["everything"]`, `[null]`, `null`} {
		add("POST", keys, `{"name":"x","scopes":`+scopes+`}`, 400, "scopes_invalid")
	}
	add("POST", "/api/v1/operator-keys", `{"name":"x","scopes":["usage:read"]}`, 400, "scopes_invalid")
	add("POST", "/api/v1/operator-keys", `{"name":"x","scopes":["admin"],"mode":"op"}`, 400, "unknown_member")
	add("POST", keys, `{"name":"x","scopes":["usage:read"],"mode":"op"}`, 400, "mode_invalid")
	for _, at := range []string{`"2020-01-01T00:00:00Z"`, `"2999-02-30T00:00:00Z"`, `"2999-01-01"`, `"tomorrow"`, `32503680000`, `"2999-01-01t00:00:00z"`} {
		add("POST", keys, `{"name":"x","scopes":["usage:read"],"expiresAt":`+at+`}`, 400, "expires_at_invalid")
	}
	for _, seconds := range []string{`-1`, `1.0`, `1e3`, `"5"`, `2592001`, `99999999999999999999`, `null`} {
		add("POST", keys+"/"+a.keyID+"/rotate", `{"overlapSeconds":`+seconds+`}`, 400, "overlap_seconds_invalid")
	}
	add("POST", keys+"/"+newID().String()+"/rotate", `{"overlapSeconds":0}`, 404, "key_not_found")
	return list
}
