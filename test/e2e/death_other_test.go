//go:build !linux

package e2e

import "syscall"

func childAttributes() *syscall.SysProcAttr { return nil }
