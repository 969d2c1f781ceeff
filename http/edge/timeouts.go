package edge

import "time"

// Connection timeouts, so that slow clients cannot hold a connection forever. The longest
// answer waits 30 s for a projection.
const (
	headerTime = 10 * time.Second
	readTime   = 60 * time.Second
	writeTime  = 90 * time.Second
)

// IdleTime is how long a connection without a request stays open, unless the server's setting says otherwise: longer than a load balancer
// keeps it (600 s), which would else send a request on a connection that is being closed.
const IdleTime = 620 * time.Second

// RequestTime is the timeout of a request, except streams. The longest wait for a projection is
// 30 s.
const RequestTime = 40 * time.Second
