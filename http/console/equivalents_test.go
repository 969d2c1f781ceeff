package console

import (
	"net/http/httptest"
	"net/url"
	"testing"
)

// A value that begins with a hyphen is no flag of the command that a page shows.
func TestValuesWithAHyphenAreNoFlags(t *testing.T) {
	for command, want := range map[string]string{
		"meterplex usage receipt[ --tenant {tenantId}] {eventId}":       "meterplex usage receipt --tenant t -- -ojson",
		"meterplex tenants list[ --external-id {externalId}][ --q {q}]": "meterplex tenants list --external-id=-7 --q='-a b'",
		"meterplex usage series --feature {feature}":                    "meterplex usage series --feature calls",
		"meterplex usage receipt {absent}":                              "",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.SetPathValue("eventId", "-ojson")
		v := &Visit{r: r, Query: url.Values{"tenantId": {"t"}, "externalId": {"-7"}, "q": {"-a b"}, "feature": {"calls"}},
			visitor: &visitor{}}
		if got, ok := v.fill(command); ok != (want != "") || ok && got != want {
			t.Errorf("%s: %s", command, got)
		}
	}
}
