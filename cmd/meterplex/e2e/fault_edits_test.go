package e2e

import (
	"path/filepath"
	"testing"
)

// The edits of the faulty binary fit the source. This takes moments; the tests that build
// the binary take minutes.
func TestFaultEditsFitTheSource(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writeOverlay(t.TempDir(), root, faultyEdits()); err != nil {
		t.Error(err)
	}
}
