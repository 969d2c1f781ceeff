package child

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

func childAttributes(user *syscall.Credential, onParentDeath syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: onParentDeath, Credential: user}
}

// CommandLine returns the command line of a process: "" if the process has ended and waits to be reaped.
func CommandLine(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	return string(bytes.ReplaceAll(b, []byte{0}, []byte{' '}))
}
