package overlay

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestEditsChangeWhatIsBuiltAndNothingElse(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	source := "package main\n\nfunc main() { println(word) }\n"
	write(t, root, "go.mod", "module edited\n\ngo 1.26.0\n")
	write(t, root, "main.go", source)
	path, err := WriteOver(dir, root, "", []Edit{
		{File: "main.go", Old: "println(word)", New: "println(word, word)"},
		{File: "main.go", Old: "word, word", New: "word, 2"},
		{File: "word.go", New: "package main\n\nconst word = \"edited\"\n"},
	})
	if err != nil {
		t.Fatal(err)
	}
	run := exec.Command("go", "run", "-overlay", path, ".")
	run.Dir = root
	if out, err := run.CombinedOutput(); err != nil || string(out) != "edited 2\n" {
		t.Errorf("it printed %q, %v", out, err)
	}
	if now, err := os.ReadFile(filepath.Join(root, "main.go")); err != nil || string(now) != source {
		t.Errorf("the source became %q, %v", now, err)
	}
}

// A build with its own edits also contains those of the overlay beneath.
func TestEditsAddToAnotherOverlay(t *testing.T) {
	root := t.TempDir()
	write(t, root, "go.mod", "module edited\n\ngo 1.26.0\n")
	write(t, root, "main.go", "package main\n\nfunc main() { println(word, other) }\n\nconst word = 1\n")
	write(t, root, "other.go", "package main\n\nconst other = 2\n")
	beneath, err := WriteOver(t.TempDir(), root, "", []Edit{{File: "main.go", Old: "word = 1", New: "word = 3"}, {File: "other.go", Old: "2", New: "4"}})
	if err != nil {
		t.Fatal(err)
	}
	path, err := WriteOver(t.TempDir(), root, beneath, []Edit{{File: "main.go", Old: "word, other", New: "word, other, word"}})
	if err != nil {
		t.Fatal(err)
	}
	run := exec.Command("go", "run", "-overlay", path, ".")
	run.Dir = root
	if out, err := run.CombinedOutput(); err != nil || string(out) != "3 4 3\n" {
		t.Errorf("it printed %q, %v", out, err)
	}
	if _, err := WriteOver(t.TempDir(), root, filepath.Join(root, "none"), nil); err == nil {
		t.Error("a missing overlay was accepted")
	}
}

func TestEditsThatDoNotFitAreRefused(t *testing.T) {
	root := t.TempDir()
	write(t, root, "a.go", "// x, x, x")
	for why, e := range map[string]Edit{
		"0 places contain": {File: "a.go", Old: "b"},
		"3 places contain": {File: "a.go", Old: "x"},
		"but it exists":    {File: "a.go", New: "package b"},
		"read the file to": {File: "b.go", Old: "b"},
	} {
		if _, err := WriteOver(t.TempDir(), root, "", []Edit{e}); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%+v: %v, not %q", e, err, why)
		}
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
