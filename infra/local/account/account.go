// Package account is the system user that the local servers run as, and the folders that it can reach. It knows no server.
package account

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/meterplex/meterplex/infra/local/folder"
)

// Account is the system user that a server runs as. PostgreSQL refuses to run as root, so a root process
// runs the servers as another user.
type Account struct {
	UID, GID uint32
	// Drop means that the server runs as another user than this process.
	Drop bool
}

// Nobody owns no files on any Unix system. It is used if there is no user postgres.
const Nobody = 65534

// Self returns the user of this process.
func Self() Account { return Account{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())} }

// OfServers returns the user that new servers run as: postgres if this process is root, else its own.
func OfServers() Account {
	if os.Geteuid() != 0 {
		return Self()
	}
	fallback := Account{UID: Nobody, GID: Nobody, Drop: true}
	u, err := user.Lookup("postgres")
	if err != nil {
		return fallback
	}
	uid, uerr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gerr := strconv.ParseUint(u.Gid, 10, 32)
	if uerr != nil || gerr != nil || uid == 0 {
		return fallback
	}
	return Account{UID: uint32(uid), GID: uint32(gid), Drop: true}
}

// ForData changes the account to the owner of existing data: a root process keeps an ordinary user's data
// with that user.
func (a Account) ForData(dir string) (Account, error) {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	}
	if err != nil {
		return a, fmt.Errorf("read the owner of the data: %w", err)
	}
	uid, gid := folder.Owner(info)
	if a.Drop && uid != 0 {
		return Account{UID: uid, GID: gid, Drop: true}, nil
	}
	if !a.Drop && uid != a.UID {
		return a, fmt.Errorf("%s belongs to user %d, this process is user %d: start it as that user or as root", dir, uid, a.UID)
	}
	return a, nil
}

// Credential is the account for a new process; nil if it is that of this process.
func (a Account) Credential() *syscall.Credential {
	if !a.Drop {
		return nil
	}
	return &syscall.Credential{Uid: a.UID, Gid: a.GID}
}

// Chown makes the account the owner of path.
func (a Account) Chown(path string) error {
	if !a.Drop {
		return nil
	}
	if err := os.Chown(path, int(a.UID), int(a.GID)); err != nil {
		return fmt.Errorf("chown %s to user %d: %w", path, a.UID, err)
	}
	return nil
}

// ChownAll makes the account the owner of dir and all in it. Links are not followed, and files with several names are left alone:
// the account could have linked files of others there.
func (a Account) ChownAll(dir string) error {
	if !a.Drop {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("chown %s: %w", dir, err)
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("chown the files in %s: %w", dir, err)
		}
		info, err := e.Info()
		if err != nil {
			return fmt.Errorf("chown the files in %s: %w", dir, err)
		}
		if uid, gid := folder.Owner(info); uid == a.UID && gid == a.GID || info.Mode().IsRegular() && folder.Links(info) > 1 {
			return nil
		}
		if err := root.Lchown(path, int(a.UID), int(a.GID)); err != nil {
			return fmt.Errorf("chown the files in %s to user %d: %w", dir, a.UID, err)
		}
		return nil
	})
}

// Reaches reports whether the account may enter dir and all its parents.
func (a Account) Reaches(dir string) bool {
	if !a.Drop {
		return true
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	for {
		if !a.mayEnter(dir) {
			return false
		}
		up := filepath.Dir(dir)
		if up == dir {
			return true
		}
		dir = up
	}
}

func (a Account) mayEnter(dir string) bool {
	info, err := os.Stat(dir)
	if err != nil {
		return false
	}
	uid, gid := folder.Owner(info)
	switch mode := info.Mode().Perm(); {
	case uid == a.UID:
		return mode&0o100 != 0
	case gid == a.GID:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}
