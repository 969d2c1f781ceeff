package doctor

import (
	"os"
	"strings"
	"testing"
)

// Every check is broken by a test, has a remedy, and is in the document. Tests run in the order of files, so this one is the last.
func TestEachCheckHasATest(t *testing.T) {
	document, err := os.ReadFile("../../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range checks() {
		if !examined[c.name] && len(examined) > 1 { // not alone
			t.Errorf("no test breaks the check %s", c.name)
		}
		if c.remedy == "" || c.area == "" {
			t.Errorf("%s has no remedy or area", c.name)
		}
		if !strings.Contains(string(document), "| `"+c.name+"` |") {
			t.Errorf("docs/doctor.md lacks %s", c.name)
		}
	}
	if n := strings.Count(string(document), "\n| `"); n != len(checks()) {
		t.Errorf("docs/doctor.md lists %d checks instead of %d", n, len(checks()))
	}
}
