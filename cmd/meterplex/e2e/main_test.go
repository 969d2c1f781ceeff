// Package e2e tests the service from outside: its built binary as processes, a
// real PostgreSQL and a real Kafka, and clients that know nothing but the HTTP
// API. What the clients were told is kept in a ledger, and a checker written
// apart from the service's code compares it with the database and the topics.
//
// It may not call the service's packages. Tests of faults assert that the fault
// was reached. METERPLEX_TEST_SEED repeats a seed, -race (or METERPLEX_TEST_RACE=1)
// builds the service with the race detector, METERPLEX_TEST_OVERLAY with what a
// planted bug changes, METERPLEX_TEST_BINARY names one that is built already,
// METERPLEX_TEST_OUTAGE=60s says how long the broker is away,
// METERPLEX_TEST_BROKERS=1 that each of three brokers has its turn at every fault,
// METERPLEX_TEST_OVERLOAD=10m how long more is sent than can be taken,
// METERPLEX_TEST_VERIFY=1 has meterplex verify look at every test's end, too;
// METERPLEX_TEST_FRESH is for the process of TestAFreshMachine.
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
	// Tests wait for leases and sessions to end far more than they compute.
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("4")
	}
	localtest.Main(m, func() error { return os.RemoveAll(binaryDir()) }, localtest.NoLeaks())
}
