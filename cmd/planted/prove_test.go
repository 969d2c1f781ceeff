package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// newSmallProject makes a project of two functions and their tests.
func newSmallProject(t *testing.T, bugs ...bug) (*prover, *strings.Builder) {
	t.Helper()
	root, said := t.TempDir(), &strings.Builder{}
	for name, text := range map[string]string{
		"go.mod":    "module small\n\ngo 1.26.0\n",
		"sum/of.go": "package sum\n\nfunc of(a, b int) int { return a + b }\n\nfunc twice(a int) int { return of(a, a) }\n",
		"sum/of_test.go": `package sum

import "testing"

func TestOf(t *testing.T) {
	t.Logf("seed %d", 1)
	t.Run("two", func(t *testing.T) {
		if n := of(2, 3); n != 5 {
			t.Errorf("2 and 3 are %d | five", n)
		}
	})
}

func TestTwice(t *testing.T) {
	if twice(0) != 0 {
		t.Error("twice nothing is something")
	}
}

func TestSilent(t *testing.T) {
	if of(2, 3) != 5 {
		t.Fail()
	}
}

func TestWrong(t *testing.T) { t.Fatal("wrong by itself") }
`,
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &prover{root: root, bugs: bugs, log: said}, said
}

// bugOfSmallProject replaces the expression before in the body of the function of.
func bugOfSmallProject(t *testing.T, name, before, after, test, says string) bug {
	t.Helper()
	text := fmt.Sprintf("What: w\nPromise: p\nTest: ./sum %s\nSays: .\n\n--- a/sum/of.go\n+++ b/sum/of.go\n@@ -3 +3 @@\n"+
		"-func of(a, b int) int { return %s }\n+func of(a, b int) int { return %s }\n", test, before, after)
	b, err := parseBug("sums/"+name+extension, text)
	if err != nil {
		t.Fatal(err)
	}
	b.says = says
	return b
}

func TestABugIsCaughtOrReported(t *testing.T) {
	const times = "a * b"
	for _, c := range []struct {
		bug  bug
		code int
		says string
	}{
		{bugOfSmallProject(t, "minus", "a + b", "a - b", "TestOf", "are -?\\d+ \\| five"), exitCaught, "TestOf/two: 2 and 3 are -1 | five"},
		{bugOfSmallProject(t, "panics", "a + b", "[]int{}[a]", "TestTwice", "index out of range"), exitCaught, "TestTwice: runtime error: index out of range"},
		{bugOfSmallProject(t, "times", "a + b", times, "TestTwice", "."), exitSurvived, "TestTwice of ./sum passes"},
		{bugOfSmallProject(t, "no-such-place", "a ++ b", times, "TestOf", "."), exitUnbuilt, "occur 0 times, want exactly once; run go run ./cmd/planted -refresh no-such-place"},
		{bugOfSmallProject(t, "does-not-compile", "a + b", "c", "TestOf", "."), exitUnbuilt, "undefined: c"},
		{bugOfSmallProject(t, "no-such-test", "a + b", times, "TestNone", "."), exitUnbuilt, "test not found: TestNone"},
		{bugOfSmallProject(t, "another-failure", "a + b", "a - b", "TestOf", "the sum is lost"), exitSurvived, "UNCLEAR   another-failure"},
		{bugOfSmallProject(t, "without-a-word", "a + b", "a - b", "TestSilent", "."), exitSurvived, "the test failed without a message"},
		{bugOfSmallProject(t, "nothing-to-say", "a + b", "a - b", "TestOf", ""), exitUnbuilt, "the bug has no valid failure text"},
	} {
		t.Run(c.bug.name, func(t *testing.T) {
			t.Parallel()
			p, said := newSmallProject(t, c.bug)
			if code := run(t.Context(), p, []string{"-control=false"}); code != c.code || !strings.Contains(said.String(), c.says) {
				t.Errorf("exit code %d, want %d and %q:\n%s", code, c.code, c.says, said)
			}
		})
	}
}

// A timeout is no proof, unless the promise is to come to an end.
func TestATimeoutIsNoProof(t *testing.T) {
	r := report{ran: 1, timedOut: true, failed: []string{"TestX"}}
	if o, _, _ := r.outcomeOf(&bug{run: "TestX"}); o != survived {
		t.Errorf("a test that ran out of time: %s", o)
	}
	if o, _, message := r.outcomeOf(&bug{run: "TestX", hangs: true}); o != caught || message == "" {
		t.Errorf("with hangs set: %s %q", o, message)
	}
}

func TestATestThatFailsWithoutTheBugDoesNotCatchIt(t *testing.T) {
	p, said := newSmallProject(t, bugOfSmallProject(t, "wrong", "a + b", "a - b", "TestWrong", "wrong"))
	if code := run(t.Context(), p, nil); code != exitSurvived || !strings.Contains(said.String(), "without any bug ./sum") {
		t.Errorf("exit code %d:\n%s", code, said)
	}
}

// One real bug from end to end: built, run, caught, and stored in the page.
func TestAPlantedBugIsCaught(t *testing.T) {
	root, bugs := present(t)
	page := filepath.Join(t.TempDir(), "planted.md")
	said := &strings.Builder{}
	p := &prover{root: root, log: said}
	if code := run(t.Context(), p, []string{"-out", page, "edge-duplicate-*"}); code != exitCaught {
		t.Fatalf("exit code %d:\n%s", code, said)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "| `TestCheck` |") || strings.Count(string(text), "not run yet") != len(bugs)-1 {
		t.Errorf("%s\nthe page:\n%s", said, text)
	}
}

// rapid must not store the failed cases of a planted run in the sources.
func TestRapidStoresNoFailedCase(t *testing.T) {
	root, err := projectRoot()
	if err != nil {
		t.Fatal(err)
	}
	p := &prover{root: root}
	if !p.drawsCases("./projections") || p.drawsCases("./infra/relay") {
		t.Error("drawsCases does not find the tests that use rapid")
	}
}
