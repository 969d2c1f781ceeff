package node

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/cmd/meterplex/config"
)

// withStack is an error with a stack trace, as some libraries return.
type withStack struct{ error }

func (w withStack) Format(f fmt.State, _ rune) {
	fmt.Fprint(f, w.Error())
	if f.Flag('+') {
		fmt.Fprint(f, "\nmain.go:7")
	}
}

// panickingError is an error whose Error panics on a nil receiver.
type panickingError struct{ name string }

func (n *panickingError) Error() string { return n.name }

// TestLogsContainNoStackTraces: neither log format contains an error's stack trace.
func TestLogsContainNoStackTraces(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var log bytes.Buffer
		NewLogger(&log, config.Config{LogFormat: format}).Warn("no", "error", fmt.Errorf("read: %w", withStack{errors.New("gone")}), "cause", withStack{errors.New("away")})
		NewLogger(&log, config.Config{LogFormat: format}).Warn("a nil pointer", "error", (*net.OpError)(nil), "cause", (*panickingError)(nil))
		if got := log.String(); strings.Contains(got, "main.go") || !strings.Contains(got, "read: gone") || !strings.Contains(got, "away") {
			t.Errorf("%s: %s", format, got)
		}
	}
}
