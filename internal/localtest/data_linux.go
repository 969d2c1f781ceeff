package localtest

import (
	"os"
	"regexp"
	"strconv"
	"syscall"
)

const (
	memoryMount = "/dev/shm"
	tmpfsMagic  = 0x01021994 // linux/magic.h
	// memoryNeeded is several times the bytes of the servers of all binaries that run at a time.
	memoryNeeded = 8 << 30
)

var availableMemory = regexp.MustCompile(`(?m)^MemAvailable:\s+(\d+) kB$`)

// memoryFolder returns the folder of the memory file system, "" if it or the machine has too little memory.
func memoryFolder() string {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memoryMount, &fs); err != nil || fs.Type != tmpfsMagic || fs.Bavail*uint64(fs.Bsize) < memoryNeeded {
		return ""
	}
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return ""
	}
	found := availableMemory.FindSubmatch(text)
	if found == nil {
		return ""
	}
	if kib, err := strconv.ParseInt(string(found[1]), 10, 64); err != nil || kib<<10 < memoryNeeded {
		return ""
	}
	return memoryMount
}
