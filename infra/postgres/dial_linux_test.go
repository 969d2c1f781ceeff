package postgres

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/meterplex/meterplex/internal/must"
)

// A connection ends if its server vanishes: the system bounds sent bytes, and keepalives, without an acknowledgement.
func TestP11_ConnectionsToAVanishedServerEnd(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer listener.Close()
	pool, err := PoolConfig(Config{URL: "postgres://nobody@" + listener.Addr().String() + "/none"})
	must.OK(t, err)
	conn, err := pool.ConnConfig.DialFunc(t.Context(), "tcp", listener.Addr().String())
	must.OK(t, err)
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	must.OK(t, err)
	for name, c := range map[string]struct{ level, option, want int }{
		"TCP_USER_TIMEOUT": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 10_000},
		"SO_KEEPALIVE":     {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		"TCP_KEEPIDLE":     {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 5},
		"TCP_KEEPINTVL":    {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 2},
		"TCP_KEEPCNT":      {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 2},
	} {
		if err := raw.Control(func(fd uintptr) {
			if got, err := unix.GetsockoptInt(int(fd), c.level, c.option); err != nil || got != c.want {
				t.Errorf("%s is %d, want %d: %v", name, got, c.want, err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
}
