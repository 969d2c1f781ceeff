package eventlog

import "syscall"

// childAttributes let no child outlive a test binary that was killed, stopped or not.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
