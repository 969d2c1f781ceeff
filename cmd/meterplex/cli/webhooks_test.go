package cli

import (
	"strings"
	"testing"
)

func TestRequestsOfWebhooks(t *testing.T) {
	requireRequests(t, []sentRequest{
		{"webhooks create https://example.com/x --tenant t1 --event period.closed,push.failed", `POST /api/v1/tenants/t1/webhooks {"events":["period.closed","push.failed"],"url":"https://example.com/x"}`},
		{"webhooks list --tenant t1 --limit 5", `GET /api/v1/tenants/t1/webhooks?limit=5 `},
		{"webhooks show w1 --tenant t1", `GET /api/v1/tenants/t1/webhooks/w1 `},
		{"webhooks update w1 --tenant t1 --send-to https://example.com/y --event push.failed --status DISABLED", `PATCH /api/v1/tenants/t1/webhooks/w1 {"events":["push.failed"],"status":"DISABLED","url":"https://example.com/y"}`},
		{"webhooks remove w1 --tenant t1", `DELETE /api/v1/tenants/t1/webhooks/w1 `},
		{"webhooks rotate w1 --tenant t1 --overlap 1h", `POST /api/v1/tenants/t1/webhooks/w1/rotate {"overlapSeconds":3600}`},
		{"webhooks test w1 --tenant t1", `POST /api/v1/tenants/t1/webhooks/w1/test `},
		{"webhooks deliveries w1 --tenant t1 --state FAILED --limit 5", `GET /api/v1/tenants/t1/webhooks/w1/deliveries?limit=5&state=FAILED `},
		{"webhooks replay d1", `POST /api/v1/deliveries/d1/replay `},
		{"webhooks replay w1 --tenant t1 --from 2026-05-01T00:00:00Z --to 2026-06-01T00:00:00Z", `POST /api/v1/tenants/t1/webhooks/w1/replay {"from":"2026-05-01T00:00:00Z","to":"2026-06-01T00:00:00Z"}`},
	})
}

func TestWebhooksNeedWholeRequests(t *testing.T) {
	for _, args := range []string{"webhooks update w1 --tenant t1", "webhooks rotate w1 --tenant t1 --overlap 1500ms", "webhooks replay w1 --tenant t1", "webhooks replay w1 --from 2026-05-01T00:00:00Z"} {
		p := newFakeService(t)
		if code, _, errs := newConsole(t, p).run(strings.Fields(args)...); code != exitUnknown || len(p.requests) != 0 || errs == "" {
			t.Errorf("%s: exit code %d, %q, %s", args, code, p.requests, errs)
		}
	}
}
