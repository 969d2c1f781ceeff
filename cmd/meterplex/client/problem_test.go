package client

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/domain/codes"
)

func problemOf(status int, code string) *Problem {
	return ReadProblem(&http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/problem+json"}}},
		fmt.Appendf(nil, `{"code":%q,"detail":"the fault"}`, code))
}

// TestEachProblemHasItsRemedyAsAHint: the remedy is that of the service's own table.
func TestEachProblemHasItsRemedyAsAHint(t *testing.T) {
	for _, c := range codes.All() {
		if got, want := problemOf(c.Status, c.Name).Error(), c.Name+": the fault\n  hint: "+c.Remedy; got != want {
			t.Errorf("%q instead of %q", got, want)
		}
	}
	if got := problemOf(418, "of_a_later_release").Error(); strings.Contains(got, "hint") {
		t.Errorf("a code that is not known has a hint: %q", got)
	}
}

// The client repeats requests that a busy service refuses, and those whose body came too slowly. The table advises a retry of other codes
// only after an action of a person.
func TestTheClientRetriesBusyServices(t *testing.T) {
	for _, c := range codes.All() {
		want := c.After > 0 || c.Name == "request_timeout"
		if p := problemOf(c.Status, c.Name); passing(p) != want {
			t.Errorf("%s: retried %v, Retry-After %d", c.Name, passing(p), c.After)
		}
	}
}
