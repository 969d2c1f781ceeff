package postgres

import (
	"context"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// boundUnacknowledged sets how long sent bytes may remain without an acknowledgement.
func boundUnacknowledged(_ context.Context, network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(lostAfter.Milliseconds()))
	})
	if err != nil {
		return err
	}
	return failed
}
