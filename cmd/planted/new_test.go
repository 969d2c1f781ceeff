package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A patch from the working tree's changes, and another one in its place later.
func TestNewWritesThePatchOfTheWorkingTree(t *testing.T) {
	p, said := withPatch(t)
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "-m", "m"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = p.root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	source := read(t, p, "sum/of.go")
	if code := run(t.Context(), p, []string{"-new", "products", "-group", "sums"}); code != exitUnbuilt || !strings.Contains(said.String(), "no uncommitted changes") {
		t.Errorf("without a change: exit code %d:\n%s", code, said)
	}
	writeFor(t, p, "sum/of.go", strings.Replace(source, "a + b", "times(a, b)", 1))
	writeFor(t, p, "sum/times.go", "package sum\n\nfunc times(a, b int) int { return a * b }\n")
	writeFor(t, p, "sum/more_test.go", "package sum\n")
	for _, args := range [][]string{{"-new", "products"}, {"-new", "products", "-group", "none"}, {"-new", "pro ducts", "-group", "sums"}} {
		if code := run(t.Context(), p, args); code != exitUnbuilt {
			t.Errorf("%q: exit code %d:\n%s", args, code, said)
		}
	}
	if code := run(t.Context(), p, []string{"-new", "products", "-group", "sums"}); code != exitCaught || !strings.Contains(said.String(), "undo the changes of: sum/of.go sum/times.go\n") {
		t.Fatalf("exit code %d:\n%s", code, said)
	}
	if code := run(t.Context(), p, []string{"-list"}); code != exitUnbuilt || !strings.Contains(said.String(), `products.patch: the header has no line "What: …"`) {
		t.Errorf("an empty header: exit code %d:\n%s", code, said)
	}
	const name = "cmd/planted/bugs/sums/products.patch"
	filled := strings.Replace(differences[:strings.Index(differences, "---")], "differences", "products", 1) + strings.TrimPrefix(read(t, p, name), newHeader)
	writeFor(t, p, name, filled)
	writeFor(t, p, "sum/times.go", "package sum\n\nfunc times(a, b int) int { return a / b }\n")
	if code := run(t.Context(), p, []string{"-new", "products", "sum/times.go", "sum/of.go"}); code != exitCaught || read(t, p, name) != strings.Replace(filled, "a * b", "a / b", 1) {
		t.Errorf("again: exit code %d:\n%s\n%s", code, said, read(t, p, name))
	}
	writeFor(t, p, "sum/of.go", source)
	if err := os.Remove(filepath.Join(p.root, "sum/times.go")); err != nil {
		t.Fatal(err)
	}
	if code := run(t.Context(), p, []string{"-control=false"}); code != exitCaught || !strings.Contains(said.String(), "2 planted: 2 caught") {
		t.Errorf("planted: exit code %d:\n%s", code, said)
	}
}
