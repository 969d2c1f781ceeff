package main

import (
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(1000) // simulations allocate much and keep little
	goleak.VerifyTestMain(m)
}
