package localtest

import (
	"flag"
	"strconv"
	"testing"
)

// FewChecks bounds the histories that rapid draws for a property which takes long for each; -rapid.checks sets
// another number. The short form draws a fifth, at least one, from a fixed seed: each run sees the same histories.
// The test must not be parallel.
func FewChecks(t *testing.T, n int) {
	if testing.Short() {
		n = max(n, 5) // rapid divides it by 5
		preset(t, "rapid.seed", "1")
	}
	preset(t, "rapid.checks", strconv.Itoa(n))
}

// preset sets a flag that is not given until the test ends.
func preset(t *testing.T, name, value string) {
	t.Helper()
	given := flag.Lookup(name)
	if was := given.Value.String(); was == given.DefValue {
		_ = given.Value.Set(value)
		t.Cleanup(func() { _ = given.Value.Set(was) })
	}
}
