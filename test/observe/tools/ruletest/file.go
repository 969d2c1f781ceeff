package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v2"
)

// file is a test in the format of promtool. A member of that format which is missing here is an error.
type file struct {
	RuleFiles []string       `yaml:"rule_files"` // relative to the file
	Every     model.Duration `yaml:"evaluation_interval"`
	Tests     []group        `yaml:"tests"`
}

// group is series, and the alerts and values that the rules make of them.
type group struct {
	Step   model.Duration `yaml:"interval"`
	Series []struct {
		Name   string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	Alerts []alertTest `yaml:"alert_rule_test"`
	Exprs  []exprTest  `yaml:"promql_expr_test"`
}

// alertTest is the alerts of a rule that fire at a time: no others do.
type alertTest struct {
	At    model.Duration `yaml:"eval_time"`
	Name  string         `yaml:"alertname"`
	Fires []struct {
		Labels      map[string]string `yaml:"exp_labels"`
		Annotations map[string]string `yaml:"exp_annotations"`
	} `yaml:"exp_alerts"`
}

// exprTest is the value of an expression at a time.
type exprTest struct {
	Expr string         `yaml:"expr"`
	At   model.Duration `yaml:"eval_time"`
	Want []struct {
		Labels string  `yaml:"labels"`
		Value  float64 `yaml:"value"`
	} `yaml:"exp_samples"`
}

func readFile(name string) (*file, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	f := &file{}
	if err := yaml.UnmarshalStrict(text, f); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(f.RuleFiles) == 0 || f.Every <= 0 || len(f.Tests) == 0 {
		return nil, fmt.Errorf("%s has no rules, no interval or no tests", name)
	}
	for i, path := range f.RuleFiles {
		f.RuleFiles[i] = filepath.Join(filepath.Dir(name), path)
	}
	for i, g := range f.Tests {
		if g.Step <= 0 || len(g.Alerts)+len(g.Exprs) == 0 {
			return nil, fmt.Errorf("%s: test %d has no interval or expects nothing", name, i)
		}
	}
	return f, nil
}

// load is the series in the notation of Prometheus' own tests.
func (g *group) load() string {
	var b strings.Builder
	fmt.Fprintf(&b, "load %s\n", g.Step)
	for _, s := range g.Series {
		fmt.Fprintf(&b, "  %s %s\n", s.Name, s.Values)
	}
	return b.String()
}

// end is the last time of the tests.
func (g *group) end() (last time.Duration) {
	for _, a := range g.Alerts {
		last = max(last, time.Duration(a.At))
	}
	for _, e := range g.Exprs {
		last = max(last, time.Duration(e.At))
	}
	return last
}
