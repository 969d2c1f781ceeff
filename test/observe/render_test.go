package observe

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ruleFile renders a rule as the file of a test.
func ruleFile(rule interface{ YAML() string }) string {
	return "groups:\n- name: tested\n  rules:\n" + rule.YAML()
}

// of is the alert of a case.
func (c *ruleCase) of() *Alert {
	for _, a := range Alerts() {
		if a.Name == c.alert {
			return &a
		}
	}
	return &Alert{}
}

// yaml renders the case as a test in the format of promtool.
func (c *ruleCase) yaml(rules string) string {
	a := c.of()
	var b strings.Builder
	fmt.Fprintf(&b, "rule_files: [%s]\nevaluation_interval: %dm\ntests:\n", rules, c.step)
	for _, s := range c.scenarios {
		fmt.Fprintf(&b, "- interval: %dm\n  input_series:\n", c.step)
		for _, line := range s.series {
			name, values, _ := strings.Cut(line, "} ")
			fmt.Fprintf(&b, "  - series: %s\n    values: %s\n", quote(name+"}"), quote(values))
		}
		b.WriteString("  alert_rule_test:\n")
		for _, check := range s.checks {
			fmt.Fprintf(&b, "  - eval_time: %dm\n    alertname: %s\n", check.at*c.step, c.alert)
			if len(check.fires) > 0 {
				b.WriteString("    exp_alerts:\n")
			}
			for _, labels := range check.fires {
				fmt.Fprintf(&b, "    - exp_labels: {%s}\n      exp_annotations:\n        summary: %s\n        runbook_url: %s\n",
					c.labels(labels, a.Owner), quote(a.Symptom), quote(runbooks+a.Runbook))
			}
		}
	}
	return b.String()
}

// labels renders the labels of an alert: "-" is an alert without a job.
func (c *ruleCase) labels(own, owner string) string {
	all := map[string]string{"severity": c.severity, "owner": owner}
	if own != "-" && !strings.Contains(own, "job=") {
		all["job"] = "meterplex"
	}
	for pair := range strings.SplitSeq(own, ",") {
		if name, value, found := strings.Cut(pair, "="); found {
			all[name] = strings.Trim(value, `"`)
		}
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, fmt.Sprintf("%s: %q", name, all[name]))
	}
	return strings.Join(list, ", ")
}

// alertedMetrics lists the metrics of the service that rules use.
func alertedMetrics() []string {
	exprs := recorded()
	for _, a := range Alerts() {
		exprs = append(exprs, a.Expr)
	}
	return metricsOf(exprs...)
}
