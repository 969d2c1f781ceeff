package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestEveryPlantedBugStillFits checks that each patch fits the present sources, that the result
// compiles, and that the bug's test exists. `make planted` proves that the test catches the bug.
func TestEveryPlantedBugStillFits(t *testing.T) {
	root, bugs := present(t)
	c := newChecker(t, root)
	names := map[string]bool{}
	for _, b := range bugs {
		if names[b.name] || !validName.MatchString(b.name) || b.what == "" || b.promise == "" {
			t.Errorf("%q is incomplete, or its name is not unique", b.name)
		}
		names[b.name] = true
		if !hasTest(t, filepath.Join(root, b.pkg), b.run) {
			t.Errorf("%s: test %s not found in %s", b.name, b.run, b.pkg)
		}
		if says, err := regexp.Compile(b.says); err != nil || says.MatchString("") || says.MatchString("never: the broker is there") {
			t.Errorf("%s: %q is no failure text of a test: %v", b.name, b.says, err)
		}
		dir := t.TempDir()
		path, err := b.plant(dir, root)
		if err != nil {
			t.Errorf("%s: %v", b.name, err)
			continue
		}
		for _, e := range c.check(changedFiles(t, path)) {
			t.Errorf("%s does not compile: %v", b.name, e)
		}
	}
	if len(names) < 24 {
		t.Errorf("only %d bugs are planted", len(names))
	}
}

// present returns the project's root and its planted bugs.
func present(t *testing.T) (root string, bugs []bug) {
	t.Helper()
	root, err := projectRoot()
	if err != nil {
		t.Fatal(err)
	}
	if bugs, err = catalogue(root); err != nil {
		t.Fatal(err)
	}
	return root, bugs
}

// TestThePageListsEachBugAsCaught checks that the committed page has a proof for every bug.
func TestThePageListsEachBugAsCaught(t *testing.T) {
	root, bugs := present(t)
	rows, err := readRows(filepath.Join(root, "docs", "reliability", "planted.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range faultsOfPage(bugs, rows) {
		t.Error(fault)
	}
	bugs = bugs[:2]
	for _, row := range []string{"", row(&finding{bug: &bugs[0], outcome: survived}), row(&finding{bug: &bugs[0], outcome: unclear}), row(&finding{bug: &bugs[0], outcome: notRun}),
		row(&finding{bug: &bugs[0], outcome: caught, by: "TestOfBefore", message: "m"}), row(&finding{bug: &bugs[0], outcome: caught, by: bugs[0].run, message: "another thing"})} {
		seen := map[string]string{bugs[0].name: row, bugs[1].name: rows[bugs[1].name]}
		if got := faultsOfPage(bugs, seen); len(got) != 1 {
			t.Errorf("a page with %q has the faults %q", row, got)
		}
	}
}

// faultsOfPage returns the bugs without a valid proof in the page.
func faultsOfPage(bugs []bug, rows map[string]string) (faults []string) {
	for i := range bugs {
		b := &bugs[i]
		row := rows[b.name]
		_, test, _ := strings.Cut(row, "| `"+b.run)
		by, said, ok := strings.Cut(test, "` | ")
		said = strings.NewReplacer("\\|", "|", "&lt;", "<").Replace(strings.TrimSuffix(said, " |"))
		// A clipped message was compared in full when it was stored.
		clipped := strings.HasSuffix(said, "…")
		if !ok || by != "" && !strings.HasPrefix(by, "/") || !clipped && !regexp.MustCompile(b.says).MatchString(said) {
			faults = append(faults, fmt.Sprintf("docs/reliability/planted.md has no proof that %s catches %s: %q; run make planted ARGS=%s", b.run, b.name, row, b.name))
		}
	}
	return faults
}

// hasTest reports whether a package has a test with all its parts. The name of a part is a
// string in a file with the test, its spaces as underscores.
func hasTest(t *testing.T, dir, run string) bool {
	t.Helper()
	name, parts, _ := strings.Cut(run, "/")
	takes := "(t *testing.T)"
	if strings.HasPrefix(name, "Fuzz") { // go test runs its seeds
		takes = "(f *testing.F)"
	}
	text := filesWith(t, filepath.Join(dir, "*_test.go"), "func "+name+takes)
	if text == "" || parts == "" {
		return text != ""
	}
	// The parts of shared contract tests are in the package pipetest.
	text += filesWith(t, filepath.Join(dir, "..", "watermill", "pipetest", "*.go"), "testing")
	for part := range strings.SplitSeq(parts, "/") {
		if _, err := strconv.Atoi(part); err == nil { // a version of PostgreSQL, from local.Majors
			continue
		}
		if !strings.Contains(text, `"`+part+`"`) && !strings.Contains(text, `"`+strings.ReplaceAll(part, "_", " ")+`"`) {
			return false
		}
	}
	return true
}

func filesWith(t *testing.T, pattern, part string) (all string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), part) {
			all += string(text)
		}
	}
	return all
}

// A bug whose test, or part of a test, does not exist would never be caught.
func TestAMissingTestIsReported(t *testing.T) {
	root, err := projectRoot()
	if err != nil {
		t.Fatal(err)
	}
	for run, want := range map[string]bool{
		"TestContract": true, "TestContract/CloseGivesUpABatchThatHangs": true, "TestContract/Gone": false, "TestGone": false, "TestGone/CloseGivesUpABatchThatHangs": false,
	} {
		if got := hasTest(t, filepath.Join(root, "infra", "kafka"), run); got != want {
			t.Errorf("%s exists: %v, want %v", run, got, want)
		}
	}
}

// changedFiles returns the files that an overlay replaces, with their replacements.
func changedFiles(t *testing.T, path string) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var o struct{ Replace map[string]string }
	if err := json.Unmarshal(raw, &o); err != nil {
		t.Fatal(err)
	}
	return o.Replace
}

// listedPackage is a package in the output of go list.
type listedPackage struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

// checker type-checks packages with changed files. It uses the export data of their imports:
// a whole build for each bug would take minutes.
type checker struct {
	byDir  map[string]listedPackage
	files  *token.FileSet
	parsed map[string]*ast.File // as they are in the sources
	types  types.Importer
}

func newChecker(t *testing.T, root string) *checker {
	t.Helper()
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles", "./...")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, exports := &checker{byDir: map[string]listedPackage{}, files: token.NewFileSet(), parsed: map[string]*ast.File{}}, map[string]string{}
	for lines := json.NewDecoder(out); ; {
		var p listedPackage
		if err := lines.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		c.byDir[p.Dir], exports[p.ImportPath] = p, p.Export
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	c.types = importer.ForCompiler(c.files, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})
	return c
}

// parse reads a file, or the changed one in its place. Each file as it is in the sources is read once.
func (c *checker) parse(name, changed string) (*ast.File, error) {
	if changed != "" {
		return parser.ParseFile(c.files, changed, nil, parser.SkipObjectResolution)
	}
	if f := c.parsed[name]; f != nil {
		return f, nil
	}
	f, err := parser.ParseFile(c.files, name, nil, parser.SkipObjectResolution)
	if err == nil {
		c.parsed[name] = f
	}
	return f, err
}

// check returns the type errors in the packages of changed files.
func (c *checker) check(changed map[string]string) (faults []error) {
	dirs := map[string]bool{}
	for file := range changed {
		if filepath.Ext(file) == ".go" {
			dirs[filepath.Dir(file)] = true
		}
	}
	for dir := range dirs {
		p := c.byDir[dir]
		names := map[string]bool{}
		for _, f := range p.GoFiles {
			names[filepath.Join(dir, f)] = true
		}
		for file := range changed {
			if filepath.Dir(file) == dir && filepath.Ext(file) == ".go" {
				names[file] = true
			}
		}
		var parsed []*ast.File
		for name := range names {
			f, err := c.parse(name, changed[name])
			if err != nil {
				return []error{err}
			}
			parsed = append(parsed, f)
		}
		config := types.Config{Importer: c.types, Error: func(err error) { faults = append(faults, err) }}
		_, _ = config.Check(p.ImportPath, c.files, parsed, nil) // its errors are collected above
	}
	return faults
}
