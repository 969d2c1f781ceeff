package http_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/internal/must"
)

// TestRunbooksNamePagesThatExist: a runbook names the page for its check beside the command.
func TestRunbooksNamePagesThatExist(t *testing.T) {
	pages := map[string]bool{}
	for _, r := range http.ConsoleRoutes() {
		pages[r.Path] = r.Method == "GET"
	}
	files, err := filepath.Glob(filepath.Join("..", "docs", "runbooks", "*.md"))
	must.OK(t, err)
	named := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.OK(t, err)
		for _, page := range regexp.MustCompile("`(/console[^`]*)`").FindAllStringSubmatch(string(text), -1) {
			if named++; !pages[page[1]] {
				t.Errorf("%s names %s, which is no page", filepath.Base(file), page[1])
			}
		}
	}
	if named < 20 {
		t.Errorf("only %d pages are named", named)
	}
}
