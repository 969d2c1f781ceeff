package http_test

import (
	"fmt"
	"strings"
)

// badPaths are addresses of entities that do not exist.
func badPaths(a *account) []badInput {
	nothing := newID().String()
	tenant := "/tenants/" + a.id
	return []badInput{
		{"GET /tenants/§", 404, "tenant_not_found", "", []string{"x", "00000000-0000-0000-0000-000000000000", "urn:uuid:" + a.id,
			"{" + a.id + "}",
			strings.ReplaceAll(a.id, "-", ""), nothing + "/api-keys", nothing + "/subscriptions"}},
		{"GET " + tenant + "/subscriptions/" + nothing, 404, "subscription_not_found", "", nil},
		{"GET /features/§", 404, "feature_not_found", "", []string{"nothing", "..%2Fplans"}},
		{"GET /plans/nothing", 404, "plan_not_found", "", nil},
		{"GET /prices/nothing", 404, "price_not_found", "", nil},
		{"GET /replays/" + nothing, 404, "replay_not_found", "", nil},
		{"GET /dead-letters/§", 404, "not_found", "", []string{"x", nothing, "bulk", "groups/x"}},
		{"DELETE /operator-keys/§", 404, "key_not_found", "", []string{nothing, a.keyID}},
		{"DELETE /tenants/" + nothing + "/api-keys/" + a.keyID, 404, "key_not_found", "", nil},
		{"POST " + tenant + "/api-keys/" + nothing + "/rotate", 404, "key_not_found", `{"overlapSeconds":0}`, nil},
		{"POST /dead-letters/" + nothing + "/discard", 415, "media_type_unsupported", "", nil},
		{"BREW /coffee", 404, "not_found", "", nil},
		{"GET /schemas/meterplex.usage.event.recorded§", 404, "not_found", "", []string{"", "/1", "/V1"}},
		{"GET /schemas/meterplex.usage.event.recorded§", 404, "schema_not_found", "",
			[]string{"/v0", "/v01", "/v-1", "/v1.0", "/v1x", "/v99999999999999999999",
				".v1/v1"}},
		{"GET /schemas/..%2Fearlier/v1", 404, "schema_not_found", "", nil},
	}
}

// badTenants are tenants, keys and subscriptions that cannot be made.
func badTenants(a *account) (list []badInput) {
	tenant, many, notes := "/tenants/"+a.id, `"0"`, `"k":"v"`
	for i := range 50 {
		notes += fmt.Sprintf(`,"k%d":"v"`, i)
		if i < 16 {
			many += fmt.Sprintf(`,"%d"`, i+1)
		}
	}
	for request, rest := range map[string]string{"POST /tenants": `,"name":"x","class":"small"`, "PATCH " + tenant: ``} {
		list = append(list,
			badInput{request, 400, "external_ids_invalid", `{"externalIds":§` + rest + `}`,
				[]string{`[5]`, `[null]`, `[[]]`, `[""]`, `["a b"]`, `["a\u0000"]`, `["é"]`,
					`["a","b","a"]`, `["` + strings.Repeat("x", 256) + `"]`, `[` + many + `]`}},
			badInput{request, 409, "external_id_taken", `{"externalIds":["free","taken"]` + rest + `}`, nil},
			badInput{request, 400, "metadata_invalid", `{"metadata":§` + rest + `}`,
				[]string{`{"k":5}`, `{"k":null}`, `{"k":{}}`, `{"":"v"}`, `{"a\u0000":"v"}`,
					`{"k":"a\nb"}`, `{"` + strings.Repeat("k", 65) + `":"v"}`, `{"k":"` + strings.Repeat("é", 501) + `"}`, `{` + notes + `}`}},
			badInput{request, 400, "data_residency_invalid", `{"dataResidency":§` + rest + `}`,
				[]string{`""`, `"EU"`, `"1a"`, `"a b"`, `"` + strings.Repeat("a", 33) + `"`, `"ä"`}})
	}
	return append(list,
		badInput{"POST /tenants", 400, "member_missing", `§`, []string{`{}`, `{"name":"x"}`}},
		badInput{"POST /tenants", 400, "name_invalid", `{"name":§,"class":"small"}`,
			[]string{`""`, `" "`, `null`, `"a\nb"`, `"` + strings.Repeat("é", 201) + `"`}},
		badInput{"POST /tenants", 400, "unknown_member", `{"name":"x","class":"small","id":"` + a.id + `"}`, nil},
		badInput{"PATCH " + tenant, 400, "close_after_hours_invalid", `{"closeAfterHours":§}`, []string{"0", "8785"}},
		badInput{"PATCH " + tenant, 400, "status_invalid", `{"status":"DELETED"}`, nil},
		badInput{"PATCH " + tenant, 400, "unknown_member", `{"createdAt":"2026-05-01T00:00:00Z"}`, nil},
		badInput{"PATCH /tenants/" + newID().String(), 404, "tenant_not_found", `{"name":"x"}`, nil},
		badInput{"GET /tenants?q=a&q=b", 400, "duplicate_parameter", "", nil},
		badInput{"POST " + tenant + "/api-keys", 400, "scopes_invalid", `{"name":"x","scopes":§}`,
			[]string{`[]`, `["usage:read","usage:read"]`, `["admin"]`, `["everything"]`, `[null]`}},
		badInput{"POST /operator-keys", 400, "scopes_invalid", `{"name":"x","scopes":["usage:read"]}`, nil},
		badInput{"POST /operator-keys", 400, "unknown_member", `{"name":"x","scopes":["admin"],"mode":"op"}`, nil},
		badInput{"POST " + tenant + "/api-keys", 400, "mode_invalid", `{"name":"x","scopes":["usage:read"],"mode":"op"}`, nil},
		badInput{"POST " + tenant + "/api-keys", 400, "expires_at_invalid", `{"name":"x","scopes":["usage:read"],"expiresAt":§}`,
			[]string{`"2020-01-01T00:00:00Z"`, `"2999-02-30T00:00:00Z"`, `"2999-01-01"`, `32503680000`, `"2999-01-01t00:00:00z"`}},
		badInput{"POST " + tenant + "/api-keys/" + a.keyID + "/rotate", 400, "overlap_seconds_invalid", `{"overlapSeconds":§}`,
			[]string{`-1`, `1e3`, `2592001`, `null`}},
		badInput{"POST " + tenant + "/subscriptions", 404, "plan_not_found", `{"plan":"nothing"}`, nil},
		badInput{"POST " + tenant + "/subscriptions", 409, "subscription_exists", `{"plan":"basic"}`, nil},
		badInput{"POST " + tenant + "/subscriptions", 400, "starts_at_invalid", `{"plan":"basic","startsAt":§}`, []string{`"2026-05-01"`, `"yesterday"`, `1777593600`}},
		badInput{"PATCH " + tenant + "/subscriptions/" + a.subscription, 400, "prices_invalid", `{"prices":§}`, []string{`"latest"`, `2`}},
		badInput{"POST /tenants/" + newID().String() + "/subscriptions", 404, "tenant_not_found", `{"plan":"basic"}`, nil},
		badInput{"POST " + tenant + "/webhooks", 400, "url_invalid", `{"url":"§","events":["push.failed"]}`,
			[]string{"http://example.com", "https://127.0.0.1",
				"https://[::1]", "https://10.0.0.1", "https://169.254.169.254", "https://100.64.0.1", "https://[fd00::1]", "https://[::ffff:127.0.0.1]",
				"https://0.0.0.0",
				"https://2130706433", "https://0177.0.0.1", "https://user:password@example.com", "https://localhost"}})
}

// badCatalogue are features and plans that cannot be defined.
func badCatalogue(*account) (list []badInput) {
	feature := `{"name":"x","type":"QUOTA"}`
	list = []badInput{
		{"PUT /features/§", 400, "lookup_key_invalid", feature, []string{"A", "9", "a%20b", "%C3%A9", strings.Repeat("a", 65)}},
		{"PUT /plans/§", 400, "plan_key_invalid", `{"name":"x","entitlements":[]}`,
			[]string{"_a", "a%20b", "%C3%A9", "a%2Fb", strings.Repeat("a", 65)}},
		{"PUT /features/f", 400, "group_by_invalid", `{"name":"x","type":"QUOTA","groupBy":§}`,
			[]string{`[5]`, `["a","b","c"]`, `["a","a"]`, `[""]`, `["a b"]`, `["metadata.é"]`}},
		{"PUT /features/f", 400, "group_by_invalid", `{"name":"x","type":"BOOLEAN","groupBy":["a"]}`, nil},
		{"PUT /features/sso", 409, "feature_type_fixed", feature, nil},
	}
	for code, entitlements := range map[string][]string{
		"entitlements_invalid": {`{"feature":"nothing"}`, `5`, `{"feature":"sso","limit":5}`, `{"feature":"api_calls","onIngest":"enforce"}`,
			`{"feature":"api_calls"},{"feature":"api_calls"}`},
		"member_missing": {`{}`},
		"limit_invalid": {`{"feature":"api_calls","limit":-1}`, `{"feature":"api_calls","limit":1.0}`, `{"feature":"api_calls","limit":"5"}`,
			`{"feature":"api_calls","limit":9007199254740992}`, `{"feature":"api_calls","limit":1e400}`},
		"limit_behavior_invalid": {`{"feature":"api_calls","limitBehavior":"hard"}`},
		"reset_period_invalid":   {`{"feature":"api_calls","resetPeriod":"DAILY"}`, `{"feature":"sso","resetPeriod":"DAILY"}`},
		"unknown_member":         {`{"feature":"api_calls","Limit":5}`},
		"price_invalid": {`{"feature":"api_calls","price":5}`, `{"feature":"api_calls","price":"a b"}`,
			`{"feature":"sso","price":"nothing"}`},
	} {
		list = append(list, badInput{"PUT /plans/p", 400, code, `{"name":"x","entitlements":[§]}`, entitlements})
	}
	return append(list, badInput{"PUT /plans/p", 404, "price_not_found",
		`{"name":"x","entitlements":[{"feature":"api_calls","price":"nothing"}]}`, nil},
		badInput{"PUT /plans/p", 400, "charge_trial_invalid", `{"name":"x","entitlements":[{"feature":"api_calls","chargeTrial":§}]}`, []string{`true`, `"yes"`}})
}

func badPrices() (list []badInput) {
	list = []badInput{{"PUT /prices/§", 400, "price_key_invalid", `{"name":"x","currency":"EUR","model":"flat","microUnits":5}`,
		[]string{"_a", "a%20b", "%C3%A9", "a%2Fb", strings.Repeat("a", 65)}}}
	for code, members := range map[string][]string{
		"member_missing": {`"currency":"EUR","model":"flat","microUnits":5`, `"name":"x","currency":"EUR","microUnits":5`,
			`"name":"x","currency":"EUR","model":"volume","tiers":[{}]`},
		"currency_invalid": {`"name":"x","currency":"eur","model":"flat","microUnits":5`,
			`"name":"x","currency":"EURO","model":"flat","microUnits":5`, `"name":"x","currency":"EUX","model":"flat","microUnits":5`},
		"tiers_invalid": {`"name":"x","currency":"EUR","model":"flat","microUnits":5,"tiers":[{"microUnits":1}]`,
			`"name":"x","currency":"EUR","model":"volume"`, `"name":"x","currency":"EUR","model":"volume","tiers":[5]`},
		"flat_micro_units_invalid": {`"name":"x","currency":"EUR","model":"graduated","tiers":[{"microUnits":1,"flatMicroUnits":-1}]`},
		"unknown_member": {`"name":"x","currency":"EUR","model":"flat","microUnits":5,"microunits":6`,
			`"name":"x","currency":"EUR","model":"graduated","tiers":[{"microUnits":1,"upto":5}]`},
	} {
		list = append(list, badInput{"PUT /prices/p", 400, code, `{§}`, members})
	}
	price := func(code, members string, values ...string) {
		list = append(list, badInput{"PUT /prices/p", 400, code, `{"name":"x","currency":"EUR",` + members + `}`, values})
	}
	price("micro_units_invalid", `"model":"flat","microUnits":§`, "null", "-1", "0.5", "1e3", `"5"`, "9007199254740992")
	price("micro_units_invalid", `§`, `"model":"flat"`, `"model":"graduated","tiers":[{"microUnits":-1}]`,
		`"model":"graduated","microUnits":1,"tiers":[{"microUnits":1}]`)
	price("package_size_invalid", `"model":"package","microUnits":5§`, "", `,"packageSize":0`, `,"packageSize":1.0`)
	price("package_size_invalid", `"model":"flat","microUnits":5,"packageSize":2`)
	price("up_to_invalid", `"model":"graduated","tiers":[§]`, `{"upTo":5,"microUnits":1}`, `{"microUnits":1},{"microUnits":1}`,
		`{"upTo":"5","microUnits":1},{"microUnits":1}`,
		`{"upTo":5,"microUnits":1},{"upTo":5,"microUnits":1},{"microUnits":1}`, `{"upTo":0,"microUnits":1},{"microUnits":1}`)
	list = append(list, badInput{"GET /prices/nothing/versions", 404, "price_not_found", "", nil},
		badInput{"POST /prices/evaluate", 400, "price_invalid", `{"periodKey":"2026-05"§}`, []string{``, `,"priceKey":"p","feature":"api_calls","price":{"currency":"EUR","model":"flat","microUnits":5}`}},
		badInput{"POST /prices/evaluate", 400, "feature_invalid", `{"periodKey":"2026-05","price":{"currency":"EUR","model":"flat","microUnits":5}}`, nil},
		badInput{"POST /prices/evaluate", 400, "micro_units_invalid", `{"periodKey":"2026-05","feature":"api_calls","price":{"currency":"EUR","model":"flat"}}`, nil},
		badInput{"POST /prices/evaluate", 400, "period_key_invalid", `{"periodKey":"2026-13","priceKey":"p"}`, nil},
		badInput{"POST /prices/evaluate", 404, "price_not_found", `{"periodKey":"2026-05","priceKey":"nothing"§}`, []string{``, `,"version":9`}},
		badInput{"POST /prices/evaluate", 400, "position_invalid", `{"periodKey":"2026-05","priceKey":"p","position":"1-1"§}`, []string{``, `,"rebuildId":"` + newID().String() + `"`}},
		badInput{"POST /prices/evaluate", 404, "tenant_not_found", `{"periodKey":"2026-05","priceKey":"p","tenantId":"` + newID().String() + `"}`, nil})
	price("tiers_invalid", `"model":"volume","tiers":[`+strings.Repeat(`{"upTo":1,"microUnits":1},`, 100)+`{"microUnits":1}]`)
	return list
}

func badThresholds(a *account) []badInput {
	at := "/tenants/" + a.id + "/thresholds"
	ids := []string{"x", "00000000-0000-0000-0000-00000000000", newID().String()}
	return []badInput{
		{"POST " + at, 400, "threshold_invalid", `§`, []string{`{}`, `{"feature":"api_calls"}`, `{"feature":"api_calls","percent":80,"amount":5}`,
			`{"percent":null,"amount":null}`}},
		{"POST " + at, 400, "percent_invalid", `{"percent":§}`, []string{"0", "1001", "8e1", "0.5"}},
		{"POST " + at, 400, "amount_invalid", `{"amount":§}`, []string{"0", "9007199254740992", "5.0"}},
		{"POST " + at, 404, "feature_not_found", `{"feature":§,"percent":80}`, []string{`""`, `"A"`, `"a b"`, `"nothing"`}},
		{"POST " + at, 409, "not_entitled", `{"feature":"sso","percent":80}`, nil},
		{"POST /tenants/" + newID().String() + "/thresholds", 404, "tenant_not_found", `{"percent":80}`, nil},
		{"DELETE " + at + "/§", 404, "threshold_not_found", "", ids}, {"GET " + at + "/§", 404, "threshold_not_found", "", ids},
	}
}
