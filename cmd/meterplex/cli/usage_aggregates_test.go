package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

// An operator reads the figures of all tenants in a period, page by page; each row names its tenant.
func TestFiguresOfAllTenants(t *testing.T) {
	p := newFakeService(t)
	const list, row = "/api/v1/usage/aggregates?limit=1000&period=2026-05",
		`{"tenantId":"%","feature":"calls","periodKey":"2026-05","amount":7,"eventCount":1,"lastEventAt":"2026-05-04T10:00:00Z",` +
			`"subscriptionId":"s"}`
	page := func(tenant, next string) json.RawMessage {
		return json.RawMessage(`{"data":[` + strings.Replace(row, "%", tenant, 1) + `],"nextCursor":` + next + `,"asOfPosition":null}`)
	}
	p.catalog[list] = page("t1", `"c"`)
	p.catalog[strings.Replace(list, "?", "?cursor=c&", 1)] = page("t2", "null")
	code, out, errs := newConsole(t, p).run("usage", "aggregates", "--period", "2026-05", "-o", "csv")
	const want = "tenantId,feature,periodKey,amount,eventCount,lastEventAt,subscriptionId\nt1,calls,2026-05,7,1,2026-05-04T10:00:00Z," +
		"s\nt2,calls,2026-05,7,1,2026-05-04T10:00:00Z,s\n"
	if code != app.ExitYes || out != want || errs != "" {
		t.Errorf("%d %q %q", code, out, errs)
	}
	if code, out, errs = newConsole(t, p).run("usage", "aggregates", "--period", "2026-05", "-o", "json"); code != app.ExitYes ||
		!strings.Contains(out, `"asOfPosition": null`) || strings.Count(out, `"tenantId"`) != 2 {
		t.Errorf("%d %q %q", code, out, errs)
	}
}
