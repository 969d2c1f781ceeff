//go:build !linux

package e2e

import (
	"context"
	"errors"
	"syscall"

	"github.com/meterplex/meterplex/infra/local"
)

func aside() *syscall.SysProcAttr { return childAttributes() }

// hidePostgres cannot hide anything here.
func hidePostgres() error {
	if len(local.InstalledPostgres(context.Background())) > 0 {
		return errors.New("programs can be hidden on Linux only")
	}
	return nil
}
