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

func TestRequestsOfPrices(t *testing.T) {
	file := filepath.Join(t.TempDir(), "price.json")
	must.OK(t, os.WriteFile(file, []byte(`{"name":"N"}`), 0o600))
	requireRequests(t, []sentRequest{
		{"prices put seat --name Seat --currency EUR --model per_unit --micro-units 0",
			`PUT /api/v1/prices/seat {"name":"Seat","currency":"EUR","model":"per_unit","microUnits":0}`},
		{"prices put p --name P --currency USD --model package --package-size 1000 --micro-units 5",
			`PUT /api/v1/prices/p {"name":"P","currency":"USD","model":"package","microUnits":5,"packageSize":1000}`},
		{"prices put p --name P --currency USD --model graduated --tier 1000=0 --tier rest=300,2000000",
			`PUT /api/v1/prices/p {"name":"P","currency":"USD","model":"graduated","tiers":[{"upTo":1000,"microUnits":0},{"microUnits":300,` +
				`"flatMicroUnits":2000000}]}`},
		{"prices put p --file " + file, `PUT /api/v1/prices/p {"name":"N"}`},
		{"prices list --limit 5", `GET /api/v1/prices?limit=5 `}, {"prices show a/b", `GET /api/v1/prices/a%2Fb `},
		{"plans put pro --name Pro --entitlement a=5,HARD,MONTHLY,enforce,price:p --entitlement b=unlimited,SOFT,NEVER,price:q",
			`PUT /api/v1/plans/pro {"name":"Pro","entitlements":[{"feature":"a","limit":5,"limitBehavior":"HARD","resetPeriod":"MONTHLY",` +
				`"onIngest":"enforce","price":"p"},` +
				`{"feature":"b","limitBehavior":"SOFT","resetPeriod":"NEVER","price":"q"}]}`},
	})
}

func TestBadTiersAndEntitlementsAreRefused(t *testing.T) {
	for flag, c := range map[string]struct{ args, bad string }{
		"tier":        {"prices put p --name P --currency EUR --model volume", " 5 x=5 5=x 5=1,x 5=1,2,3 5=0.5 rest= =5"},
		"entitlement": {"plans put p --name P", "a= a=1 a=1.5,HARD,MONTHLY a=9223372036854775808,a,b a=1,2,3,4,5"},
	} {
		for bad := range strings.SplitSeq(c.bad, " ") {
			code, _, errs := newConsole(t, newFakeService(t)).run(append(strings.Fields(c.args), "--"+flag, bad)...)
			if code != app.ExitUnknown || !strings.Contains(errs, flag) {
				t.Errorf("--%s %q: exit code %d: %s", flag, bad, code, errs)
			}
		}
	}
}

func TestPeriodsChargesPrintsLinesAndTotals(t *testing.T) {
	p := newFakeService(t)
	p.catalog["/api/v1/tenants/t1/periods/2026-05/charges"] = json.RawMessage(
		`{"tenantId":"t1","periodKey":"2026-05","state":"CLOSED","snapshot":1,"basis":"billable","data":[
{"feature":"a","status":"ACTIVE","from":"2026-05-01T00:00:00Z","to":null,"subscriptionId":"s1","amount":90071992547409930001,"price":{"key":"p","version":2,"model":"flat"},"currency":"EUR","microUnits":1500000,"decimal":"1.50"},
{"feature":"b","status":"BEFORE","subscriptionId":"s1","amount":1,"price":null,"currency":null,"microUnits":null,"decimal":null}],
"totals":[{"currency":"EUR","microUnits":1500000,"decimal":"1.50","lines":1}],"unpriced":1,"asOfPosition":"17-1","nextCursor":null}`)
	code, out, errs := newConsole(t, p).run("periods", "charges", "2026-05", "--tenant", "t1", "-o", "csv")
	if want := "feature,status,amount,price,version,currency,decimal,microUnits,from,to,subscriptionId\na,ACTIVE,90071992547409930001,p," +
		"2,EUR,1.50,1500000,2026-05-01T00:00:00Z,,s1\nb,BEFORE,1,,,,,,,,s1\n"; code != app.ExitYes || out != want {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	if errs != "Total by billable amounts: 1.50 EUR.\n1 line without a price.\n" {
		t.Error(errs)
	}
}

// The sums of all tenants are printed below the rows.
func TestPricesEvaluatePrintsTenantsAndTotals(t *testing.T) {
	cost := func(charged, evaluated, delta string) string {
		return `"charged":[` + charged + `],"evaluated":{"currency":"EUR","microUnits":1,"decimal":"` + evaluated + `"},"delta":` + delta
	}
	euros, dollars := `{"currency":"EUR","microUnits":1,"decimal":"1.00"}`, `{"currency":"USD","microUnits":1,"decimal":"3.00"}`
	for totals, want := range map[string]string{
		"null": "",
		`{"tenants":2,` + cost(euros, "2.50", `{"microUnits":1,"decimal":"1.50"}`) +
			`}`: "All tenants (2): charged 1.00 EUR, evaluated 2.50 EUR, difference 1.50.\n",
		`{"tenants":2,` + cost(euros+","+dollars, "2.50", "null") +
			`}`: "All tenants (2): charged 1.00 EUR, 3.00 USD, evaluated 2.50 EUR.\n",
		`{"tenants":0,` + cost("", "0.00", `{"microUnits":0,"decimal":"0.00"}`) +
			`}`: "All tenants (0): charged nothing, evaluated 0.00 EUR, difference 0.00.\n",
	} {
		p := newFakeService(t)
		p.catalog["POST /api/v1/prices/evaluate"] = json.RawMessage(`{"data":[{"tenantId":"t1","basis":"net","amount":7,` +
			cost(euros, "1.50", `{"microUnits":1,"decimal":"0.50"}`) +
			`},{"tenantId":"t2","basis":"billable","amount":1,` + cost(dollars, "1.00", "null") + `}],"totals":` + totals +
			`,"nextCursor":null}`)
		code, out, errs := newConsole(t, p).run("prices", "evaluate", "seat", "--period", "2026-05", "-o", "csv")
		if rows := "tenantId,basis,amount,charged,evaluated,delta\nt1,net,7,1.00 EUR,1.50 EUR,0.50\nt2,billable,1,3.00 USD," +
			"1.00 EUR,\n"; code != app.ExitYes || out != rows || errs != want {
			t.Errorf("exit code %d\n%s%s", code, out, errs)
		}
	}
}

// The price of a difference is beside its figures, and its sums are printed for each tenant.
func TestADifferenceIsPrintedWithItsPrice(t *testing.T) {
	p := newFakeService(t)
	money := func(live, rebuilt, delta string) string {
		of := func(d string) string { return `{"microUnits":1,"decimal":"` + d + `"}` }
		return `"currency":"EUR","live":` + of(live) + `,"rebuilt":` + of(rebuilt) + `,"delta":` + of(delta)
	}
	p.catalog["/api/v1/rebuilds/r1/diff"] = json.RawMessage(`{"projection":"usage_aggregates","data":[
{"tenantId":"t1","feature":"a","periodKey":"2026-05","subscriptionId":"s1","live":10,"rebuilt":7,"delta":-3,"eventCount":1,"charge":{"price":"p",` + money("1.00", "0.70", "-0.30") + `}},
{"tenantId":"t1","feature":"b","periodKey":"2026-05","subscriptionId":"s1","live":1,"rebuilt":2,"delta":1,"eventCount":1}],"nextCursor":null,
"totals":{"live":11,"rebuilt":9,"delta":-2,"keys":2,"differing":2,"charges":[{` + money("1.00", "0.70", "-0.30") +
		`,"keys":1}],"chargesByTenant":[{"tenantId":"t1",` + money("1.00", "1.70", "0.70") + `,"keys":1}],"unpriced":1}}`)
	code, out, errs := newConsole(t, p).run("projections", "diff", "r1", "--priced", "-o", "csv")
	if want := "tenantId,feature,periodKey,subscriptionId,live,rebuilt,delta,eventCount,adjustment,price,currency,liveCharge," +
		"rebuiltCharge,deltaCharge\n" +
		"t1,a,2026-05,s1,10,7,-3,1,,p,EUR,1.00,0.70,-0.30\nt1,b,2026-05,s1,1,2,1,1,,,,,,\n"; code != app.ExitYes || out != want {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	if !strings.HasSuffix(errs, "Their price in EUR goes from 1.00 to 0.70 (-0.30).\n  tenant t1: EUR goes from 1.00 to 1.70 "+
		"(+0.70).\n1 key without a price.\n") {
		t.Error(errs)
	}
}
