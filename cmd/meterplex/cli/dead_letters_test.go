package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/cli/app"
)

// TestBulkNeedsConfirmation: a bulk command shows a dry run before it acts, and stops if
// there is no terminal to ask on.
func TestBulkNeedsConfirmation(t *testing.T) {
	var sent []string
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		dry := strings.Contains(string(body), `"dryRun":true`)
		sent = append(sent, map[bool]string{true: "dry", false: "real"}[dry]+
			r.Header.Get("Idempotency-Key")[:min(1, len(r.Header.Get("Idempotency-Key")))])
		refused := `"refused":[{"code":"dead_letter_not_retryable","count":1,"reason":"the dead letter is RESOLVED"}]`
		switch {
		case strings.Contains(string(body), "none"):
			_, _ = io.WriteString(w, `{"dryRun":true,"matched":1,"eligible":0,`+refused+`,"sample":[]}`)
		case dry:
			_, _ = io.WriteString(w, `{"dryRun":true,"matched":35,"eligible":34,`+refused+`,"sample":["x"]}`)
		default:
			w.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(w, `{"dryRun":false,"bulkId":"b1","matched":35,"requested":34,`+refused+`}`)
		}
	}))
	defer service.Close()
	c := newConsole(t, &fakeService{url: service.URL})
	for _, call := range []struct {
		args   string
		code   int
		sent   string
		stdout []string
	}{
		{"bulk retry --stage VALIDATION --reason r", app.ExitUnknown, "dry", nil},
		{"bulk retry --feature none --reason r", app.ExitNo, "dry", []string{"matched    1\n", "eligible   0\n"}},
		{"bulk retry --stage VALIDATION --reason r --dry-run", app.ExitYes, "dry", []string{"matched    35\n", "eligible   34\n",
			"dead_letter_not_retryable  the dead letter is RESOLVED"}},
		{"bulk retry --stage VALIDATION --reason r --yes", app.ExitYes, "real", []string{"bulkId     b1\n", "requested  34\n", "COUNT"}},
		{"bulk retry --stage VALIDATION --reason r --yes -o json", app.ExitYes, "real", []string{`"requested": 34`}},
		{"bulk delete --stage VALIDATION --reason r --yes", app.ExitUnknown, "", nil},
		{"bulk discard --stage VALIDATION --yes", app.ExitUnknown, "", nil},
	} {
		sent = nil
		code, out, errs := c.run(append([]string{"dead-letters"}, strings.Fields(call.args)...)...)
		got := strings.Join(sent, " ")
		if code != call.code || !strings.HasPrefix(got, call.sent) || len(sent) > 1 || call.sent == "" && got != "" {
			t.Errorf("%s: exit code %d, sent %q\n%s", call.args, code, sent, errs)
		}
		for _, want := range call.stdout {
			if !strings.Contains(strings.ToUpper(out), strings.ToUpper(want)) {
				t.Errorf("%s: %q is missing in\n%s", call.args, want, out)
			}
		}
	}
}
