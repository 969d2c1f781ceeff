package simulation

import (
	"runtime/debug"
	"testing"

	"github.com/google/uuid"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(1000) // simulations allocate much and keep little
	uuid.EnableRandPool()    // of messages, which no one compares
	goleak.VerifyTestMain(m)
}
