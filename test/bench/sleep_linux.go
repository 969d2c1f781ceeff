package main

import (
	"syscall"
	"time"
)

// sleepUntil sleeps in the kernel: if no other goroutine runs, the timers of the Go runtime wait in
// whole milliseconds, which is as long as the measured times.
func sleepUntil(at time.Time) {
	for left := time.Until(at); left > 0; left = time.Until(at) {
		spec := syscall.NsecToTimespec(left.Nanoseconds())
		_ = syscall.Nanosleep(&spec, nil) // after a signal the loop calls it again
	}
}
