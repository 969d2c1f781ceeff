package http_test

import (
	"fmt"
	"strings"
)

// badReads are reads by a tenant's key.
func badReads(a *account) []badInput {
	const events, figures, explain = "GET /usage/events", "GET /usage/aggregates", "GET /usage/aggregates/explain"
	const day = "GET /usage?feature=api_calls&from=2026-05-01T00:00:00Z&to=2026-05-02T00:00:00Z"
	elsewhere := (a.partition() + 1) % 32
	return append(badLogReads(elsewhere),
		badInput{events + "§", 400, "parameter_invalid", "", []string{"?from=2026-05-02T00:00:00Z&to=2026-05-01T00:00:00Z", "?status=COUNTED"}},
		badInput{events + "?tenantId=§", 404, "tenant_not_found", "", []string{"x", newID().String()}},
		badInput{events + "/§", 404, "not_found", "", []string{"a%20b", "%E2%80%AEx", strings.Repeat("a", 256), "'%20OR%201=1--"}},
		badInput{"GET /entitlements/§/check", 400, "feature_invalid", "", []string{"API", "a%2Fb", "%2e%2e"}},
		badInput{"GET /entitlements/api_calls/check?amount=§", 400, "parameter_invalid", "", []string{"-1", "9007199254740992", "1.5"}},
		badInput{figures + "?§", 400, "parameter_invalid", "", []string{"period=2026-13", "period=may", "format=csv&limit=5",
			"format=csv&cursor=", "asOf=2026",
			"asOf=2026-05-01T00:00:00Z&asOfPosition=1-1", "asOf=2026-05-01T00:00:00Z&minPosition=1-1"}},
		badInput{figures + "?§", 400, "position_invalid", "", []string{"asOfPosition=17", "asOf=2199-01-01T00:00:00Z",
			fmt.Sprintf("asOfPosition=%d-1", elsewhere),
			fmt.Sprintf("asOfPosition=%d-999999", a.partition())}},
		badInput{explain + "§", 400, "parameter_missing", "", []string{"", "?feature=a"}},
		badInput{explain + "?feature=a&periodKey=2026§", 400, "parameter_invalid", "", []string{"-13", "&subscriptionId=1", "&include=all"}},
		badInput{"GET /usage§", 400, "parameter_missing", "", []string{"", "?feature=api_calls&from=2026-05-01T00:00:00Z"}},
		badInput{day + "§", 400, "parameter_invalid", "", []string{"&granularity=month", "&groupBy=metadata.zone",
			"&groupBy=metadata.region&groupBy=metadata.model&groupBy=metadata.zone",
			"&format=csv&limit=5", "&format=csv&cursor=", "&format=csv&granularity=month"}},
		badInput{"GET /usage?feature=api_calls&§", 400, "parameter_invalid", "",
			[]string{"from=2026-05-01T00:00:00%2B01:00&to=2026-05-02T00:00:00Z",
				"from=2026-05-01T00:30:00Z&to=2026-05-02T00:00:00Z&granularity=hour", "from=2026-05-03T00:00:00Z&to=2026-05-02T00:00:00Z",
				"from=0001-01-01T00:00:00Z&to=9999-12-01T00:00:00Z&granularity=month"}},
		badInput{strings.Replace(day, "api_calls", "api_call", 1), 404, "feature_not_found", "", nil},
		badInput{"POST /entitlements/check", 400, "features_invalid", `{"features":[§]}`,
			[]string{"", `"sso"`, strings.Repeat(`{"feature":"sso"},`, 100) + `{"feature":"sso"}`}},
		badInput{"POST /entitlements/check", 400, "amount_invalid", `{"features":[{"feature":"sso","amount":§}]}`, []string{"-1", "1.0"}},
		badInput{"POST /entitlements/check", 400, "feature_invalid", `{"features":[{"feature":"SSO"}]}`, nil})
}

// badLogReads are reads of the log.
func badLogReads(elsewhere int16) []badInput {
	return []badInput{
		{"GET /events?§", 400, "subject_unknown", "", []string{"subject=usage", "subject=meterplex.usage.event.recorded.v9",
			"subject=METERPLEX."}},
		{"GET /events?stream=§", 400, "stream_invalid", "", []string{"usage", "invoice/1", "tenant/1"}},
		{"GET /events?§", 400, "parameter_invalid", "", []string{"correlationId=1", "from=2026-05-02T00:00:00Z&to=2026-05-01T00:00:00Z"}},
		{"GET /events?after=§", 400, "position_invalid", "", []string{"17", fmt.Sprintf("%d-1", elsewhere), "1-1,1-2"}},
		{"GET /events/export?format=parquet", 400, "format_not_supported", "", nil},
		{"GET /events/stream?§", 400, "parameter_invalid", "", []string{"last=0", "follow=1", "after=0-0,1-1&last=5"}},
		{"GET /events/§", 404, "not_found", "", []string{"x", "17", "32-1", "17-0", "17-999", newID().String(),
			strings.ToUpper(newID().String())}},
	}
}

// badQuotas are requests to consume, and about the reservation "held" of 10 and the ended one "ended".
func badQuotas() (list []badInput) {
	const one, several, hold, holds = "POST /entitlements/api_calls/consume", "POST /entitlements/consume",
		"POST /entitlements/api_calls/reservations", "POST /entitlements/reservations"
	add := func(request string, status int, code, body string, values ...string) {
		list = append(list, badInput{request, status, code, body, values})
	}
	for code, members := range map[string][]string{
		"amount_invalid": {`"eventId":"bad","amount":0`, `"eventId":"bad","amount":1.0`, `"eventId":"bad","amount":9007199254740992`,
			`"eventId":"bad","amount":null`},
		"event_id_invalid": {`"eventId":"","amount":1`, `"eventId":"a b","amount":1`, `"eventId":"a\u0000","amount":1`,
			`"eventId":null,"amount":1`},
		"metadata_invalid":   {`"eventId":"bad","amount":1,"metadata":{"a":"\u0000"}`},
		"metadata_too_large": {`"eventId":"bad","amount":1,"metadata":{"a":"` + strings.Repeat("x", 4096) + `"}`},
		"member_missing":     {`"eventId":"bad"`, `"amount":1`},
		"unknown_member":     {`"eventId":"bad","amount":1,"timestamp":"x"`, `"eventId":"bad","amount":1,"tenantId":"x"`},
		"malformed_json":     {`"eventId":"bad","amount":1,"amount":1`},
	} {
		add(one, 400, code, `{§}`, members...)
		add(several, 400, code, `{"items":[{"feature":"storage","eventId":"good","amount":1},{"feature":"api_calls",§}]}`, members...)
	}
	for of, item := range map[string]string{several: `{"feature":"api_calls","eventId":"§","amount":1}`,
		holds: `{"feature":"api_calls","reservationId":"§","amount":1}`} {
		same := strings.ReplaceAll(item, "§", "1")
		add(of, 400, "items_invalid", `{"items":§}`, `[]`, `null`, `[`+strings.Repeat(same+",", 20)+strings.ReplaceAll(item, "§", "2")+`]`)
		add(of, 400, map[bool]string{true: "event_id_invalid", false: "reservation_id_invalid"}[of == several], `{"items":[`+same+`,`+same+`]}`)
		add(of, 400, "feature_invalid", `{"items":[`+strings.Replace(same, "api_calls", "API", 1)+`]}`)
		add(of, 404, "feature_not_found", `{"items":[`+same+`,`+strings.Replace(strings.ReplaceAll(item, "§", "2"), "api_calls", "nothing",
			1)+`]}`)
		add(of, 409, "not_entitled", `{"items":[`+same+`,`+strings.Replace(strings.ReplaceAll(item, "§", "2"), "api_calls", "sso", 1)+`]}`)
		add(of, 400, "unknown_member", `§`, item, `{"items":[`+same+`],"dryRun":true}`)
	}
	for verb, body := range map[string]string{"consume": `{"eventId":"bad","amount":1}`,
		"reservations": `{"reservationId":"bad","amount":1}`} {
		add("POST /entitlements/§/"+verb, 400, "feature_invalid", body, "API", "..", "a%20b", "'", strings.Repeat("a", 65), "9")
		add("POST /entitlements/sso/"+verb, 409, "not_entitled", body)
		add("POST /entitlements/nothing/"+verb, 404, "feature_not_found", body)
	}
	add(one, 409, "quota_exceeded", `{"eventId":"bad","amount":991}`)
	add(several,
		409,
		"quota_exceeded", `{"items":[{"feature":"api_calls","eventId":"1","amount":501},{"feature":"api_calls","eventId":"2","amount":490}]}`)
	add(hold, 409, "quota_exceeded", `{"reservationId":"bad","amount":991}`)
	add(hold, 400, "reservation_id_invalid", `{"reservationId":§,"amount":1}`, `""`, `"`+strings.Repeat("x", 256)+`"`, `"a b"`, `"a\u0000"`,
		`"é"`, "5", "null")
	add(hold, 400, "amount_invalid", `{"reservationId":"bad","amount":§}`, "0", "1.0", "null", "9007199254740992")
	add(hold, 409, "reservation_conflict", `{"reservationId":"held","amount":11}`)
	add("POST /entitlements/storage/reservations", 409, "reservation_conflict", `{"reservationId":"held","amount":10}`)
	add(holds, 409, "reservation_conflict",
		`{"items":[{"feature":"api_calls","reservationId":"good","amount":1},{"feature":"api_calls","reservationId":"held","amount":11}]}`)
	for request, form := range map[string]string{hold: `{"reservationId":"bad","amount":1,"ttlSeconds":§}`,
		hold + "/held/extend": `{"ttlSeconds":§}`} {
		add(request, 400, "ttl_seconds_invalid", form, "0", "86401", "1.5", `"60"`, "null")
	}
	add(hold+"/held/commit", 400, "event_id_invalid", `{"eventId":§,"amount":1}`, `""`, `"a b"`, "null")
	add(hold+"/held/commit", 400, "amount_invalid", `{"eventId":"bad","amount":§}`, "0", "1e3", "null")
	add(hold+"/held/commit", 400, "overage_invalid", `{"eventId":"bad","amount":1,"overage":§}`, `""`, `"RECORD"`, "null")
	add(hold+"/held/commit", 409, "amount_exceeds_hold", `{"eventId":"bad","amount":11§}`, "", `,"overage":"deny"`)
	for _, change := range [][2]string{{"/commit", `{"eventId":"bad","amount":1}`}, {"/extend", `{"ttlSeconds":5}`}} {
		add(hold+"/ended"+change[0], 409, "reservation_ended", change[1])
		add(hold+"/nobody"+change[0], 404, "reservation_not_found", change[1])
		add("POST /entitlements/storage/reservations/held"+change[0], 404, "reservation_not_found", change[1])
	}
	add("DELETE /entitlements/§", 404, "reservation_not_found", "", "api_calls/reservations/nobody", "storage/reservations/held",
		"api_calls/reservations/..%2Fapi-keys")
	add("DELETE /entitlements/api_calls/reservations/§", 400, "reservation_id_invalid", "", "a%20b", strings.Repeat("x", 256), "%C3%A9")
	return list
}

func badLetters() (list []badInput) {
	add := func(path string, status int, code, body string, values ...string) {
		list = append(list, badInput{"POST /dead-letters" + path, status, code, body, values})
	}
	one := "/" + newID().String() + "/discard"
	reasons := []string{`""`, `"\u0000"`, `"` + strings.Repeat("é", 501) + `"`}
	add(one, 400, "reason_invalid", `{"reason":§}`, append(reasons, "null")...)
	add("/bulk", 400, "reason_invalid", `{"action":"discard","filter":{"stage":"VALIDATION"},"reason":§}`, append(reasons, `" \t"`)...)
	add("/bulk", 400, "reason_invalid", `{"action":"discard","filter":{"stage":"VALIDATION"}}`)
	add(one, 404, "not_found", `{"reason":"a letter that does not exist"}`)
	add("/x/discard", 404, "not_found", `{"reason":"r"}`)
	add("/bulk", 400, "member_missing", `§`, `{}`, `{"action":"retry"}`, `{"filter":{"stage":"VALIDATION"}}`)
	add("/bulk", 400, "action_invalid", `{"action":"delete","filter":{"stage":"VALIDATION"}}`)
	add("/bulk", 400, "expected_matched_invalid", `{"action":"retry","filter":{"stage":"VALIDATION"},"expectedMatched":§}`, "-1", "1.5",
		"10001")
	for code, filters := range map[string][]string{
		"filter_empty": {`{}`, `{"status":null}`}, "filter_invalid": {`null`}, "unknown_member": {`{"state":"FAILED"}`},
		"status_invalid": {`{"status":"failed"}`}, "stage_invalid": {`{"stage":"ALL"}`},
		"fingerprint_invalid": {`{"fingerprint":"abc"}`}, "feature_invalid": {`{"feature":""}`},
		"ids_invalid": {`{"ids":[]}`, `{"ids":["x"]}`, `{"ids":[` + strings.Repeat(fmt.Sprintf("%q,", newID()), 1000) +
			fmt.Sprintf("%q", newID()) + `]}`},
		"parameter_invalid": {`{"from":"yesterday"}`, `{"from":"2026-05-02T00:00:00Z","to":"2026-05-01T00:00:00Z"}`},
	} {
		add("/bulk", 400, code, `{"action":"retry","filter":§}`, filters...)
	}
	add("/bulk", 404, "tenant_not_found", `{"action":"retry","filter":{"tenantId":"§"}}`, "x", newID().String())
	return append(list, badInput{"GET /dead-letters/groups?tenantId=x", 404, "tenant_not_found", "", nil})
}

// badReplays are replays and rewinds, and reads of operators that lack a tenant.
func badReplays(a *account) (list []badInput) {
	const range1, time1 = `{"topic":"usage.raw","reason":"x","from":"1-1","to":"1-1"`,
		`{"topic":"usage.raw","reason":"x","fromTime":"2026-05-01T00:00:00Z"`
	for code, bodies := range map[string][]string{
		"member_missing":  {`{}`, `{"topic":"usage.raw"}`, `{"reason":"x"}`},
		"reason_required": {`{"topic":"usage.raw","reason":" ","fromTime":"2026-05-01T00:00:00Z"}`},
		"topic_invalid": {strings.Replace(range1, "usage.raw", "usage.commands", 1) + "}",
			strings.Replace(range1, "usage.raw", "nothing", 1) + "}"},
		"range_invalid": {`{"topic":"usage.raw","reason":"x"}`, `{"topic":"usage.raw","reason":"x","from":"1-1"}`,
			`{"topic":"usage.raw","reason":"x","from":"1-2","to":"1-1"}`,
			`{"topic":"usage.raw","reason":"x","from":"1-1","to":"2-1"}`, `{"topic":"usage.raw","reason":"x","from":"1-0","to":"1-1"}`,
			`{"topic":"usage.raw","reason":"x","from":"1-99999","to":"1-99999"}`, time1 + `,"toTime":"2026-05-01T00:00:00Z"}`,
			strings.ReplaceAll(range1, `"1-1"`, fmt.Sprintf(`"%d-1"`, (a.partition()+1)%32)) + `,"tenantId":"` + a.id + `"}`},
		"position_invalid": {strings.ReplaceAll(range1, `"1-1"`, `"32-1"`) + "}", strings.Replace(range1, `"1-1"`, `"01-1"`, 1) + "}"},
		"time_invalid":     {range1 + `,"fromTime":"2026-05-01"}`, `{"topic":"usage.raw","reason":"x","fromTime":"2026-05-01T00:00:00"}`},
	} {
		list = append(list, badInput{"POST /replays", 400, code, `§`, bodies})
	}
	const aggregator = `,"consumer":"meterplex-usage-aggregator"`
	for code, members := range map[string][]string{
		"to_invalid": {`,"to":"end"`, `,"to":"2026-05-01"`, `,"to":"start","positions":["1-1"]`, aggregator, aggregator + `,"to":"consumers"`},
		"positions_invalid": {`,"positions":[]`, `,"positions":["1-1","1-2"]`, `,"positions":["1-0"]`, aggregator + `,"positions":["1-999"]`,
			`,"consumer":"meterplex-usage-commands","positions":["1-1"]`},
		"position_invalid": {`,"positions":["x"]`},
	} {
		list = append(list, badInput{"POST /replays/rewind", 400, code, `{"reason":"x"§}`, members})
	}
	return append(list,
		badInput{"POST /replays", 404, "tenant_not_found", time1 + `,"tenantId":"§"}`, []string{newID().String(), "nobody"}},
		badInput{"POST /replays/rewind", 404, "consumer_not_found", `{"reason":"x","consumer":"meterplex-entitlement-reads","to":"start"}`, nil},
		badInput{"POST /replays/rewind", 409, "rewind_forward", `{"reason":"x","positions":["1-99999"]}`, nil},
		badInput{"GET §", 400, "parameter_missing", "", []string{"/usage/events", "/usage/aggregates",
			"/usage?feature=api_calls&from=2026-05-01T00:00:00Z&to=2026-05-02T00:00:00Z",
			"/events?stream=usage/e", "/quota/accounts"}},
		badInput{"GET /usage/aggregates?period=2026-05&§", 400, "parameter_invalid", "",
			[]string{"minPosition=17-1", "asOfPosition=17-1", "asOf=2026-05-01T00:00:00Z"}},
		badInput{"GET /events/stream?after=3-1", 400, "position_invalid", "", nil})
}
