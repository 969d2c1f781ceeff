package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
	"github.com/meterplex/meterplex/domain/intake"
	"github.com/meterplex/meterplex/internal/must"
)

// TestExportedUsageCanBeSent: each line is an event in the form of ingest, in the order of the log, of one tenant.
func TestExportedUsageCanBeSent(t *testing.T) {
	p := newFakeLogService(t, 0)
	sent := []string{
		`{"eventId":"a","feature":"calls","amount":5,"timestamp":"2026-05-01T00:00:00Z","metadata":{"n":0.5},"source":"/gateway","type":"usage"}`,
		`{"eventId":"b","feature":"calls","amount":7,"timestamp":"2026-05-01T00:00:01Z","type":"usage"}`,
		`{"eventId":"c","feature":"calls","amount":0,"timestamp":"2026-05-01T00:00:02Z","type":"correction","correctionRef":"a"}`,
		`{"eventId":"d","feature":"calls","timestamp":"2026-05-01T00:00:03Z","type":"retraction","correctionRef":"b"}`,
	}
	add := func(kind, tenant, payload string) {
		p.log = append(p.log,
			fmt.Sprintf(`{"position":"1-%d","eventType":"meterplex.usage.event.%s","eventVersion":1,"tenantId":%q,"payload":%s}`,
				len(p.log)+1, kind, tenant, payload))
	}
	add("recorded", "t1", sent[0])
	add("validated", "t1", `{"rawPosition":1}`)
	add("admitted", "t1", strings.TrimSuffix(sent[1], "}")+`,"admitted":{"by":"consume"}}`)
	add("corrected", "t1", sent[2])
	add("retracted", "t1", sent[3])
	code, out, errs := newConsole(t, p.fakeService).run("usage", "export")
	if want := strings.Join(sent, "\n") + "\n"; code != app.ExitYes || out != want {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	items, err := intake.DecodeBatch([]byte(`{"events":[` + strings.Join(sent, ",") + `]}`))
	must.OK(t, err)
	for _, item := range items {
		if item.Err != nil {
			t.Errorf("%s: %v", item.EventID, item.Err)
		}
	}
	add("recorded", "t2", sent[0])
	if code, _, errs := newConsole(t, p.fakeService).run("usage", "export"); code != app.ExitUnknown ||
		!strings.Contains(errs, "--tenant") {
		t.Errorf("two tenants: exit code %d\n%s", code, errs)
	}
}
