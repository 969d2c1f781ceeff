package observe

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the files")

// root is the root of the repository.
const root = "../.."

func TestTheFilesHoldTheTable(t *testing.T) {
	files := Files()
	for path, want := range files {
		at := filepath.Join(root, path)
		if *update {
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if got, err := os.ReadFile(at); err != nil || string(got) != want {
			t.Errorf("%s is not as the table says (%v): run make generate", path, err)
		}
	}
	for _, folder := range []string{"rules", "dashboards"} {
		found, err := filepath.Glob(folder + "/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range found {
			if path := "deploy/observe/" + filepath.ToSlash(at); files[path] == "" {
				t.Errorf("%s is of no entry of the table", path)
			}
		}
	}
}

// Every alert has a severity, an owner, a symptom and an expression.
func TestEveryAlertIsComplete(t *testing.T) {
	names := map[string]bool{}
	for _, a := range Alerts() {
		if names[a.Name] {
			t.Errorf("%s exists twice", a.Name)
		}
		names[a.Name] = true
		if !strings.HasPrefix(a.Name, "Meterplex") || a.Severity != Page && a.Severity != Ticket || !slices.Contains([]string{Service, Database, Billing}, a.Owner) {
			t.Errorf("%+v", a)
		}
		if !strings.HasSuffix(a.Symptom, ".") || strings.Contains(a.Expr, "tenant_id") || len(Selectors(a.Expr)) == 0 && !strings.Contains(a.Expr, "meterplex:") && !strings.Contains(a.Expr, "up{") {
			t.Errorf("%s: %s %s", a.Name, a.Symptom, a.Expr)
		}
	}
}

// anchorOf is the anchor of a heading on GitHub.
func anchorOf(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Every alert's runbook exists, and every runbook is in the index.
func TestEveryAlertHasItsRunbook(t *testing.T) {
	folder := filepath.Join(root, "docs", "runbooks")
	anchors := map[string]bool{}
	pages, err := filepath.Glob(filepath.Join(folder, "*.md"))
	if err != nil || len(pages) < 6 {
		t.Fatal(pages, err)
	}
	indexed := Files()["docs/runbooks/README.md"]
	for _, page := range pages {
		name := filepath.Base(page)
		if name != "README.md" && !strings.Contains(indexed, "("+name) {
			t.Errorf("%s is not in the index", name)
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		anchors[name] = true
		for line := range strings.Lines(string(text)) {
			if heading, found := strings.CutPrefix(line, "## "); found {
				anchors[name+"#"+anchorOf(strings.TrimSpace(heading))] = true
			}
		}
	}
	used := map[string]bool{}
	for _, a := range Alerts() {
		used[a.Runbook] = true
		if !anchors[a.Runbook] {
			t.Errorf("%s: docs/runbooks/%s does not exist; there are %v", a.Name, a.Runbook, slices.Sorted(maps.Keys(anchors)))
		}
	}
}
