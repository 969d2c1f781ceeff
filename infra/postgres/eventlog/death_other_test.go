//go:build !linux

package eventlog

import "syscall"

func childAttributes() *syscall.SysProcAttr { return nil }
