package localtest

import (
	"flag"
	"strconv"
	"testing"
)

// FewChecks bounds the histories that rapid draws for a property which takes long for each; -rapid.checks sets
// another number. The test must not be parallel.
func FewChecks(t *testing.T, n int) {
	checks := flag.Lookup("rapid.checks")
	if was := checks.Value.String(); was == checks.DefValue {
		_ = checks.Value.Set(strconv.Itoa(n))
		t.Cleanup(func() { _ = checks.Value.Set(was) })
	}
}
