package meterplex

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// markdownLink is a link of Markdown; the target is its first group, without a fragment.
var markdownLink = regexp.MustCompile(`\]\(([^)\s#]+)[^)]*\)`)

// Every relative link of the documents leads to a file or a folder.
func TestLinksOfDocumentsResolve(t *testing.T) {
	documents := []string{"README.md", "ARCHITECTURE.md"}
	err := filepath.WalkDir("docs", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			documents = append(documents, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	for _, document := range documents {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range markdownLink.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(link[1], ":") { // a URL
				continue
			}
			links++
			if _, err := os.Stat(filepath.Join(filepath.Dir(document), link[1])); err != nil {
				t.Errorf("%s links to %s: %v", document, link[1], err)
			}
		}
	}
	if links < 50 {
		t.Errorf("only %d relative links were found", links)
	}
}
