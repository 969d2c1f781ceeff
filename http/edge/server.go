package edge

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Connection timeouts, so that slow clients cannot hold a connection forever. The longest
// answer waits 30 s for a projection.
const (
	headerTime = 10 * time.Second
	readTime   = 60 * time.Second
	writeTime  = 90 * time.Second
	idleTime   = 120 * time.Second
	maxHeader  = 32 << 10
)

// NewServer binds a handler to an address, with connection limits. Connection errors are
// logged to the log of the handler's edge.
func NewServer(addr string, handler http.Handler) *http.Server {
	logs := slog.DiscardHandler
	if e, ok := handler.(*handled); ok {
		logs = e.log.Handler()
	}
	server := &http.Server{
		Addr:              addr,
		Handler:           handler,
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       readTime,
		WriteTimeout:      writeTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		// OPTIONS * is handled like any unknown route, with the common headers.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(logs, slog.LevelDebug),
	}
	if e, ok := handler.(*handled); ok {
		server.ConnContext, server.ConnState = e.connected, e.connection
		server.RegisterOnShutdown(func() { e.left.Do(func() { close(e.leaving) }) })
	}
	return server
}

// spareConnections are reserved above the clients' bound, so that health checks and
// metrics scrapes still reach a full service.
const spareConnections = 256

type spareKey struct{}

// connected counts a connection. Above the bound, the first request is answered with a
// refusal; above the spare connections, the connection is closed without an answer.
func (e *Edge) connected(ctx context.Context, c net.Conn) context.Context {
	n := e.connections.Add()
	switch {
	case n > e.limits.Connections+spareConnections:
		_ = c.Close()
	case n > e.limits.Connections:
		return context.WithValue(ctx, spareKey{}, true)
	}
	return ctx
}

func (e *Edge) connection(_ net.Conn, state http.ConnState) {
	if state == http.StateClosed || state == http.StateHijacked {
		e.connections.Leave()
	}
}
