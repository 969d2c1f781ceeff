package edge

import (
	"log/slog"
	"net/http"
)

// maxHeader bounds the header of a request, in bytes.
const maxHeader = 32 << 10

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
		IdleTimeout:       IdleTime,
		MaxHeaderBytes:    maxHeader,
		// OPTIONS * is handled like any unknown route, with the common headers.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(logs, slog.LevelDebug),
	}
	if e, ok := handler.(*handled); ok {
		server.ConnContext, server.ConnState, server.IdleTimeout = e.connections.connected, e.connections.changed, e.idle
		server.RegisterOnShutdown(func() { e.left.Do(func() { close(e.leaving) }) })
	}
	return server
}
