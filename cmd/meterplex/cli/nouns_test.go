package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/internal/must"
)

// TestRequests: each command sends a request as documented in the HTTP API.
func TestRequests(t *testing.T) {
	requireRequests(t, []sentRequest{
		{"tenants create Acme --class large", `POST /api/v1/tenants {"class":"large","name":"Acme"}`},
		{"tenants update t1 --status SUSPENDED", `PATCH /api/v1/tenants/t1 {"status":"SUSPENDED"}`},
		{"tenants create Acme --mode test", `POST /api/v1/tenants {"class":"small","mode":"test","name":"Acme"}`},
		{"tenants create Acme --data-residency eu-central-1",
			`POST /api/v1/tenants {"class":"small","dataResidency":"eu-central-1","name":"Acme"}`},
		{"tenants update t1 --data-residency us-east-1", `PATCH /api/v1/tenants/t1 {"dataResidency":"us-east-1"}`},
		{"tenants create Acme --external-id crm,4711 --external-id b --metadata a=b=c;d --metadata e=",
			`POST /api/v1/tenants {"class":"small","externalIds":["crm,4711","b"],"metadata":{"a":"b=c;d","e":""},"name":"Acme"}`},
		{"tenants update t1 --external-id a --metadata k=v", `PATCH /api/v1/tenants/t1 {"externalIds":["a"],"metadata":{"k":"v"}}`},
		{"tenants update t1 --no-external-ids --no-metadata", `PATCH /api/v1/tenants/t1 {"externalIds":[],"metadata":{}}`},
		{"tenants list --external-id a&b", `GET /api/v1/tenants?externalId=a%26b&limit=1000 `},
		{"tenants list --q 50%_a --limit 5", `GET /api/v1/tenants?limit=5&q=50%25_a `},
		{"tenants list --query Acme", `GET /api/v1/tenants?limit=1000&q=Acme `},
		{"projections promote r1 --reason r --if-match a.b --yes", `POST /api/v1/rebuilds/r1/promote {"reason":"r"}`},
		{"tenants show a/b", `GET /api/v1/tenants/a%2Fb `},
		{"keys create --tenant t1 --name n --scope usage:write,usage:read",
			`POST /api/v1/tenants/t1/api-keys {"name":"n","scopes":["usage:write","usage:read"]}`},
		{"keys create --operator --name n --scope admin --expires-at 2026-05-04T10:00:00Z",
			`POST /api/v1/operator-keys {"name":"n","scopes":["admin"],"expiresAt":"2026-05-04T10:00:00Z"}`},
		{"keys rotate k1 --tenant t1 --overlap 90m", `POST /api/v1/tenants/t1/api-keys/k1/rotate {"overlapSeconds":5400}`},
		{"keys revoke k1 --operator", `DELETE /api/v1/operator-keys/k1 `},
		{"features put api_calls --name Calls --type QUOTA", `PUT /api/v1/features/api_calls {"name":"Calls","type":"QUOTA"}`},
		{"features put api_calls --name Calls --type QUOTA --group-by region,model",
			`PUT /api/v1/features/api_calls {"name":"Calls","type":"QUOTA","groupBy":["region","model"]}`},
		{"usage series --feature a --from 2026-05-01 --to 2026-05-02T12:30:00+02:00 --granularity hour --group-by region --group-by " +
			"metadata.model --tenant t1 --min-position 3-4",
			`GET /api/v1/usage?feature=a&from=2026-05-01T00%3A00%3A00Z&granularity=hour&groupBy=metadata.region&groupBy=metadata.model&minPosition=3-4&tenantId=t1&to=2026-05-02T11%3A00%3A00Z `},
		{"usage series --feature a --to 2026-06-01 --granularity month",
			`GET /api/v1/usage?feature=a&from=2025-06-01T00%3A00%3A00Z&granularity=month&to=2026-06-01T00%3A00%3A00Z `},
		{"plans put pro --name Pro --entitlement a=50000,HARD,MONTHLY,enforce --entitlement b=unlimited,SOFT,NEVER --entitlement sso",
			`PUT /api/v1/plans/pro {"name":"Pro","entitlements":[{"feature":"a","limit":50000,"limitBehavior":"HARD","resetPeriod":"MONTHLY",` +
				`"onIngest":"enforce"},` +
				`{"feature":"b","limitBehavior":"SOFT","resetPeriod":"NEVER"},{"feature":"sso"}]}`},
		{"subscriptions create --tenant t1 --plan pro", `POST /api/v1/tenants/t1/subscriptions {"plan":"pro"}`},
		{"subscriptions update s1 --tenant t1 --status CANCELLED", `PATCH /api/v1/tenants/t1/subscriptions/s1 {"status":"CANCELLED"}`},
		{"subscriptions update s1 --tenant t1 --status CANCELLED --reason ended+früh",
			`PATCH /api/v1/tenants/t1/subscriptions/s1 {"status":"CANCELLED"} because ended+fr%C3%BCh`},
		{"keys revoke k1 --operator --reason lost", `DELETE /api/v1/operator-keys/k1  because lost`},
		{"dead-letters list --status FAILED --limit 5", `GET /api/v1/dead-letters?limit=5&status=FAILED `},
		{"dead-letters list --code c --fingerprint f", `GET /api/v1/dead-letters?fingerprint=f&limit=1000&reason=c `},
		{"dead-letters groups --stage VALIDATION --reason c", `GET /api/v1/dead-letters/groups?limit=1000&reason=c&stage=VALIDATION `},
		{"dead-letters retry d1 --reason fixed", `POST /api/v1/dead-letters/d1/retry {"reason":"fixed"}`},
		{"dead-letters discard d1 --reason test", `POST /api/v1/dead-letters/d1/discard {"reason":"test"}`},
		{"dead-letters bulk retry --fingerprint f --id a,b --reason fixed --yes",
			`POST /api/v1/dead-letters/bulk {"action":"retry","dryRun":false,"filter":{"fingerprint":"f","ids":["a","b"]},"reason":"fixed"}`},
		{"dead-letters bulk retry --fingerprint f --reason fixed --yes --expected-matched 0",
			`POST /api/v1/dead-letters/bulk {"action":"retry","dryRun":false,"expectedMatched":0,"filter":{"fingerprint":"f"},"reason":"fixed"}`},
		{"dead-letters bulk discard --code c --reason test --dry-run",
			`POST /api/v1/dead-letters/bulk {"action":"discard","dryRun":true,"filter":{"reason":"c"},"reason":"test"}`},
		{"replay range --topic usage.raw --from 3-4 --to 3-9 --reason r",
			`POST /api/v1/replays {"from":"3-4","reason":"r","to":"3-9","topic":"usage.raw"}`},
		{"replay rewind --to-start --reason r", `POST /api/v1/replays/rewind {"reason":"r","to":"start"}`},
		{"replay rewind --to-position 3-4,5-6 --reason r", `POST /api/v1/replays/rewind {"positions":["3-4","5-6"],"reason":"r"}`},
		{"replay rewind --consumer c --to-start --reason r", `POST /api/v1/replays/rewind {"consumer":"c","reason":"r","to":"start"}`},
		{"schemas list", `GET /api/v1/schemas?limit=1000 `},
		{"schemas show a.b/v2", `GET /api/v1/schemas/a.b/v2 `},
		{"schemas show a.b.v2", `GET /api/v1/schemas/a.b/v2 `},
		{"schemas show /api/v1/schemas/a.b/v1#sha256=" + strings.Repeat("0a", 32),
			`GET /api/v1/schemas/a.b/v1?sha256=` + strings.Repeat("0a", 32) + ` `},
		{"replay show r1", `GET /api/v1/replays/r1 `},
		{"sagas list --kind k --state PARTIAL --tenant t1 --limit 5", `GET /api/v1/sagas?kind=k&limit=5&state=PARTIAL&tenantId=t1 `},
		{"sagas show s1", `GET /api/v1/sagas/s1 `},
		{"sagas retry s1 --despite dead_letters,rebuilds --reason r",
			`POST /api/v1/sagas/s1/retry {"despite":["dead_letters","rebuilds"],"reason":"r"}`},
		{"plans subscriptions pro --older", `GET /api/v1/plans/pro/subscriptions?limit=100&snapshot=older `},
		{"system instances", `GET /api/v1/system/instances?limit=100 `}, {"system instance", `GET /api/v1/system/instance `},
		{"system overview", `GET /api/v1/system/overview `},
		{"system overview -o json --history", `GET /api/v1/system/overview?history=true `},
		{"outbox", `GET /api/v1/outbox `},
		{"outbox show", `GET /api/v1/outbox `},
		{"outbox withheld --topic usage.raw --tenant t1 --limit 5", `GET /api/v1/outbox/withheld?limit=5&tenantId=t1&topic=usage.raw `},
		{"thresholds create --tenant t1 --feature api_calls --percent 80",
			`POST /api/v1/tenants/t1/thresholds {"feature":"api_calls","percent":80}`},
		{"thresholds create --tenant t1 --amount 1000000", `POST /api/v1/tenants/t1/thresholds {"amount":1000000}`},
		{"thresholds list --tenant t1 --limit 5", `GET /api/v1/tenants/t1/thresholds?limit=5 `},
		{"thresholds show x1 --tenant t1", `GET /api/v1/tenants/t1/thresholds/x1 `},
		{"thresholds remove x1 --tenant t1", `DELETE /api/v1/tenants/t1/thresholds/x1 `},
		{"webhooks create https://example.com/x --tenant t1 --event period.closed,push.failed",
			`POST /api/v1/tenants/t1/webhooks {"events":["period.closed","push.failed"],"url":"https://example.com/x"}`},
		{"webhooks list --tenant t1 --limit 5", `GET /api/v1/tenants/t1/webhooks?limit=5 `},
		{"webhooks show w1 --tenant t1", `GET /api/v1/tenants/t1/webhooks/w1 `},
		{"webhooks update w1 --tenant t1 --send-to https://example.com/y --event push.failed --status DISABLED",
			`PATCH /api/v1/tenants/t1/webhooks/w1 {"events":["push.failed"],"status":"DISABLED","url":"https://example.com/y"}`},
		{"webhooks remove w1 --tenant t1", `DELETE /api/v1/tenants/t1/webhooks/w1 `},
		{"webhooks rotate w1 --tenant t1 --overlap 1h", `POST /api/v1/tenants/t1/webhooks/w1/rotate {"overlapSeconds":3600}`},
		{"webhooks test w1 --tenant t1", `POST /api/v1/tenants/t1/webhooks/w1/test `},
		{"webhooks deliveries w1 --tenant t1 --state FAILED --limit 5",
			`GET /api/v1/tenants/t1/webhooks/w1/deliveries?limit=5&state=FAILED `},
		{"webhooks replay d1", `POST /api/v1/deliveries/d1/replay `},
		{"webhooks replay w1 --tenant t1 --from 2026-05-01T00:00:00Z --to 2026-06-01T00:00:00Z",
			`POST /api/v1/tenants/t1/webhooks/w1/replay {"from":"2026-05-01T00:00:00Z","to":"2026-06-01T00:00:00Z"}`},
		// All commands accept a tenant by either name of the flag.
		{"projections rebuild usage_aggregates --reason r --tenant t1 --period 2026-05 --workers 2 --no-wait",
			`POST /api/v1/projections/usage_aggregates/rebuilds {"periodKey":"2026-05","reason":"r","tenantId":"t1","workers":2}`},
		{"dead-letters list --tenant t1", `GET /api/v1/dead-letters?limit=1000&tenantId=t1 `},
		{"events query --tenant t1", `GET /api/v1/events?limit=101&tenantId=t1 `},
		{"keys list --tenant-id t1", `GET /api/v1/tenants/t1/api-keys?limit=1000 `},
		{"subscriptions list --tenant-id t1", `GET /api/v1/tenants/t1/subscriptions?limit=1000 `},
		{"replay range --topic usage.raw --tenant-id t1 --from 3-4 --reason r",
			`POST /api/v1/replays {"from":"3-4","reason":"r","tenantId":"t1","topic":"usage.raw"}`},
		{"usage list --feature a --status REJECTED --from 2026-05-01T00:00:00Z --limit 5",
			`GET /api/v1/usage/events?feature=a&from=2026-05-01T00%3A00%3A00Z&limit=5&status=REJECTED `},
		{"usage refusals --code c --feature f", `GET /api/v1/usage/refusals?code=c&feature=f&limit=1000 `},
		{"usage conflicts --tenant t1", `GET /api/v1/usage/conflicts?limit=1000&tenantId=t1 `},
		{"entitlements accounts --tenant t1 --feature f --period 2026-05 --limit 5",
			`GET /api/v1/quota/accounts?feature=f&limit=5&periodKey=2026-05&tenantId=t1 `},
		{"entitlements reservations tokens", `GET /api/v1/entitlements/tokens/reservations?limit=1000 `},
		{"entitlements reservations tokens --state HELD --tenant t1 --limit 5",
			`GET /api/v1/entitlements/tokens/reservations?limit=5&state=HELD&tenantId=t1 `},
		{"entitlements reservations tokens a/b --tenant t1", `GET /api/v1/entitlements/tokens/reservations/a%2Fb?tenantId=t1 `},
		{"entitlements list --min-position 3-4", `GET /api/v1/entitlements?minPosition=3-4 `},
	})
}

// sentRequest is a command, and the request that it sends.
type sentRequest struct{ args, want string }

func requireRequests(t *testing.T, list []sentRequest) {
	t.Helper()
	for _, c := range list {
		p := newFakeService(t)
		code, _, errs := newConsole(t, p).run(strings.Fields(c.args)...)
		if code != app.ExitYes || len(p.requests) != 1 || canonical(t, p.requests[0]) != canonical(t, c.want) {
			t.Errorf("%s: exit code %d\n%q\n%s", c.args, code, p.requests, errs)
		}
	}
}

// TestCommandsNeedWholeRequests: without a needed flag, or with two of which one is needed, nothing is sent.
func TestCommandsNeedWholeRequests(t *testing.T) {
	for _, args := range []string{"thresholds create --tenant t1", "thresholds create --tenant t1 --percent 80 --amount 5",
		"thresholds create --percent 80", "webhooks update w1 --tenant t1",
		"webhooks rotate w1 --tenant t1 --overlap 1500ms", "webhooks replay w1 --tenant t1",
		"webhooks replay w1 --from 2026-05-01T00:00:00Z"} {
		p := newFakeService(t)
		if code, _, errs := newConsole(t, p).run(strings.Fields(args)...); code != app.ExitUnknown || len(p.requests) != 0 || errs == "" {
			t.Errorf("%s: exit code %d, %q, %s", args, code, p.requests, errs)
		}
	}
}

// TestFlagsOfPairsKeepSemicolons, which kong separates pairs at by default.
func TestFlagsOfPairsKeepSemicolons(t *testing.T) {
	parser, err := newConsole(t, nil).app.parserFor(&app.ClientFlags{}, "")
	must.OK(t, err)
	found := 0
	err = kong.Visit(parser.Model, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok && flag.IsMap() {
			if found++; flag.Tag.MapSep != -1 {
				t.Errorf("%s splits its values at %q", flag.Summary(), flag.Tag.MapSep)
			}
		}
		return next(nil)
	})
	if err != nil || found < 6 { // of send, correct, retract, consume, create and update
		t.Errorf("%d flags of pairs, %v", found, err)
	}
	requireRequests(t, []sentRequest{{"entitlements consume a --event-id e --metadata query=a=1;b=2 --metadata k=v",
		`POST /api/v1/entitlements/a/consume {"eventId":"e","amount":1,"metadata":{"k":"v","query":"a=1;b=2"}}`}})
}

func TestNegativeAnswersSetTheExitCode(t *testing.T) {
	for path, c := range map[string]struct{ args, yes, no string }{
		"/api/v1/entitlements/a/check": {"entitlements check a", `{"allowed":true,"limit":null}`,
			`{"allowed":false,"reason":"not_entitled"}`},
		"/api/v1/system/identity": {"system identity", `{"holds":true,"total":{"accepted":1}}`,
			`{"holds":false,"total":{"missing":1}}`},
	} {
		p := newFakeService(t)
		for answer, want := range map[string]int{c.yes: app.ExitYes, c.no: app.ExitNo, `{}`: app.ExitUnknown} {
			p.catalog[path] = json.RawMessage(answer)
			if code, out, errs := newConsole(t, p).run(strings.Fields(c.args)...); code != want {
				t.Errorf("%s of %s: exit code %d\n%s%s", c.args, answer, code, out, errs)
			}
		}
	}
}

func TestSendLines(t *testing.T) {
	p := newFakeService(t)
	c := newConsole(t, p)
	var in strings.Builder
	for n := range 2500 {
		b, _ := json.Marshal(event{EventID: "e" + time.Duration(n).String(), Feature: "a", Amount: int64(n + 1), Timestamp: time.Now()})
		in.Write(append(b, "\n\n"...))
	}
	c.app.Stdin = strings.NewReader(in.String())
	code, out, errs := c.run("usage", "send", "-o", "ndjson")
	if code != app.ExitYes || strings.Count(out, "accepted") != 2500 || p.ingests != 3 || !strings.Contains(out, `"index":2499`) {
		t.Errorf("exit code %d, %d requests\n%s", code, p.ingests, errs)
	}
	c.app.Stdin = strings.NewReader(strings.Replace(in.String(), `"amount":7,`, `"amount":8,`, 1))
	if code, out, _ = c.run("usage", "send", "-o", "ndjson"); code != app.ExitNo || strings.Count(out, "conflict") != 2 { // status and code
		t.Errorf("a conflict: exit code %d, %d", code, strings.Count(out, "conflict"))
	}
	c.app.Stdin = strings.NewReader("{}],\"events\":[{}\n")
	if code, _, errs = c.run("usage", "send"); code != app.ExitUnknown || !strings.Contains(errs, "line 1") {
		t.Errorf("no JSON: exit code %d\n%s", code, errs)
	}
}

// TestSchemasShow: without a version the newest one is shown, as the document that the service sends.
func TestSchemasShow(t *testing.T) {
	p := newFakeService(t)
	p.catalog["/api/v1/schemas"] = json.RawMessage(
		`{"data":[{"subject":"a.b","version":2},{"subject":"a.b","version":10},{"subject":"a.bc","version":11}],"nextCursor":null}`)
	p.catalog["/api/v1/schemas/a.b/v10"] = json.RawMessage("{\n  \"type\": \"object\"\n}\n")
	for args, want := range map[string]string{"schemas show a.b": "{\n  \"type\": \"object\"\n}\n",
		"schemas show a.b/v10 -o ndjson": `{"type":"object"}` + "\n"} {
		if code, out, errs := newConsole(t, p).run(strings.Fields(args)...); code != app.ExitYes || out != want {
			t.Errorf("%s: exit code %d\n%q\n%s", args, code, out, errs)
		}
	}
	for _, name := range []string{"a/b", "a.b#sha256=1"} {
		if code, _, errs := newConsole(t, p).run("schemas", "show", name); code != app.ExitUnknown ||
			!strings.Contains(errs, "SUBJECT/vN") {
			t.Errorf("%q: exit code %d\n%s", name, code, errs)
		}
	}
}
