//go:build !linux

package local

import (
	"os/exec"
	"strconv"
	"syscall"
)

// childAttributes cannot set a parent death signal here: a server outlives a kill -9 of this process. The
// next start on the same data ends it.
func childAttributes(user account, _ syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: user.credential()}
}

func commandLine(pid int) string {
	out, err := exec.Command("ps", "-ww", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return string(out)
}
