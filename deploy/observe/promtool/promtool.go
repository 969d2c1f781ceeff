// Package promtool builds and runs promtool, which tests the rules. It is for tests only.
package promtool

import (
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Tool is a built promtool.
type Tool struct{ path string }

// Build builds promtool, by its module in a folder, into a cache. Only the first build costs minutes of CPU: Go compares the program with its
// module. The tag leaves out clients of clouds that no test needs.
func Build(module, cache string) (Tool, error) {
	path := filepath.Join(cache, "promtool")
	build := exec.Command("go", "-C", module, "build", "-tags=remove_all_sd", "-o", path, "github.com/prometheus/prometheus/cmd/promtool")
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-trimpath")
	if out, err := build.CombinedOutput(); err != nil {
		return Tool{}, fmt.Errorf("promtool cannot be built. Its modules are fetched once and then cached: connect this machine to the Go module proxy and run `go -C deploy/observe/tools mod download`.\n%w\n%s", err, out)
	}
	return Tool{path}, nil
}

// Run runs promtool in a folder.
func (p Tool) Run(folder string, args ...string) (output string, err error) {
	c := exec.Command(p.path, args...)
	c.Dir, c.Env = folder, append(os.Environ(), "GOGC=400")
	out, err := c.CombinedOutput()
	return string(out), err
}

// Test runs tests of rules in a folder, by their file names, and returns the outcome of each: "" or the failure.
func (p Tool) Test(folder string, names []string) (outcomes map[string]string, err error) {
	out, failed := p.Run(folder, append([]string{"test", "rules", "--junit=results.xml"}, names...)...)
	text, err := os.ReadFile(filepath.Join(folder, "results.xml"))
	var results struct {
		Suites []struct {
			Name  string `xml:"name,attr"`
			Cases []struct {
				Failures []string `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err = errors.Join(err, xml.Unmarshal(text, &results)); err != nil {
		return nil, fmt.Errorf("%w: %w\n%.2000s", failed, err, out)
	}
	outcomes = map[string]string{}
	for _, s := range results.Suites {
		failures := ""
		for _, c := range s.Cases {
			failures += strings.Join(c.Failures, "\n")
		}
		outcomes[s.Name] = failures
	}
	if len(outcomes) != len(names) {
		return nil, fmt.Errorf("promtool ran %d of %d tests: %w\n%.2000s", len(outcomes), len(names), failed, out)
	}
	return outcomes, nil
}
