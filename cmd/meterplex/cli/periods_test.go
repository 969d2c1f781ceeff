package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/internal/must"
)

// exported is an export of a snapshot with one frozen line, and one of adjustments alone. Its hash is that of the text in the
// specification's form.
const exported = `{"tenantId":"t1","periodKey":"2026-05","state":"CLOSED","snapshot":1,"cutPosition":"17-4711","closedAt":"2026-06-01T00:00:00Z","logic":"usage_aggregates/v1",
"figuresHash":"HASH","despite":[],"partial":false,"missing":[],"lines":[
{"feature":"a","subscriptionId":"s1","frozen":90071992547409930001,"frozenEventCount":2,"pending":-6,"approved":0,"waived":0,"billable":90071992547409930001,"net":90071992547409929995,"netEventCount":2,"unreconciled":0},
{"feature":"b","subscriptionId":"s1","frozen":0,"frozenEventCount":0,"pending":1,"approved":0,"waived":0,"billable":0,"net":1,"netEventCount":1,"unreconciled":0}],"asOfPosition":"17-4800","nextCursor":null}`

// printf '%s'
// '{"cut":"17-4711","lines":[{"amount":"90071992547409930001","eventCount":2,"feature":"a","subscriptionId":"s1"}],"logic":"usage_aggregates/v1","periodKey":"2026-05","snapshot":1,"tenantId":"t1"}' | sha256sum
const exportedHash = "f735194a0a5089dd6980572f2eb19cb4ba65c7dd404e8e92a1f1128759867acf"

func TestPeriodsVerifyComputesTheHash(t *testing.T) {
	p := newFakeService(t)
	c := newConsole(t, p)
	const path = "/api/v1/tenants/t1/periods/2026-05/export"
	file := filepath.Join(t.TempDir(), "2026-05.json")
	for answer, want := range map[string]int{strings.Replace(exported, "HASH", exportedHash, 1): app.ExitYes,
		strings.Replace(exported, "HASH", strings.Repeat("0", 64), 1):                                                   app.ExitNo,
		strings.Replace(strings.Replace(exported, "HASH", exportedHash, 1), "930001", "930002", 1):                      app.ExitNo,
		strings.Replace(exported, `"HASH"`, "null", 1):                                                                  app.ExitNo,
		strings.Replace(strings.Replace(exported, "HASH", exportedHash, 1), `"nextCursor":null`, `"nextCursor":"x"`, 1): app.ExitUnknown,
		strings.Replace(strings.Replace(exported, "HASH", exportedHash, 1), `"t1"`, `"t2"`, 1):                          app.ExitUnknown} {
		p.catalog[path] = json.RawMessage(answer)
		must.OK(t, os.WriteFile(file, []byte(answer), 0o600))
		for _, more := range [][]string{nil, {"--file", file}} {
			if code, out, errs := c.run(append([]string{"periods", "verify", "2026-05", "--tenant", "t1"}, more...)...); code != want {
				t.Errorf("%v: exit code %d instead of %d\n%s%s", more, code, want, out, errs)
			}
		}
	}
}

func TestPeriodsShowPrintsMembersAndLines(t *testing.T) {
	p := newFakeService(t)
	p.catalog["/api/v1/tenants/t1/periods/2026-05"] = json.RawMessage(exported)
	code, out, errs := newConsole(t, p).run("periods", "show", "2026-05", "--tenant", "t1")
	for _, want := range []string{"state         CLOSED\n", "cutPosition   17-4711\n", "\nfeature  frozen                pending",
		"\na        90071992547409930001  -6"} {
		if code != app.ExitYes || !strings.Contains(out, want) {
			t.Errorf("exit code %d, no %q\n%s%s", code, want, out, errs)
		}
	}
	if _, out, _ = newConsole(t, p).run("periods", "show", "2026-05", "--tenant", "t1", "-o", "csv"); !strings.HasPrefix(out,
		"feature,frozen,") || strings.Count(out, "\n") != 3 {
		t.Error(out)
	}
}

// A table without rows is not silent; other formats and the exit code do not show it.
func TestAnEmptyTableIsNamed(t *testing.T) {
	p := newFakeService(t)
	p.catalog["/api/v1/tenants/t1/periods/2026-05"] = json.RawMessage(`{"periodKey":"2026-05","state":"OPEN","lines":[],"nextCursor":null}`)
	p.catalog["/api/v1/tenants/t1/periods/2026-05/charges"] = json.RawMessage(`{"data":[],"totals":[],"nextCursor":null}`)
	p.catalog["/api/v1/tenants"] = json.RawMessage(`{"data":[],"nextCursor":null}`)
	p.catalog["/api/v1/usage/aggregates?limit=1000&tenantId=t1"] = json.RawMessage(`{"data":[],"nextCursor":null,"asOfPosition":"17-1"}`)
	const noLines, noRows = "No lines: the period 2026-05 has no figures of this tenant.\n", "No rows.\n"
	for args, want := range map[string]string{"periods show 2026-05 --tenant t1": noLines, "periods charges 2026-05 --tenant t1": noLines,
		"tenants list": noRows, "usage aggregates --tenant t1": "As of position 17-1.\n" + noRows} {
		for _, format := range []string{"table", "json", "csv"} {
			code, _, errs := newConsole(t, p).run(append(strings.Fields(args), "-o", format)...)
			if code != app.ExitYes || (format == "table" && errs != want) || (format != "table" && strings.Contains(errs, "No ")) {
				t.Errorf("%s -o %s: exit code %d\n%q", args, format, code, errs)
			}
		}
	}
}

func TestRequestsOfPeriods(t *testing.T) {
	requireRequests(t, []sentRequest{
		{"tenants update t1 --late-usage ADJUST --close-after-hours 24",
			`PATCH /api/v1/tenants/t1 {"lateUsage":"ADJUST","closeAfterHours":24}`},
		{"tenants update t1 --no-close-after", `PATCH /api/v1/tenants/t1 {"closeAfterHours":null}`},
		{"periods list --tenant t1 --limit 5", `GET /api/v1/tenants/t1/periods?limit=5 `},
		{"periods close 2026-05 --tenant t1 --reason r", `POST /api/v1/tenants/t1/periods/2026-05/close {"reason":"r"}`},
		{"periods close 2026-05 --tenant-id t1 --reason r --early --despite dead_letters,rebuilds",
			`POST /api/v1/tenants/t1/periods/2026-05/close {"despite":["dead_letters","rebuilds"],"early":true,"reason":"r"}`},
		{"periods reopen 2026-05 --tenant t1 --reason r", `POST /api/v1/tenants/t1/periods/2026-05/reopen {"reason":"r"}`},
		{"periods adjustments 2026-05 --tenant t1 --state PENDING",
			`GET /api/v1/tenants/t1/periods/2026-05/adjustments?limit=1000&state=PENDING `},
		{"periods show 2026-05 --tenant t1 --snapshot 1 -o json", `GET /api/v1/tenants/t1/periods/2026-05?limit=1000&snapshot=1 `},
		{"periods charges 2026-05 --tenant t1 --snapshot 2", `GET /api/v1/tenants/t1/periods/2026-05/charges?limit=1000&snapshot=2 `},
		{"periods export 2026-05 --tenant t1", `GET /api/v1/tenants/t1/periods/2026-05/export?format=json `},
		{"adjustments list --tenant t1 --period 2026-05 --state PENDING --kind RETRY --feature f --limit 5",
			`GET /api/v1/adjustments?feature=f&kind=RETRY&limit=5&periodKey=2026-05&state=PENDING&tenantId=t1 `},
		{"adjustments approve a1 --reason r", `POST /api/v1/adjustments/a1/approve {"reason":"r"}`},
		{"adjustments waive a1 --reason r", `POST /api/v1/adjustments/a1/waive {"reason":"r"}`},
		{"adjustments decide approve --tenant t1 --period 2026-05 --up-to 17-9 --feature f --kind RETRY --reason r --dry-run",
			`POST /api/v1/adjustments/decide {"decision":"approve","dryRun":true,"feature":"f","kind":"RETRY","periodKey":"2026-05",` +
				`"reason":"r","tenantId":"t1","upTo":"17-9"}`},
		{"adjustments decide waive --id a,b --reason r",
			`POST /api/v1/adjustments/decide {"decision":"waive","ids":["a","b"],"reason":"r"}`},
	})
}
