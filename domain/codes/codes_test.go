package codes_test

import (
	"flag"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/domain/codes"
	"github.com/meterplex/meterplex/internal/must"
)

var update = flag.Bool("update", false, "write docs/reference/errors.md from the table")

var snakeCase = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)

func TestEachEntryIsComplete(t *testing.T) {
	last := ""
	for _, c := range codes.All() {
		if !snakeCase.MatchString(c.Name) || c.Name <= last {
			t.Errorf("%q after %q: names are in snake case, in order, and unique", c.Name, last)
		}
		last = c.Name
		for what, text := range map[string]string{"meaning": c.Meaning, "remedy": c.Remedy} {
			if text == "" || strings.HasSuffix(text, ".") || strings.ContainsAny(text, "\n|") || len(text) > 200 {
				t.Errorf("%s: the %s %q is no sentence without its full stop", c.Name, what, text)
			}
		}
		if c.AnsweredIn == 0 || (c.Status != 0) != (c.AnsweredIn&codes.Request != 0) {
			t.Errorf("%s: status %d, answered in %s", c.Name, c.Status, c.AnsweredIn)
		}
		if c.Status != 0 && (c.Status < 400 || http.StatusText(c.Status) == "") {
			t.Errorf("%s: status %d", c.Name, c.Status)
		}
	}
}

// TestARetryIsAdvisedAlike: clients without the table decide by the status alone.
func TestARetryIsAdvisedAlike(t *testing.T) {
	for _, c := range codes.All() {
		later := c.Status == http.StatusTooManyRequests || c.Status == http.StatusServiceUnavailable
		if later != (c.After > 0) || later && !c.Retry {
			t.Errorf("%s: %d with Retry-After %d, retry %v", c.Name, c.Status, c.After, c.Retry)
		}
		if strings.HasSuffix(c.Name, "_not_found") != (c.Status == http.StatusNotFound) && c.Name != "not_found" {
			t.Errorf("%s: %d", c.Name, c.Status)
		}
	}
}

// TestTheDocumentHoldsTheTable: docs/reference/errors.md is written by go test ./domain/codes -update.
func TestTheDocumentHoldsTheTable(t *testing.T) {
	const file = "../../docs/reference/errors.md"
	var b strings.Builder
	b.WriteString(head)
	for _, c := range codes.All() {
		status, retry := c.Cells()
		b.WriteString("| `" + c.Name + "` | " + status + " | " + c.AnsweredIn.String() + " | " + retry + " | " + c.Meaning + " | " + c.Remedy +
			" |\n")
	}
	if *update {
		must.OK(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != b.String() {
		t.Errorf("docs/reference/errors.md differs from the table (%v): run go test ./domain/codes -update", err)
	}
}

const head = `# Codes
Every code that the service answers, generated from the table in domain/codes (` + "`make generate`" +
	`). Clients branch on codes, never on texts: a
code keeps its meaning, and later releases may add codes. The same table is at ` + "`/docs#problems`" + ` of each instance, where the ` +
	"`type`" + ` of a problem leads.

| column | content |
|---|---|
| status | the HTTP status of a request that is refused with the code; – if no request is. A single CloudEvent that is refused with a code of 400 is answered 422 |
| answered in | *request*: ` + "`code` and `errors`" + ` of a problem. *event*: an event of the 202 of ` + "`POST /usage/events`" +
	`; the other events of the batch are not affected. *dead letter*: a dead letter, and the receipt of its event. *item*: ` + "`errors`" +
	` of a problem, an entry of a bulk answer, or the failure of a rebuild |
| retry | whether the same request or event can succeed later. Every 429 and 503 has ` + "`Retry-After`" + ` |

| code | status | answered in | retry | meaning | remedy |
|---|---|---|---|---|---|
`
