//go:build !linux

package child

import (
	"os/exec"
	"strconv"
	"syscall"
)

// childAttributes cannot set a parent death signal here: a server outlives a kill -9 of this process. The
// next start on the same data ends it.
func childAttributes(user *syscall.Credential, _ syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: user}
}

// CommandLine returns the command line of a process, "" if it has ended.
func CommandLine(pid int) string {
	out, err := exec.Command("ps", "-ww", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return string(out)
}
