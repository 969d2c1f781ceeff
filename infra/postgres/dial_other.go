//go:build !linux

package postgres

import (
	"context"
	"syscall"
)

// boundUnacknowledged leaves the bound to the system.
func boundUnacknowledged(context.Context, string, string, syscall.RawConn) error { return nil }
