// Package tier chooses how much of a test runs. `make test` passes -short: each test in its short form. `make test-all` runs the full form.
// It is for tests only, and imports no other package of the service.
package tier

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// AtSize skips a test whose bug only shows with a large log, many histories, a long wait or other servers, in the short form.
func AtSize(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("make test-all runs this test")
	}
}

// Draws returns how many histories, rows or rounds a test draws.
func Draws(t testing.TB, short, full int) int {
	t.Helper()
	if testing.Short() {
		return short
	}
	return full
}

// Duration returns how long a test applies load. METERPLEX_TEST_DURATION, e.g. 20m, replaces both values.
func Duration(t testing.TB, short, full time.Duration) time.Duration {
	t.Helper()
	if text := os.Getenv("METERPLEX_TEST_DURATION"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			t.Fatalf("METERPLEX_TEST_DURATION is %q: expected a duration, e.g. 20m", text)
		}
		return d
	}
	if testing.Short() {
		return short
	}
	return full
}

// Seeds returns the seeds from which a test draws: 1 to short in the short form, so that each run sees the same histories, and full random
// ones otherwise. METERPLEX_TEST_SEED replaces them by one. The test reports the seed of a failure.
func Seeds(t testing.TB, short, full int) []uint64 {
	t.Helper()
	if seed, found := given(t); found {
		return []uint64{seed}
	}
	seeds := make([]uint64, 0, Draws(t, short, full))
	for i := range cap(seeds) {
		if testing.Short() {
			seeds = append(seeds, uint64(i)+1)
		} else {
			seeds = append(seeds, rand.Uint64())
		}
	}
	return seeds
}

// Seed returns a test's one seed and logs it: METERPLEX_TEST_SEED, else 1 in the short form, else a random one.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := Seeds(t, 1, 1)[0]
	t.Logf("METERPLEX_TEST_SEED=%d", seed)
	return seed
}

func given(t testing.TB) (uint64, bool) {
	t.Helper()
	text := os.Getenv("METERPLEX_TEST_SEED")
	if text == "" {
		return 0, false
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("METERPLEX_TEST_SEED is %q: expected a number from 0 to 2^64-1", text)
	}
	return seed, true
}
