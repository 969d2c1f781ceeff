package child

import (
	"fmt"
	"os"
)

// logRotateBytes bounds a server's log. A larger log is renamed at the next start.
const logRotateBytes = 16 << 20

// OpenLog opens a server's log for appending and returns its size.
func OpenLog(path string) (*os.File, int64, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > logRotateBytes {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, 0, fmt.Errorf("rename the old log: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open the server's log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("open the server's log: %w", err)
	}
	return f, info.Size(), nil
}

// LogSince returns a server's log since offset, at most the last 64 KiB.
func LogSince(path string, offset int64) string {
	b, err := os.ReadFile(path)
	if err != nil || offset > int64(len(b)) {
		return ""
	}
	b = b[offset:]
	if len(b) > 64<<10 {
		b = b[len(b)-64<<10:]
	}
	return string(b)
}
