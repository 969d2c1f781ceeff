package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

func TestOutboxIsPrintedByPartition(t *testing.T) {
	const whole = `{"totals":{"lagEvents":1200,"unpublished":7,"oldestUnpublishedAt":null,"oldestUnpublishedSeconds":3.25,"unleased":1,` +
		`"failing":2},` +
		`"partitions":[{"partition":17,"head":"17-40","cursor":"17-30","lagEvents":10,"owner":null,"leased":false,"attempts":4,` +
		`"lastError":"no broker answers"}]}`
	p := newFakeService(t)
	p.catalog["/api/v1/outbox"] = json.RawMessage(whole)
	code, out, errs := newConsole(t, p).run("outbox")
	if code != app.ExitYes || !strings.Contains(out, "17-30") || !strings.Contains(out, "no broker answers") ||
		strings.Contains(out, "1200") {
		t.Errorf("a table: exit code %d\n%s%s", code, out, errs)
	}
	if want := "1200 events to publish, 7 of them never published, the oldest for 3.25s; 1 partitions without a lease," +
		" 2 failing."; !strings.Contains(errs, want) {
		t.Errorf("the totals: %s", errs)
	}
	for format, want := range map[string]string{"json": `"unpublished"`, "ndjson": `"unpublished"`, "csv": "17,17-40,17-30,10,"} {
		if code, out, errs := newConsole(t, p).run("outbox", "-o", format); code != app.ExitYes || !strings.Contains(out, want) {
			t.Errorf("%s: exit code %d\n%s%s", format, code, out, errs)
		}
	}
}
