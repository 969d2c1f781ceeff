// Package download fetches the programs of servers once, by Maven, into a cache of this user's. The programs' packages
// pin the checksums.
package download

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/meterplex/meterplex/infra/local/folder"
)

// CacheDir returns the directory of downloaded programs: METERPLEX_CACHE_DIR, else meterplex in the
// user's cache directory, else (HOME unset or not writable) a directory of this user in the system's
// temporary directory. CacheDir makes sure that it exists and is writable, except for
// METERPLEX_CACHE_DIR, which is always used as given.
func CacheDir() string {
	if dir := os.Getenv("METERPLEX_CACHE_DIR"); dir != "" {
		return folder.Absolute(dir)
	}
	if base, err := os.UserCacheDir(); err == nil {
		dir := filepath.Join(base, "meterplex")
		if folder.Own(dir) == nil && folder.Writable(dir) {
			return dir
		}
	}
	dir := filepath.Join(os.TempDir(), "meterplex-"+strconv.Itoa(os.Geteuid()))
	if folder.Own(dir) == nil && folder.Writable(dir) {
		return dir
	}
	if dir, err := os.MkdirTemp("", "meterplex-cache-"); err == nil {
		return dir
	}
	return dir
}
