package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/meterplex/meterplex/cmd/planted/overlay"
)

// The edits of the faulty binary and of the next release fit the source. This takes
// moments; the tests that build these binaries take minutes.
func TestFaultEditsFitTheSource(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	for name, edits := range map[string][]overlay.Edit{"faulty": faultyEdits(), "next": nextEdits()} {
		if _, err := overlay.WriteOver(t.TempDir(), root, os.Getenv("METERPLEX_TEST_OVERLAY"), edits); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
