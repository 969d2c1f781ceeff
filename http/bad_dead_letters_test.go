package http_test

import (
	"fmt"
	"strings"
)

func (w *testService) letterBodies(a *account) (list []badInput) {
	const letters = "/api/v1/dead-letters"
	add := func(path, body string, status int, code string) {
		list = append(list, badInput{path + " " + body[:min(len(body), 60)], call{"POST", letters + path, bootstrap, nil, body}, status, code})
	}
	get := func(query string, status int, code string) {
		list = append(list, badInput{query, call{method: "GET", path: letters + query, key: bootstrap}, status, code})
	}
	one := "/" + newID().String() + "/discard"
	for _, path := range []string{one, "/bulk"} {
		add(path, ``, 400, "malformed_json")
		add(path, `[]`, 400, "body_invalid")
		add(path, `{}`, 400, "member_missing")
		add(path, `{"reason":"a","reason":"b"}`, 400, "malformed_json")
		add(path, `{"Reason":"a"}`, 400, "unknown_member")
	}
	for _, reason := range []string{`""`, `5`, `[]`, `"\u0000"`, `"` + strings.Repeat("é", 501) + `"`} {
		add(one, `{"reason":`+reason+`}`, 400, "reason_invalid")
		add("/bulk", `{"action":"discard","filter":{"stage":"VALIDATION"},"reason":`+reason+`}`, 400, "reason_invalid")
	}
	add(one, `{"reason":null}`, 400, "reason_invalid")
	add(one, `{"reason":"a letter that does not exist"}`, 404, "not_found")
	add("/x/discard", `{"reason":"r"}`, 404, "not_found")
	bulk := func(filter string, status int, code string) {
		add("/bulk", `{"action":"retry","filter":`+filter+`}`, status, code)
	}
	add("/bulk", `{"action":"retry"}`, 400, "member_missing")
	add("/bulk", `{"filter":{"stage":"VALIDATION"}}`, 400, "member_missing")
	add("/bulk", `{"action":"delete","filter":{"stage":"VALIDATION"}}`, 400, "action_invalid")
	add("/bulk", `{"action":"discard","filter":{"stage":"VALIDATION"}}`, 400, "reason_invalid")
	add("/bulk", `{"action":"discard","filter":{"stage":"VALIDATION"},"reason":" \t"}`, 400, "reason_invalid")
	add("/bulk", `{"action":"retry","filter":{"stage":"VALIDATION"},"dryrun":true}`, 400, "unknown_member")
	add("/bulk", `{"action":"retry","filter":{"stage":"VALIDATION"},"dryRun":"true"}`, 400, "dry_run_invalid")
	for _, expected := range []string{`-1`, `"5"`, `1.5`, `10001`, `true`, `9007199254740993`, `[]`} {
		add("/bulk", `{"action":"retry","filter":{"stage":"VALIDATION"},"expectedMatched":`+expected+`}`, 400, "expected_matched_invalid")
	}
	bulk(`{}`, 400, "filter_empty")
	bulk(`{"status":null}`, 400, "filter_empty")
	bulk(`null`, 400, "filter_invalid")
	bulk(`{"state":"FAILED"}`, 400, "unknown_member")
	bulk(`{"status":"failed"}`, 400, "status_invalid")
	bulk(`{"stage":"ALL"}`, 400, "stage_invalid")
	bulk(`{"fingerprint":"abc"}`, 400, "fingerprint_invalid")
	bulk(`{"feature":""}`, 400, "feature_invalid")
	bulk(`{"ids":[]}`, 400, "ids_invalid")
	bulk(`{"ids":"`+newID().String()+`"}`, 400, "ids_invalid")
	bulk(`{"ids":["x"]}`, 400, "ids_invalid")
	bulk(`{"ids":[`+strings.Repeat(fmt.Sprintf("%q,", newID()), 1000)+fmt.Sprintf("%q", newID())+`]}`, 400, "ids_invalid")
	bulk(`{"tenantId":"`+newID().String()+`"}`, 404, "tenant_not_found")
	bulk(`{"tenantId":"x"}`, 404, "tenant_not_found")
	bulk(`{"from":"yesterday"}`, 400, "parameter_invalid")
	bulk(`{"from":"2026-05-02T00:00:00Z","to":"2026-05-01T00:00:00Z"}`, 400, "parameter_invalid")
	get("/groups?limit=0", 400, "parameter_invalid")
	get("/groups?cursor=x", 400, "cursor_invalid")
	get("/groups?state=FAILED", 400, "unknown_parameter")
	get("/groups?tenantId=x", 404, "tenant_not_found")
	get("?fingerprint=%00", 400, "parameter_invalid")
	get("?feature=", 400, "parameter_invalid")
	return list
}
