package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/meterplex/meterplex/cmd/planted/overlay"
)

// The edits of the faulty binary fit the source. This takes moments; the tests that build
// the binary take minutes.
func TestFaultEditsFitTheSource(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := overlay.WriteOver(t.TempDir(), root, os.Getenv("METERPLEX_TEST_OVERLAY"), faultyEdits()); err != nil {
		t.Error(err)
	}
}
