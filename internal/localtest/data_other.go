//go:build !linux

package localtest

// memoryFolder returns "": only Linux has a memory file system at a known place.
func memoryFolder() string { return "" }
