package postgres

import (
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// A connection to a server that has vanished without a word, e.g. a host without power, ends after lostAfter. By the system's defaults a
// statement would wait for its answer for 15 minutes, and the driver's keepalives would begin after 5.
const (
	lostAfter      = 10 * time.Second // without an acknowledgement of sent bytes, or of keepalives
	keepaliveAfter = 5 * time.Second  // of silence
	keepaliveEvery = 2 * time.Second
)

// noticeLoss lets connections end whose server has vanished.
func noticeLoss(cc *pgconn.Config) {
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepaliveAfter, Interval: keepaliveEvery,
			Count: int((lostAfter - keepaliveAfter) / keepaliveEvery)},
		ControlContext: boundUnacknowledged,
	}
	cc.DialFunc = d.DialContext
}
