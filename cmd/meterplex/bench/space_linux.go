package bench

import "syscall"

// freeSpace is what an ordinary user may still write to the disk that a folder
// is on, in bytes.
func freeSpace(dir string) (bytes float64, known bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, false
	}
	return float64(s.Bavail) * float64(s.Bsize), true
}
