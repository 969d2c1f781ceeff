package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

// TestCorrectionsAreSentAsEvents: with the members that the service takes, and no others; a refusal is exit code 1.
func TestCorrectionsAreSentAsEvents(t *testing.T) {
	var body string
	verdict := `{"index":0,"eventId":"fix","status":"accepted","position":"3-7"}`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		body = string(raw)
		w.WriteHeader(http.StatusAccepted)
		_, _ = fmt.Fprintf(w, `{"accepted":1,"duplicates":0,"conflicts":0,"rejected":0,"events":[%s]}`, verdict)
	}))
	defer s.Close()
	c := newConsole(t, &fakeService{url: s.URL})
	const at = " --event-id fix --timestamp 2026-05-04T12:00:00Z -o json"
	const sent = `{"events":[{"eventId":"fix","feature":"api_calls",%s"timestamp":"2026-05-04T12:00:00Z",%s"correctionRef":"evt_1"}]}`
	for args, want := range map[string]string{
		"usage correct evt_1 --feature api_calls --amount 7" + at: fmt.Sprintf(sent, `"amount":7,`,
			`"type":"correction",`),
		"usage correct evt_1 --feature api_calls --amount 0 --metadata by=support" + at: fmt.Sprintf(sent, `"amount":0,`,
			`"metadata":{"by":"support"},"type":"correction",`),
		"usage retract evt_1 --feature api_calls" + at: fmt.Sprintf(sent, ``, `"type":"retraction",`),
	} {
		code, out, errs := c.run(strings.Fields(args)...)
		if code != app.ExitYes || body != want || !json.Valid([]byte(out)) || !strings.Contains(out, "3-7") {
			t.Errorf("%s: exit code %d, sent\n%s\ninstead of\n%s\n%s%s", args, code, body, want, out, errs)
		}
	}
	verdict = `{"index":0,"eventId":"fix","status":"rejected","code":"correction_target_retracted","reason":"it is retracted",` +
		`"pointer":"/events/0/correctionRef"}`
	code, _, errs := c.run(strings.Fields("usage retract evt_1 --feature api_calls" + at)...)
	if code != app.ExitNo || !strings.Contains(errs, "correction_target_retracted (1): Send new usage with an eventId of its own") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
	body = ""
	for _, args := range []string{"usage correct evt_1 --feature api_calls", "usage correct evt_1 --amount 1",
		"usage retract --feature api_calls", "usage retract evt_1 --feature api_calls --amount 1"} {
		if code, _, errs := c.run(strings.Fields(args)...); code != app.ExitUnknown || body != "" {
			t.Errorf("%s: exit code %d, sent %s\n%s", args, code, body, errs)
		}
	}
}
