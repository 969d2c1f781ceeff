package api

import (
	"io"
	"testing"
)

// TestAClientThatLeavesIsNoFault: huma panics at an error of the format, which the log would hold with its stack for each client that
// leaves.
func TestAClientThatLeavesIsNoFault(t *testing.T) {
	left, gone := io.Pipe()
	_ = left.Close()
	if err := jsonFormat().Marshal(gone, map[string]int{"a": 1}); err != nil {
		t.Errorf("an answer to a client that left: %v", err)
	}
	if err := jsonFormat().Marshal(io.Discard, func() {}); err == nil {
		t.Error("a value without JSON is no error")
	}
}
