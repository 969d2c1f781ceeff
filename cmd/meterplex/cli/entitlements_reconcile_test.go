package cli

import (
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

func TestAccountsThatDifferAreShownAndRepaired(t *testing.T) {
	const tenant = "0196c0de-0000-7000-8000-000000000001"
	const differ = `"drift":[{"feature":"tokens","periodKey":"2026-11","used":{"was":950,"is":953},"held":{"was":40,"is":40}}]`
	const gone = `"reservations":[{"reservationId":"job-1","feature":"tokens","was":null,"is":{"state":"HELD","periodKey":"2026-11",` +
		`"amount":40,"expiresAt":"2026-11-04T12:00:00Z"}}]`
	for _, c := range []struct {
		args, answer, request string
		code                  int
		says                  string
	}{
		{"", `{"tenantId":"` + tenant + `","drift":[],"repaired":false,"headPosition":"17-9"}`, `{"tenantId":"` + tenant + `"}`,
			app.ExitYes, "All accounts and reservations equal the log."},
		{"", `{` + differ + `,"repaired":false}`, `{"tenantId":"` + tenant + `"}`, app.ExitNo, "1 accounts differ from the log"},
		{"--repair --reason restored", `{` + differ + `,"repaired":true}`, `{"reason":"restored","repair":true,"tenantId":"` + tenant +
			`"}`, app.ExitYes, "were set to the log"},
		{"-o json", `{` + differ + `,"repaired":false}`, `{"tenantId":"` + tenant + `"}`, app.ExitNo, `"was": 950`},
		{"--repair --reason restored", `{` + differ + `,"repaired":true,` + gone + `}`, `{"reason":"restored","repair":true,"tenantId":"` +
			tenant + `"}`, app.ExitNo, "1 reservations differ from the log"},
		{"", `{"drift":[],"repaired":false,` + gone + `}`, `{"tenantId":"` + tenant + `"}`, app.ExitNo, "job-1"},
		{"", `{}`, `{"tenantId":"` + tenant + `"}`, app.ExitUnknown, "no comparison"},
	} {
		p := newAnsweringService(t, 200, c.answer)
		code, out, errs := newConsole(t, p).run(strings.Fields("entitlements reconcile --tenant " + tenant + " " + c.args)...)
		if code != c.code || len(p.requests) != 1 || p.requests[0] != "POST /api/v1/quota/accounts/reconcile "+c.request ||
			!strings.Contains(out+errs, c.says) {
			t.Errorf("%q: exit code %d, want %d\n%q\n%s%s", c.args, code, c.code, p.requests, out, errs)
		}
	}
	p := newAnsweringService(t, 200, "{}")
	if code, _, errs := newConsole(t, p).run("entitlements", "reconcile", "--tenant", tenant, "--repair"); code == app.ExitYes ||
		len(p.requests) > 0 || !strings.Contains(errs, "--reason") {
		t.Errorf("without a reason: exit code %d, %s", code, errs)
	}
}
