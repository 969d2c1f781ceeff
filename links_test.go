package meterplex

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/meterplex/meterplex/internal/must"
)

var (
	// markdownLink is a link of Markdown: its target and its fragment.
	markdownLink = regexp.MustCompile(`\[[^][]*(?:\[[^][]*\][^][]*)?\]\(([^)\s#]*)(?:#([^)\s]*))?\)`)
	// documentPath is the path of a document, or of a place in docs.
	documentPath = regexp.MustCompile(`(?:\.\./)*\bdocs/[\w./-]*|[\w./-]*\w\.md\b`)
	// heading is a heading of Markdown; marks are the characters that its fragment leaves out.
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	marks   = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// documents returns the paths of the documents for people.
func documents(t *testing.T) []string {
	t.Helper()
	found := []string{"README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
	err := filepath.WalkDir("docs", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			found = append(found, path)
		}
		return err
	})
	if err != nil || len(found) < 50 {
		t.Fatalf("%d documents, %v", len(found), err)
	}
	return found
}

// prose returns the text of a document without its blocks of code.
func prose(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must.OK(t, err)
	var kept strings.Builder
	fenced := false
	for line := range strings.Lines(string(text)) {
		if fence := strings.HasPrefix(strings.TrimSpace(line), "```"); fence {
			fenced = !fenced
		} else if !fenced && !strings.HasPrefix(line, "    ") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// fragments returns the fragments of a document's headings, as code hosts make them.
func fragments(t *testing.T, path string) (all []string) {
	for _, h := range heading.FindAllStringSubmatch(prose(t, path), -1) {
		all = append(all, strings.ReplaceAll(marks.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
	}
	return all
}

// Each relative link of a document leads to a file, a folder or a heading.
func TestLinksOfDocumentsResolve(t *testing.T) {
	for _, document := range documents(t) {
		for _, link := range markdownLink.FindAllStringSubmatch(prose(t, document), -1) {
			target, fragment := filepath.Join(filepath.Dir(document), link[1]), link[2]
			if strings.Contains(link[1], ":") { // a URL
				continue
			}
			if link[1] == "" {
				target = document
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", document, link[1], err)
			} else if fragment != "" && filepath.Ext(target) == ".md" && !slices.Contains(fragments(t, target), fragment) {
				t.Errorf("%s links to %s#%s: no such heading", document, link[1], fragment)
			}
		}
	}
}

// A document names another document by a link.
func TestPathsOfDocumentsAreLinks(t *testing.T) {
	for _, document := range documents(t) {
		for _, path := range documentPath.FindAllString(markdownLink.ReplaceAllString(prose(t, document), ""), -1) {
			_, beside := os.Stat(filepath.Join(filepath.Dir(document), path))
			_, atRoot := os.Stat(path)
			if strings.Contains(path, "docs/") || beside == nil || atRoot == nil {
				t.Errorf("%s names %s without a link to it", document, path)
			}
		}
	}
}

// Each test that a document names exists; a name may be the beginning of several. The page of planted bugs has the names of its own commit.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	code, err := exec.Command("grep", "-rhoE", "^func (Test|Fuzz)[A-Za-z0-9_]+", "--include=*_test.go", ".").Output()
	must.OK(t, err)
	name := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`)
	for _, document := range documents(t) {
		if document == "docs/reliability/planted.md" {
			continue
		}
		text, err := os.ReadFile(document)
		must.OK(t, err)
		for _, named := range name.FindAllString(string(text), -1) {
			if !strings.Contains(string(code), "func "+named) {
				t.Errorf("%s names %s, which does not exist", document, named)
			}
		}
	}
}

// checkLine is a line of meterplex verify in a document.
var checkLine = regexp.MustCompile(`(?m)^ *(P\d+ .*?) +(?:true|false)\b`)

// TestDocumentsShowChecksThatExist: a document shows lines of meterplex verify with the names that verify prints.
func TestDocumentsShowChecksThatExist(t *testing.T) {
	files, err := filepath.Glob("verify/*.go")
	must.OK(t, err)
	var code strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.OK(t, err)
		code.Write(text)
	}
	shown := 0
	for _, doc := range documents(t) {
		text, err := os.ReadFile(doc)
		must.OK(t, err)
		for _, found := range checkLine.FindAllStringSubmatch(string(text), -1) {
			if shown++; !strings.Contains(code.String(), found[1]) {
				t.Errorf("%s: meterplex verify has no check %q", doc, found[1])
			}
		}
	}
	if shown < 5 {
		t.Errorf("%d lines", shown)
	}
}

// Each file of Go that a document names exists. Decisions have the names of their time.
func TestDocumentsNameFilesThatExist(t *testing.T) {
	found, err := exec.Command("find", ".", "-name", "*.go").Output()
	must.OK(t, err)
	name := regexp.MustCompile(`(?:^|[^\w./*-])([A-Za-z][\w./-]*\.go)\b`)
	for _, document := range documents(t) {
		if strings.HasPrefix(document, "docs/decisions/") {
			continue
		}
		for _, named := range name.FindAllStringSubmatch(markdownLink.ReplaceAllString(prose(t, document), ""), -1) {
			if !strings.Contains(string(found), "/"+named[1]+"\n") {
				t.Errorf("%s names %s, which does not exist", document, named[1])
			}
		}
	}
}

// Each decision has its line in the index, and one that a later decision replaces has a link to it in its first lines.
func TestDecisionsAreListed(t *testing.T) {
	index, err := os.ReadFile("docs/decisions/README.md")
	must.OK(t, err)
	pages, err := filepath.Glob("docs/decisions/0*.md")
	must.OK(t, err)
	line := regexp.MustCompile(`(?m)^\| \[\d+\]\(([^)]*)\) \| .* \|(.*)\|$`)
	listed := map[string]string{}
	for _, l := range line.FindAllStringSubmatch(string(index), -1) {
		listed[l[1]] = l[2]
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		must.OK(t, err)
		head, _, _ := strings.Cut(string(text), "\n\n")
		replaced, ok := listed[filepath.Base(page)]
		if !ok {
			t.Errorf("the index lacks %s", page)
		}
		for _, by := range markdownLink.FindAllStringSubmatch(replaced, -1) {
			if !strings.Contains(head, by[1]) {
				t.Errorf("%s does not say that %s replaces it", page, by[1])
			}
		}
	}
}

// Each document that the code of an SDK or a chart names exists.
func TestCodeNamesDocumentsThatExist(t *testing.T) {
	named, err := exec.Command("grep", "-rhoE", "--exclude-dir=node_modules", `\bdocs/[a-zA-Z0-9_/-]+\.md`, "sdk", "deploy", "cmd", "http").
		Output()
	must.OK(t, err)
	for _, path := range slices.Compact(slices.Sorted(slices.Values(strings.Fields(string(named))))) {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

// A page has at most 150 lines, and none above 200 columns outside of code. Tables of codes and settings are generated.
func TestPagesAreShort(t *testing.T) {
	for _, folder := range []string{"tutorials", "how-to", "reference", "explanation", "project"} {
		pages, err := filepath.Glob(filepath.Join("docs", folder, "*.md"))
		must.OK(t, err)
		if len(pages) == 0 {
			t.Errorf("docs/%s has no pages", folder)
		}
		for _, page := range pages {
			if page == "docs/reference/errors.md" || page == "docs/reference/settings.md" {
				continue
			}
			text, err := os.ReadFile(page)
			must.OK(t, err)
			if n := strings.Count(string(text), "\n"); n > 150 {
				t.Errorf("%s has %d lines", page, n)
			}
			for line := range strings.Lines(prose(t, page)) {
				if n := utf8.RuneCountInString(line) - 1; n > 200 {
					t.Errorf("%s has a line of %d columns: %.60s…", page, n, line)
				}
			}
		}
	}
}
