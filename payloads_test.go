package meterplex

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// uncheckedLogs are the tests whose logs may write payloads that no schema describes.
var uncheckedLogs = map[string]string{
	"infra/postgres/main_test.go": "writes one event, for the tests of connections",
	"infra/relay/child_test.go":   "another process, which writes no event",
}

// TestEveryLogOfATestChecksItsPayloads: each log that a test opens compares the payloads that it writes with
// their schemas.
func TestEveryLogOfATestChecksItsPayloads(t *testing.T) {
	logs := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") || uncheckedLogs[path] != "" {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			config, ok := n.(*ast.CompositeLit)
			if !ok || !isLogConfig(config.Type, strings.HasPrefix(path, "infra/postgres/eventlog/")) {
				return true
			}
			logs++
			if !hasMember(config, "Written") {
				t.Errorf("%s: a log does not check its payloads: set Written to localtest.CheckPayloads(t).Written", path)
			}
			return true
		})
		return nil
	})
	if err != nil || logs < 10 {
		t.Fatalf("%d logs: %v", logs, err)
	}
}

// isLogConfig reports whether a type is eventlog.Config; within is true in its own package.
func isLogConfig(of ast.Expr, within bool) bool {
	switch of := of.(type) {
	case *ast.Ident:
		return within && of.Name == "Config"
	case *ast.SelectorExpr:
		from, ok := of.X.(*ast.Ident)
		return ok && from.Name == "eventlog" && of.Sel.Name == "Config"
	}
	return false
}

func hasMember(of *ast.CompositeLit, name string) bool {
	for _, e := range of.Elts {
		if member, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := member.Key.(*ast.Ident); ok && key.Name == name {
				return true
			}
		}
	}
	return false
}
