package edge

import "time"

// Connection timeouts, so that slow clients cannot hold a connection forever. The longest
// answer waits 30 s for a projection.
const (
	headerTime = 10 * time.Second
	readTime   = 60 * time.Second
	writeTime  = 90 * time.Second
	idleTime   = 120 * time.Second
)

// RequestTime is the timeout of a request, except streams. The longest wait for a projection is
// 30 s.
const RequestTime = 40 * time.Second
