package e2e

import "syscall"

// childAttributes let no instance outlive a test binary that was killed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
