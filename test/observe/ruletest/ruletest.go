// Package ruletest builds and runs the program of tools/ruletest, which evaluates tests of rules by Prometheus' packages. It is for tests
// only.
package ruletest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Tool is the built program.
type Tool struct{ path string }

// Build builds the program, by its module in a folder, into a cache. Only the first build costs a minute of CPU: Go compares the program
// with its module.
func Build(module, cache string) (Tool, error) {
	path := filepath.Join(cache, "ruletest")
	build := exec.Command("go", "-C", module, "build", "-ldflags=-s", "-o", path, "./ruletest")
	build.Env = append(os.Environ(), "GOWORK=off", "GOGC=400")
	if out, err := build.CombinedOutput(); err != nil {
		return Tool{}, fmt.Errorf("ruletest cannot be built. Its modules are fetched once and then cached: connect this machine to the "+
			"Go module proxy and run `go -C test/observe/tools mod download`.\n%w\n%s", err, out)
	}
	return Tool{path}, nil
}

// Run runs the program in a folder, and returns its output. The error holds what it reports.
func (p Tool) Run(folder string, args ...string) ([]byte, error) {
	c := exec.Command(p.path, args...)
	c.Dir, c.Env = folder, append(os.Environ(), "GOGC=400")
	out, err := c.Output()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		err = fmt.Errorf("%w\n%.2000s", err, ended.Stderr)
	}
	return out, err
}

// Test runs tests of rules in a folder, by their file names, and returns the outcome of each: "" or the failure.
func (p Tool) Test(folder string, names []string) (map[string]string, error) {
	out, err := p.Run(folder, append([]string{"test"}, names...)...)
	if err != nil {
		return nil, err
	}
	var failures map[string][]string
	if err := json.Unmarshal(out, &failures); err != nil {
		return nil, fmt.Errorf("%w\n%.2000s", err, out)
	}
	if len(failures) != len(names) {
		return nil, fmt.Errorf("ruletest ran %d of %d tests", len(failures), len(names))
	}
	outcomes := map[string]string{}
	for name, all := range failures {
		outcomes[name] = strings.Join(all, "\n")
	}
	return outcomes, nil
}
