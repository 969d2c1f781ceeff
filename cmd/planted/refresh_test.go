package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const differences = `What: sums are differences
Promise: P5: a sum is exact
Test: ./sum TestOf
Says: five

--- a/sum/of.go
+++ b/sum/of.go
@@ -20,5 +20,5 @@ func before(a int)
 package sum
 
-func of(a, b int) int { return a + b }
+func of(a, b int) int { return a - b }
 
 func twice(a int) int { return of(a, a) }
`

// withPatch is small with the patch of one bug.
func withPatch(t *testing.T) (*prover, *strings.Builder) {
	t.Helper()
	p, said := newSmallProject(t)
	writeFor(t, p, "cmd/planted/bugs/groups", "sums: the sums\n  differences\n")
	writeFor(t, p, "cmd/planted/bugs/sums/differences.patch", differences)
	return p, said
}

func writeFor(t *testing.T, p *prover, name, text string) {
	t.Helper()
	if err := writeFile(filepath.Join(p.root, name), text); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, p *prover, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestRefreshWritesWhatHasMoved(t *testing.T) {
	p, said := withPatch(t)
	writeFor(t, p, "sum/of.go", strings.Replace(read(t, p, "sum/of.go"), "package sum\n", "package sum\n\n// The sum.", 1))
	if code := run(t.Context(), p, []string{"-refresh"}); code != exitCaught || !strings.Contains(said.String(), "wrote cmd/planted/bugs/sums/differences.patch\n1 patches, 1 written\n") {
		t.Fatalf("exit code %d:\n%s", code, said)
	}
	text := read(t, p, "cmd/planted/bugs/sums/differences.patch")
	if !strings.HasPrefix(text, differences[:strings.Index(differences, "@@")]) || !strings.Contains(text, "@@ -1,6 +1,6 @@\n package sum\n \n // The sum.\n-func of") {
		t.Errorf("the patch became\n%s", text)
	}
	said.Reset()
	if code := run(t.Context(), p, []string{"-refresh", "diff*"}); code != exitCaught || said.String() != "1 patches, 0 written\n" {
		t.Errorf("again: exit code %d:\n%s", code, said)
	}
	writeFor(t, p, "sum/of.go", "package sum\n")
	p.bugs = nil
	if code := run(t.Context(), p, []string{"-refresh"}); code != exitUnbuilt || !strings.Contains(said.String(), "differences.patch: sum/of.go, hunk 1") || !strings.Contains(said.String(), "-new NAME") {
		t.Errorf("without the line: exit code %d:\n%s", code, said)
	}
}
