package cli

import (
	"strings"
	"testing"
)

func TestRequestsOfThresholds(t *testing.T) {
	requireRequests(t, []sentRequest{
		{"thresholds create --tenant t1 --feature api_calls --percent 80", `POST /api/v1/tenants/t1/thresholds {"feature":"api_calls","percent":80}`},
		{"thresholds create --tenant t1 --amount 1000000", `POST /api/v1/tenants/t1/thresholds {"amount":1000000}`},
		{"thresholds list --tenant t1 --limit 5", `GET /api/v1/tenants/t1/thresholds?limit=5 `},
		{"thresholds show x1 --tenant t1", `GET /api/v1/tenants/t1/thresholds/x1 `},
		{"thresholds remove x1 --tenant t1", `DELETE /api/v1/tenants/t1/thresholds/x1 `},
	})
}

func TestThresholdsNeedOneValue(t *testing.T) {
	for _, args := range []string{"thresholds create --tenant t1", "thresholds create --tenant t1 --percent 80 --amount 5", "thresholds create --percent 80"} {
		p := newFakeService(t)
		if code, _, errs := newConsole(t, p).run(strings.Fields(args)...); code == 0 || len(p.requests) != 0 || errs == "" {
			t.Errorf("%s: exit code %d, %q, %s", args, code, p.requests, errs)
		}
	}
}
