//go:build !linux

package postgres

import "syscall"

func childAttributes() *syscall.SysProcAttr { return nil }
