package observe

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/internal/must"
)

var update = flag.Bool("update", false, "write the files")

// root is the root of the repository.
const root = "../.."

func TestTheFilesHoldTheTable(t *testing.T) {
	files := Files()
	for path, want := range files {
		at := filepath.Join(root, path)
		if *update {
			must.OK(t, os.MkdirAll(filepath.Dir(at), 0o755))
			must.OK(t, os.WriteFile(at, []byte(want), 0o644))
			continue
		}
		if got, err := os.ReadFile(at); err != nil || string(got) != want {
			t.Errorf("%s is not as the table says (%v): run make generate", path, err)
		}
	}
	for _, folder := range []string{"rules", "dashboards"} {
		found, err := filepath.Glob(folder + "/*")
		must.OK(t, err)
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
		if !strings.HasPrefix(a.Name, "Meterplex") || a.Severity != Page && a.Severity != Ticket ||
			!slices.Contains([]string{Service, Database, Billing}, a.Owner) {
			t.Errorf("%+v", a)
		}
		if !strings.HasSuffix(a.Symptom, ".") || strings.Contains(a.Expr, "tenant_id") ||
			len(Selectors(a.Expr)) == 0 && !strings.Contains(a.Expr, "meterplex:") && !strings.Contains(a.Expr, "up{") {
			t.Errorf("%s: %s %s", a.Name, a.Symptom, a.Expr)
		}
	}
}
