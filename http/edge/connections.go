package edge

import (
	"context"
	"net"
	"net/http"
)

// maxConnections is the maximum number of open client connections.
const maxConnections = 4096

// spareConnections are reserved above the clients' bound, so that health checks and
// metrics scrapes still reach a full service.
const spareConnections = 256

type spareKey struct{}

// connected counts a connection. Above the bound, the first request is answered with a
// refusal; above the spare connections, the connection is closed without an answer.
func (e *Edge) connected(ctx context.Context, c net.Conn) context.Context {
	n := e.connections.Add()
	switch {
	case n > e.maxConnections+spareConnections:
		_ = c.Close()
	case n > e.maxConnections:
		return context.WithValue(ctx, spareKey{}, true)
	}
	return ctx
}

func (e *Edge) connection(_ net.Conn, state http.ConnState) {
	if state == http.StateClosed || state == http.StateHijacked {
		e.connections.Leave()
	}
}
