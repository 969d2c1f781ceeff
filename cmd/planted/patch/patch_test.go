package patch

import (
	"strings"
	"testing"
	"testing/fstest"
)

// source has two functions that differ in their names only.
const source = `package sum

func of(a, b int) int {
	// The sum.
	return a + b
}

func product(a, b int) int {
	// The product.
	return a * b
}

func twice(a int) int {
	of := of(a, a)
	return of
}
`

const minus = `A text before the diff.

--- a/sum/of.go
+++ b/sum/of.go
@@ -100,3 +100,3 @@ package sum
 	// The sum.
-	return a + b
+	return a - b
 }
`

func folder(files ...string) fstest.MapFS {
	sources := fstest.MapFS{}
	for i := 0; i < len(files); i += 2 {
		sources[files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
	}
	return sources
}

func parse(t *testing.T, text string) *Patch {
	t.Helper()
	_, p, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestHunksAreLocatedByTheirContent(t *testing.T) {
	header, p, err := Parse(minus)
	if err != nil || header != "A text before the diff.\n\n" {
		t.Fatalf("header %q, %v", header, err)
	}
	changes, err := p.Apply(folder("sum/of.go", source))
	want := Change{File: "sum/of.go", Before: source, After: strings.Replace(source, "a + b", "a - b", 1)}
	if err != nil || len(changes) != 1 || changes[0] != want {
		t.Errorf("%+v, %v", changes, err)
	}
}

func TestHunksInAnotherOrderAndANewFile(t *testing.T) {
	p := parse(t, `--- a/a.txt
+++ b/a.txt
@@ -1 +1 @@
-two
+2
@@ -2,2 +2,3 @@
 zero
 one
+and a half
@@ -9 +9,2 @@ with a last line without a newline
-four
\ No newline at end of file
+four
+five
\ No newline at end of file
--- /dev/null
+++ b/new/b.txt
@@ -0,0 +1,2 @@
+first
+second
`)
	changes, err := p.Apply(folder("a.txt", "zero\none\ntwo\nthree\nfour"))
	if err != nil {
		t.Fatal(err)
	}
	if got := changes[0].After; got != "zero\none\nand a half\n2\nthree\nfour\nfive" {
		t.Errorf("a.txt is %q", got)
	}
	if got := changes[1]; got != (Change{File: "new/b.txt", After: "first\nsecond\n", Created: true}) {
		t.Errorf("b.txt is %+v", got)
	}
	if _, err := p.Apply(folder("a.txt", "zero\none\ntwo\nthree\nfour", "new/b.txt", "")); err == nil || !strings.Contains(err.Error(), "new/b.txt: the patch creates it, but it exists") {
		t.Errorf("with the new file there: %v", err)
	}
}

func TestPatchesThatDoNotFitAreRefused(t *testing.T) {
	for why, sources := range map[string]fstest.MapFS{
		"sum/of.go, hunk 1 (@@ -100,3 +100,3 @@ package sum): its context and removed lines occur 0 times": folder("sum/of.go", strings.Replace(source, "The sum", "A sum", 1)),
		"occur 2 times":        folder("sum/of.go", source+source),
		"file does not exist":  folder("of.go", source),
		"occur 0 times, want ": folder("sum/of.go", ""),
	} {
		if _, err := parse(t, minus).Apply(sources); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	same := parse(t, "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+1\n@@ -1 +1 @@\n-one\n+2\n")
	if _, err := same.Apply(folder("a", "one\n")); err == nil || !strings.Contains(err.Error(), "two hunks change line 1") {
		t.Errorf("two hunks of one line: %v", err)
	}
}

func TestTextsThatAreNoDiffAreRefused(t *testing.T) {
	for why, text := range map[string]string{
		"no diff found":                "What: w\n",
		"1 lines are outside":          strings.Replace(minus, "-100,3 +100,3", "-100,2 +100,2", 1),
		"miscounts lines":              strings.Replace(minus, "-100,3 +100,3", "-100,4 +100,4", 1),
		"expected a change of a text ": strings.Replace(minus, "+++ b/sum/of.go", "+++ sum/of.go", 1),
		"a/a: expected a change":       "--- a/a\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n",
	} {
		if _, _, err := Parse(text); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
}

func TestDiffIsLocatedAndReadable(t *testing.T) {
	changes := []Change{
		{File: "sum/of.go", Before: source, After: strings.Replace(source, "a * b", "a / b", 1)},
		{File: "sum/new.go", After: "package sum\n", Created: true},
	}
	text, err := Diff(changes)
	if err != nil {
		t.Fatal(err)
	}
	want := `--- /dev/null
+++ b/sum/new.go
@@ -0,0 +1 @@
+package sum
--- a/sum/of.go
+++ b/sum/of.go
@@ -7,7 +7,7 @@ func of(a, b int) int {
 
 func product(a, b int) int {
 	// The product.
-	return a * b
+	return a / b
 }
 
 func twice(a int) int {
`
	if text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	if _, err := Diff([]Change{{File: "a", Before: "one\n", After: "one\n"}}); err == nil {
		t.Error("a diff of nothing was written")
	}
}

// A hunk that three lines of context do not tell from another place has more of them.
func TestDiffHasAsMuchContextAsItNeeds(t *testing.T) {
	block := "{\n\tone\n\ttwo\n\tthree\n\tfour\n\tfive\n\tsix\n\tseven\n}\n"
	before := "first " + block + "second " + block
	after := "first " + block + "second " + strings.Replace(block, "four", "4", 1)
	text, err := Diff([]Change{{File: "a", Before: before, After: after}})
	if err != nil || !strings.Contains(text, " second {\n") {
		t.Errorf("%v\n%s", err, text)
	}
	same := strings.Repeat("one\n", 200)
	if _, err := Diff([]Change{{File: "a", Before: same, After: strings.Repeat("one\n", 100) + "two\n" + strings.Repeat("one\n", 99)}}); err == nil || !strings.Contains(err.Error(), "no unique place") {
		t.Errorf("one of 200 equal lines: %v", err)
	}
}

func TestRefreshFindsWhatIsLeft(t *testing.T) {
	const blocks = `--- a/sum/of.go
+++ b/sum/of.go
@@ -1,6 +1,8 @@
 package sum
 
+// of adds.
 func of(a, b int) int {
 	// The sum.
-	return a + b
+	c := a - b
+	return c
 }
`
	for name, c := range map[string]struct{ diff, from, before, file, after string }{
		"other context":       {minus, "// The sum.", "// A sum.", "sum/of.go", "return a - b"},
		"no context left":     {minus, "// The sum.\n\treturn a + b\n}", "return a + b\n\t// A sum.\n}", "sum/of.go", "return a - b\n\t// A sum.\n}"},
		"context in a hunk":   {blocks, "// The sum.", "// A sum.", "sum/of.go", "// of adds.\nfunc of(a, b int) int {\n\t// A sum.\n\tc := a - b\n\treturn c\n}"},
		"another folder":      {minus, "package sum", "package add", "add/of.go", "return a - b"},
		"nothing has changed": {minus, "", "", "sum/of.go", "return a - b"},
	} {
		t.Run(name, func(t *testing.T) {
			sources := folder(c.file, strings.Replace(source, c.from, c.before, 1), "other/of.go", "package other\n")
			changes, err := parse(t, c.diff).Refresh(sources)
			if err != nil || len(changes) != 1 || changes[0].File != c.file || !strings.Contains(changes[0].After, c.after) {
				t.Fatalf("%+v, %v", changes, err)
			}
			text, err := Diff(changes)
			if err != nil {
				t.Fatal(err)
			}
			again, err := parse(t, text).Refresh(sources)
			if err != nil || len(again) != 1 || again[0] != changes[0] {
				t.Errorf("the written patch makes %+v, %v", again, err)
			}
		})
	}
}

func TestRefreshDoesNotGuess(t *testing.T) {
	for why, sources := range map[string]fstest.MapFS{
		"occur 2 times": folder("sum/of.go", source+source),
		"occur 0 times": folder("sum/of.go", strings.Replace(source, "a + b", "b + a", 1)),
		"the file does not exist, and the patch fits 2 other files named of.go": folder("a/of.go", source, "b/of.go", source),
		"fits 0 other files": folder("a/of.go", "package a\n", ".git/of.go", source),
	} {
		if _, err := parse(t, minus).Refresh(sources); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	insertion := parse(t, "--- a/a\n+++ b/a\n@@ -1,2 +1,3 @@\n one\n+and a half\n two\n")
	if changes, err := insertion.Refresh(folder("a", "1\n2\n")); err == nil {
		t.Errorf("an insertion without its context became %+v", changes)
	}
}
