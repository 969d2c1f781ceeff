package local

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

func childAttributes(user account, onParentDeath syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: onParentDeath, Credential: user.credential()}
}

// commandLine returns "" for a process that has ended and waits to be reaped.
func commandLine(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	return string(bytes.ReplaceAll(b, []byte{0}, []byte{' '}))
}
