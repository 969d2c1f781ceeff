package node

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
)

// NewLogger returns the service's logger.
func NewLogger(to io.Writer, cfg config.Config) *slog.Logger {
	options := &slog.HandlerOptions{Level: cfg.LogLevel, ReplaceAttr: inWords}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(to, options))
	}
	return slog.New(slog.NewTextHandler(to, options))
}

// inWords reduces errors to their message: the text handler would also print the stack
// traces that some libraries attach.
func inWords(_ []string, a slog.Attr) slog.Attr {
	if err, ok := a.Value.Any().(error); ok {
		a.Value = slog.StringValue(fmt.Sprint(err)) // fmt survives an error that is a nil pointer
	}
	return a
}
