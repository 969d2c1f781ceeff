package observe

import (
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/meterplex/meterplex/infra/local"
)

// promtool builds promtool into the cache of this machine. Only the first build costs minutes of CPU: Go compares the program with its
// module. The tag leaves out clients of clouds that no test needs.
var promtool = sync.OnceValues(func() (string, error) {
	path := filepath.Join(local.CacheDir(), "promtool")
	build := exec.Command("go", "-C", "tools", "build", "-tags=remove_all_sd", "-o", path, "github.com/prometheus/prometheus/cmd/promtool")
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-trimpath")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// run runs promtool in a folder.
func run(t *testing.T, folder string, args ...string) (output string, err error) {
	t.Helper()
	path, err := promtool()
	if err != nil {
		t.Fatalf("promtool cannot be built. Its modules are fetched once and then cached: connect this machine to the Go module proxy and run `go -C deploy/observe/tools mod download`.\n%v", err)
	}
	c := exec.Command(path, args...)
	c.Dir, c.Env = folder, append(os.Environ(), "GOGC=400")
	out, err := c.CombinedOutput()
	return string(out), err
}

// write writes a file into a folder.
func write(t *testing.T, folder, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// testRules runs tests of rules, by their file names, and returns the outcome of each: "" or the failure.
func testRules(t *testing.T, folder string, names []string) map[string]string {
	t.Helper()
	out, err := run(t, folder, append([]string{"test", "rules", "--junit=results.xml"}, names...)...)
	text, unread := os.ReadFile(filepath.Join(folder, "results.xml"))
	var results struct {
		Suites []struct {
			Name  string `xml:"name,attr"`
			Cases []struct {
				Failures []string `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if unread = errors.Join(unread, xml.Unmarshal(text, &results)); unread != nil {
		t.Fatalf("%v: %v\n%.2000s", err, unread, out)
	}
	outcomes := map[string]string{}
	for _, s := range results.Suites {
		failures := ""
		for _, c := range s.Cases {
			failures += strings.Join(c.Failures, "\n")
		}
		outcomes[s.Name] = failures
	}
	if len(outcomes) != len(names) {
		t.Fatalf("promtool ran %d of %d tests: %v\n%.2000s", len(outcomes), len(names), err, out)
	}
	return outcomes
}

// The rules and the expressions of the dashboards parse.
func TestRulesAndDashboardsParse(t *testing.T) {
	folder := t.TempDir()
	names := []string{"check", "rules"}
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
	if out, err := run(t, folder, append(names, "dashboards.yaml")...); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Every alert fires, does not fire just below its threshold, and clears.
func TestRules(t *testing.T) {
	folder := t.TempDir()
	tested := map[string]bool{}
	var names []string
	for i, c := range cases() {
		name := fmt.Sprintf("%s-%d", c.alert, i)
		write(t, folder, name+"-rules.yaml", rules(*c.of()))
		write(t, folder, name+".yaml", c.yaml(name+"-rules.yaml", c.alert))
		names, tested[c.alert] = append(names, name+".yaml"), true
	}
	for i, r := range recordCases() {
		name := fmt.Sprintf("%s-%s-%d", strings.ReplaceAll(r.Name, ":", "-"), r.SLO, i)
		write(t, folder, name+"-rules.yaml", recordRules(r.Record))
		write(t, folder, name+".yaml", r.yaml(name+"-rules.yaml", r.Name))
		names = append(names, name+".yaml")
	}
	for name, failure := range testRules(t, folder, names) {
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
