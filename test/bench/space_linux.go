package main

import "syscall"

// freeSpace is the free space for an ordinary user on the disk of a folder, in bytes.
func freeSpace(dir string) (bytes float64, known bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, false
	}
	return float64(s.Bavail) * float64(s.Bsize), true
}
