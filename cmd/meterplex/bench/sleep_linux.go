package bench

import (
	"syscall"
	"time"
)

// sleepUntil sleeps in the kernel: the runtime's own timers wait in whole
// milliseconds when nothing else is to be done, which is as long as what is
// measured.
func sleepUntil(at time.Time) {
	for left := time.Until(at); left > 0; left = time.Until(at) {
		spec := syscall.NsecToTimespec(left.Nanoseconds())
		_ = syscall.Nanosleep(&spec, nil) // cut short by a signal, it is called again
	}
}
