package localtest

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// dirPattern names the data directories of test binaries.
const dirPattern = "meterplex-test-*"

// dataDir must be called with the lock held.
func dataDir(t testing.TB) string {
	t.Helper()
	if servers.dir != "" {
		return servers.dir
	}
	parent := dataParent()
	sweep(parent)
	dir, err := os.MkdirTemp(parent, dirPattern)
	if err != nil {
		t.Fatal(err)
	}
	// The database server may run as another user, which must be able to enter the directory.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if servers.inUse = tryLock(dir); servers.inUse == nil {
		t.Fatalf("%s is new and locked by another process", dir)
	}
	servers.dir = dir
	return dir
}

// dataParent is the folder of all data directories. Memory saves a quarter of the tests' processor time.
func dataParent() string {
	if dir := memoryFolder(); dir != "" {
		return dir
	}
	return os.TempDir()
}

// justMade is the age up to which a directory may not have its lock yet.
const justMade = time.Minute

// sweep removes the data of killed test binaries: the kernel released their locks. Directories that it
// cannot remove belong to another user.
func sweep(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, dirPattern))
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || time.Since(info.ModTime()) < justMade {
			continue
		}
		if lock := tryLock(dir); lock != nil {
			_ = os.RemoveAll(dir)
			_ = lock.Close()
		}
	}
}

// tryLock locks a directory until the file is closed or this process ends. It returns nil if another
// process holds the lock.
func tryLock(dir string) *os.File {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil
	}
	return f
}
