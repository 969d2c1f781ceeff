// Package e2e tests the service from outside: its built binary as processes, a real PostgreSQL and
// a real Kafka, and clients that use only the HTTP API. A ledger records the clients' answers; at the end a test compares it with
// the log, and proves by package verify, which shares no code with the service, that log, tables and topics agree.
//
// It must not call the service's packages. Tests of faults assert that the fault was reached.
// METERPLEX_TEST_SEED repeats a seed; -race builds the service with the race detector, too.
package e2e

import (
	"flag"
	"os"
	"testing"

	"github.com/meterplex/meterplex/internal/localtest"
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
