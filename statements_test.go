package meterplex

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// eachText calls f with each string of the service's code and each of its SQL files, but not
// with struct tags, tests and migrations.
func eachText(t *testing.T, f func(path, text string)) {
	t.Helper()
	seen := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "migrations/") ||
			strings.HasPrefix(path, "internal/projectionstest/") {
			return err
		}
		switch filepath.Ext(path) {
		case ".sql":
			raw, err := os.ReadFile(path)
			f(path, string(raw))
			return err
		case ".go":
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.Field:
					n.Tag = nil
				case *ast.BasicLit:
					if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
						seen++
						f(path, text)
					}
				}
				return true
			})
		}
		return nil
	})
	if err != nil || seen < 5000 {
		t.Errorf("%d strings were looked at, %v", seen, err)
	}
}

// numbered is a topic or subject given by its number. 0 is no topic.
var numbered = regexp.MustCompile(`\b(topic|subject) *(=|<>|<|>|<=|>=|IN|NOT IN) *\(?[1-9]|topic_positions\[[1-9][0-9]*\]`)

// A statement names topics and subjects (events.SQL); meterplex verify shares no code with the
// service, and so has its own numbers.
func TestStatementsNameTopicsAndSubjects(t *testing.T) {
	eachText(t, func(path, text string) {
		if found := numbered.FindString(text); found != "" && !strings.HasPrefix(path, "verify/") {
			t.Errorf("%s: %q: write the name in braces, and the statement as events.SQL(…)", path, found)
		}
	})
}

// A projection's name is a literal in its own folder, in projections/projection.go and in
// meterplex verify only: elsewhere a fourth projection would be forgotten.
func TestProjectionsAreNamedInTheirFoldersOnly(t *testing.T) {
	folders := map[string]string{"usage_aggregates": "projections/usage/", "entitlement_reads": "projections/entitlements/",
		"dead_letter_events": "projections/deadletters/",
		"usage_series":       "projections/series/", "usage_refusals": "projections/refusals/"}
	eachText(t, func(path, text string) {
		for name, folder := range folders {
			named := text == name || strings.Contains(text, "'"+name+"'")
			if named && !strings.HasPrefix(path, folder) && !strings.HasPrefix(path, "verify/") && path != "projections/projection.go" {
				t.Errorf("%s names %s in %.80q", path, name, text)
			}
		}
	})
}

var written = regexp.MustCompile(
	`(?m)\b(?:INSERT INTO|UPDATE|DELETE FROM|MERGE INTO|TRUNCATE|COPY) +([a-z]+_[a-z_]+|tenants|features|plans|prices|subscriptions|replays|sagas)\b`)

// Each table is written by one package. The others call it, within their transaction.
func TestEachTableHasOneWriter(t *testing.T) {
	writers := map[string]map[string]bool{}
	eachText(t, func(path, text string) {
		folder := filepath.Dir(path)
		if strings.HasPrefix(folder, "test/") || folder == "internal/localtest" {
			return // no part of the service
		}
		for _, match := range written.FindAllStringSubmatch(text, -1) {
			if writers[match[1]] == nil {
				writers[match[1]] = map[string]bool{}
			}
			writers[match[1]][folder] = true
		}
	})
	if len(writers) < 25 {
		t.Errorf("only %d tables are written", len(writers))
	}
	for table, folders := range writers {
		if len(folders) > 1 {
			t.Errorf("%s is written by %q", table, slices.Sorted(maps.Keys(folders)))
		}
	}
}
