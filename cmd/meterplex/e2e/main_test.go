// Package e2e tests the service from outside: its built binary as processes, a real PostgreSQL and
// a real Kafka, and clients that use only the HTTP API. A ledger records the clients' answers, and
// a checker that shares no code with the service compares it with the database and the topics.
//
// It must not call the service's packages. Tests of faults assert that the fault was reached.
// Environment variables: METERPLEX_TEST_SEED repeats a seed; -race or METERPLEX_TEST_RACE=1 builds
// the service with the race detector; METERPLEX_TEST_BINARY names a binary that is already built; METERPLEX_TEST_OUTAGE=60s sets the
// length of the broker's outage; METERPLEX_TEST_BROKERS=1 applies every fault to each of three
// brokers; METERPLEX_TEST_FAILOVERS=30 sets the number of failovers under load and tries every
// variant of a recovery; METERPLEX_TEST_OVERLOAD=10m sets the length of the overload;
// METERPLEX_TEST_PATIENCE=60s bounds every wait (5m), for a failure that is expected;
// METERPLEX_TEST_FRESH marks the process of a fresh machine.
package e2e

import (
	"flag"
	"os"
	"testing"

	"github.com/meterplex/meterplex/infra/local/localtest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	hideInFreshProcess()
	// Tests mostly wait for leases and sessions to end, so more of them run in parallel.
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("4")
	}
	localtest.Main(m, func() error { return os.RemoveAll(binaryDir()) }, localtest.NoLeaks())
}
