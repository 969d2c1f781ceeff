package e2e

import "syscall"

// childAttributes make the kernel kill an instance when the test binary dies.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
