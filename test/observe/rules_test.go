package observe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/meterplex/meterplex/infra/local/download"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/test/observe/ruletest"
)

// built builds ruletest into the cache of this machine.
var built = sync.OnceValues(func() (ruletest.Tool, error) { return ruletest.Build("tools", download.CacheDir()) })

// builtFor is built for a test.
func builtFor(t *testing.T) ruletest.Tool {
	t.Helper()
	p, err := built()
	must.OK(t, err)
	return p
}

// write writes a file into a folder.
func write(t *testing.T, folder, name, text string) {
	t.Helper()
	must.OK(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644))
}

// The rules and the expressions of the dashboards parse.
func TestRulesAndDashboardsParse(t *testing.T) {
	tier.AtSize(t)
	folder := t.TempDir()
	names := []string{"check"}
	for path, text := range Files() {
		if name, found := strings.CutPrefix(path, "deploy/observe/rules/"); found {
			write(t, folder, name, text)
			names = append(names, name)
		}
	}
	var b strings.Builder
	b.WriteString("groups:\n- name: dashboards\n  rules:\n")
	for _, d := range Dashboards() {
		for i, p := range d.Panels {
			for j, q := range p.Exprs {
				record := Record{Name: fmt.Sprintf("panel:%s_%d_%d", d.Name, i, j), SLO: "x", Expr: q.Expr}
				b.WriteString(record.YAML())
			}
		}
	}
	write(t, folder, "dashboards.yaml", b.String())
	if _, err := builtFor(t).Run(folder, append(names, "dashboards.yaml")...); err != nil {
		t.Error(err)
	}
}

// Every alert fires, does not fire just below its threshold, and clears.
func TestRules(t *testing.T) {
	tier.AtSize(t)
	folder := t.TempDir()
	tested := map[string]bool{}
	var names []string
	for i, c := range cases() {
		name := fmt.Sprintf("%s-%d", c.alert, i)
		write(t, folder, name+"-rules.yaml", ruleFile(c.of()))
		write(t, folder, name+".yaml", c.yaml(name+"-rules.yaml"))
		names, tested[c.alert] = append(names, name+".yaml"), true
	}
	for i, r := range recordCases() {
		name := fmt.Sprintf("%s-%s-%d", strings.ReplaceAll(r.Name, ":", "-"), r.SLO, i)
		write(t, folder, name+"-rules.yaml", ruleFile(&r.Record))
		write(t, folder, name+".yaml", r.yaml(name+"-rules.yaml"))
		names = append(names, name+".yaml")
	}
	outcomes, err := builtFor(t).Test(folder, names)
	must.OK(t, err)
	for name, failure := range outcomes {
		if failure != "" {
			t.Errorf("%s: %.3000s", name, failure)
		}
	}
	for _, a := range Alerts() {
		if !tested[a.Name] {
			t.Errorf("%s has no case", a.Name)
		}
	}
}
