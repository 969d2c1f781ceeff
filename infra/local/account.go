package local

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

// account is the system user that a server runs as. PostgreSQL refuses to run as root, so a root process
// runs it as another user.
type account struct {
	uid, gid uint32
	// drop means that the server runs as another user than this process.
	drop bool
}

// nobody owns no files on any Unix system. It is used if there is no user postgres.
const nobody = 65534

// self returns the user of this process.
func self() account { return account{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())} }

// serverAccount returns the user that PostgreSQL runs as.
func serverAccount() account {
	if os.Geteuid() != 0 {
		return self()
	}
	fallback := account{uid: nobody, gid: nobody, drop: true}
	u, err := user.Lookup("postgres")
	if err != nil {
		return fallback
	}
	uid, uerr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gerr := strconv.ParseUint(u.Gid, 10, 32)
	if uerr != nil || gerr != nil || uid == 0 {
		return fallback
	}
	return account{uid: uint32(uid), gid: uint32(gid), drop: true}
}

// forData changes the account to the owner of existing data: a root process keeps an ordinary user's data
// with that user.
func (a account) forData(dir string) (account, error) {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	}
	if err != nil {
		return a, fmt.Errorf("read the owner of the data: %w", err)
	}
	uid, gid := folder.Owner(info)
	if a.drop && uid != 0 {
		return account{uid: uid, gid: gid, drop: true}, nil
	}
	if !a.drop && uid != a.uid {
		return a, fmt.Errorf("%s belongs to user %d, this process is user %d: start it as that user or as root", dir, uid, a.uid)
	}
	return a, nil
}

func (a account) credential() *syscall.Credential {
	if !a.drop {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

// chown makes the account the owner of path.
func (a account) chown(path string) error {
	if !a.drop {
		return nil
	}
	if err := os.Chown(path, int(a.uid), int(a.gid)); err != nil {
		return fmt.Errorf("chown %s to user %d: %w", path, a.uid, err)
	}
	return nil
}

// reaches reports whether the account may enter dir and all its parents.
func (a account) reaches(dir string) bool {
	if !a.drop {
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

func (a account) mayEnter(dir string) bool {
	info, err := os.Stat(dir)
	if err != nil {
		return false
	}
	uid, gid := folder.Owner(info)
	switch mode := info.Mode().Perm(); {
	case uid == a.uid:
		return mode&0o100 != 0
	case gid == a.gid:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}
