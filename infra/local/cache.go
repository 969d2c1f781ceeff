package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// CacheDir returns the directory of downloaded programs: METERPLEX_CACHE_DIR, else meterplex in the
// user's cache directory, else (HOME unset or not writable) a directory of this user in the system's
// temporary directory. CacheDir makes sure that it exists and is writable, except for
// METERPLEX_CACHE_DIR, which is always used as given.
func CacheDir() string {
	if dir := os.Getenv("METERPLEX_CACHE_DIR"); dir != "" {
		return absolute(dir)
	}
	if base, err := os.UserCacheDir(); err == nil {
		dir := filepath.Join(base, "meterplex")
		if ownDir(dir) == nil && writable(dir) {
			return dir
		}
	}
	dir := filepath.Join(os.TempDir(), "meterplex-"+strconv.Itoa(os.Geteuid()))
	if ownDir(dir) == nil && writable(dir) {
		return dir
	}
	if dir, err := os.MkdirTemp("", "meterplex-cache-"); err == nil {
		return dir
	}
	return dir
}

func absolute(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return dir
	}
	return abs
}

// ownDir creates dir if it is missing, and refuses one that another user owns or may write to: programs
// are run from it, and in a directory like /tmp any user may have created it first.
func ownDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create %s: %w", dir, err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if uid, _ := owner(info); int(uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s belongs to another user or is writable by others", dir)
	}
	return nil
}

func writable(dir string) bool {
	f, err := os.CreateTemp(dir, ".probe-")
	if err != nil {
		return false
	}
	f.Close()
	return os.Remove(f.Name()) == nil
}

func owner(info fs.FileInfo) (uid, gid uint32) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0
	}
	return st.Uid, st.Gid
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
