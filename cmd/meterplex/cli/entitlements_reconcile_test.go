package cli

import (
	"strings"
	"testing"
)

func TestAccountsThatDifferAreShownAndRepaired(t *testing.T) {
	const tenant = "0196c0de-0000-7000-8000-000000000001"
	const differ = `"drift":[{"feature":"tokens","periodKey":"2026-11","used":{"was":950,"is":953},"held":{"was":40,"is":40}}]`
	const gone = `"reservations":[{"reservationId":"job-1","feature":"tokens","was":null,"is":{"state":"HELD","periodKey":"2026-11","amount":40,"expiresAt":"2026-11-04T12:00:00Z"}}]`
	for _, c := range []struct {
		args, answer, request string
		code                  int
		says                  string
	}{
		{"", `{"tenantId":"` + tenant + `","drift":[],"repaired":false,"headPosition":"17-9"}`, `{"tenantId":"` + tenant + `"}`, exitYes, "All accounts and reservations equal the log."},
		{"", `{` + differ + `,"repaired":false}`, `{"tenantId":"` + tenant + `"}`, exitNo, "1 accounts differ from the log"},
		{"--repair --reason restored", `{` + differ + `,"repaired":true}`, `{"reason":"restored","repair":true,"tenantId":"` + tenant + `"}`, exitYes, "were set to the log"},
		{"-o json", `{` + differ + `,"repaired":false}`, `{"tenantId":"` + tenant + `"}`, exitNo, `"was": 950`},
		{"--repair --reason restored", `{` + differ + `,"repaired":true,` + gone + `}`, `{"reason":"restored","repair":true,"tenantId":"` + tenant + `"}`, exitNo, "1 reservations differ from the log"},
		{"", `{"drift":[],"repaired":false,` + gone + `}`, `{"tenantId":"` + tenant + `"}`, exitNo, "job-1"},
		{"", `{}`, `{"tenantId":"` + tenant + `"}`, exitUnknown, "no comparison"},
	} {
		p := newAnsweringService(t, 200, c.answer)
		code, out, errs := newConsole(t, p).run(strings.Fields("entitlements reconcile --tenant " + tenant + " " + c.args)...)
		if code != c.code || len(p.requests) != 1 || p.requests[0] != "POST /api/v1/quota/accounts/reconcile "+c.request || !strings.Contains(out+errs, c.says) {
			t.Errorf("%q: exit code %d, want %d\n%q\n%s%s", c.args, code, c.code, p.requests, out, errs)
		}
	}
	p := newAnsweringService(t, 200, "{}")
	if code, _, errs := newConsole(t, p).run("entitlements", "reconcile", "--tenant", tenant, "--repair"); code == exitYes || len(p.requests) > 0 || !strings.Contains(errs, "--reason") {
		t.Errorf("without a reason: exit code %d, %s", code, errs)
	}
}
