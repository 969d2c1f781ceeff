package repair

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/http/console"
	"github.com/meterplex/meterplex/internal/must"
)

// The member that the code or the reason names is marked, also within the data of a CloudEvent, and no other one.
func TestTheMemberAtFaultIsMarked(t *testing.T) {
	for _, c := range []struct{ code, reason, payload, name, marked string }{
		{"feature_not_found", `Feature "gone" not found`, `{"feature":"gone","amount":1,"metadata":{"feature":"x"}}`, "feature",
			`"feature": "gone"`},
		{"amount_invalid", "amount must be an integer", `{"id":"1","data":{"amount":1.5,"feature":"f"}}`, "amount", `"amount": 1.5`},
		{"metadata_too_large", "too large", `{"metadata":{"a":{"b":"<c>"}}}`, "metadata",
			"\"metadata\": {\n    \"a\": {\n      \"b\": \"<c>\"\n    }\n  }"},
		{"cloudevent_invalid", `the attribute "source" must be a URI reference`, `{"source":" ","specversion":"1.0"}`, "source",
			`"source": " "`},
		{"timestamp_invalid", "timestamp is missing", `{"amount":1}`, "timestamp", ""},
		{"payload_conflict", `"amount" differs`, `{"amount":1}`, "", ""},
		{"fold_failed", "the fold failed", `"text"`, "", ""},
	} {
		d, err := console.Decode(strings.NewReader(`{"payload":` + c.payload + `}`))
		must.OK(t, err)
		d["code"], d["reason"] = c.code, c.reason
		f := faultOf(d)
		whole, marked := "", ""
		for _, s := range f.sample() {
			if whole += s.Text; s.Marked {
				marked += s.Text
			}
		}
		if f.name != c.name || marked != c.marked || !json.Valid([]byte(whole)) {
			t.Errorf("%s: %q is marked as %q in %s", c.code, marked, f.name, whole)
		}
	}
	long := fault{payload: strings.Repeat("é", maxSample)}
	if s := long.sample(); len(s) != 1 || len(s[0].Text) > maxSample+200 || !strings.Contains(s[0].Text, "the payload is longer") {
		t.Errorf("a long payload has %d bytes", len(s[0].Text))
	}
}
