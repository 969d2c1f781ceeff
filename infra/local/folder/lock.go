package folder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
)

// ErrInUse means that another live process uses the data directory.
var ErrInUse = errors.New("data directory in use")

// Lock is an advisory lock on a file. The kernel releases it when the holder dies, so a lock is never
// stale.
type Lock struct{ f *os.File }

// TryLock locks a data directory. If it is locked, ErrInUse names the process that holds the lock.
func TryLock(path string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock file: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return &Lock{f}, writePID(f)
	}
	defer f.Close()
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	pid, _ := io.ReadAll(io.LimitReader(f, 32))
	return nil, fmt.Errorf("%w by process %s (lock file %s)", ErrInUse, strings.TrimSpace(string(pid)), path)
}

func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("write the lock file: %w", err)
	}
	if _, err := f.WriteAt([]byte(fmt.Sprintf("%d\n", os.Getpid())), 0); err != nil {
		return fmt.Errorf("write the lock file: %w", err)
	}
	return nil
}

// WaitLock locks a cache directory. Processes that need the same download wait for the one that downloads
// it.
func WaitLock(ctx context.Context, path string) (*Lock, error) {
	for {
		l, err := TryLock(path)
		if err == nil || !errors.Is(err, ErrInUse) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another process's download: %w", ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Release releases the lock. The file stays: if it was removed, two holders could lock two different
// files of the same name.
func (l *Lock) Release() {
	if l != nil {
		l.f.Close()
	}
}
