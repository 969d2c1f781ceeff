//go:build !linux

package e2e

import (
	"context"
	"errors"
	"syscall"

	"github.com/meterplex/meterplex/infra/local"
)

func ownMounts() *syscall.SysProcAttr { return childAttributes() }

// hidePostgres returns an error if a PostgreSQL is installed: only Linux can hide it.
func hidePostgres() error {
	if len(local.InstalledPostgres(context.Background())) > 0 {
		return errors.New("programs can be hidden on Linux only")
	}
	return nil
}
