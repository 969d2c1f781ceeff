package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/meterplex/meterplex/infra/local"
)

// capSysAdmin is the capability to mount.
const capSysAdmin = 21

// ownMounts gives a process a mount namespace. A process that does not run as root gets
// a user namespace, too: it may not mount otherwise.
func ownMounts() *syscall.SysProcAttr {
	attributes := childAttributes()
	attributes.Unshareflags = syscall.CLONE_NEWNS
	if os.Geteuid() == 0 {
		return attributes
	}
	attributes.Cloneflags = syscall.CLONE_NEWUSER
	attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
	attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
	attributes.AmbientCaps = []uintptr{capSysAdmin}
	return attributes
}

// hidePostgres hides each installed PostgreSQL from this process and its children. It
// must run in the mount namespace of ownMounts.
func hidePostgres() error {
	shared := []string{"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin"}
	for _, dir := range local.InstalledPostgres(context.Background()) {
		program, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
		if err != nil {
			continue // hidden with another folder that contains it
		}
		if dir = filepath.Dir(program); slices.Contains(shared, dir) {
			err = syscall.Mount("/dev/null", program, "", syscall.MS_BIND, "")
		} else {
			err = syscall.Mount("none", dir, "tmpfs", 0, "")
		}
		if err != nil {
			return fmt.Errorf("hide %s: %w", dir, err)
		}
	}
	if left := local.InstalledPostgres(context.Background()); len(left) > 0 {
		return fmt.Errorf("still visible: %v", left)
	}
	return nil
}
