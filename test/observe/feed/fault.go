package feed

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/meterplex/meterplex/test/observe"
)

// Fault is a fault with the scrapes of the service that has it.
type Fault struct {
	Alert string
	// Labels are matchers of the alert, e.g. projection="usage_aggregates".
	Labels string
	// Before, During and After hold the first and the last scrape of a time, or one. After is empty if the fault has no end.
	Before, During, After []Scrape
	// Ages are the metrics that grow with the clock while the fault lasts.
	Ages []string
	// Threshold is the age at which the rule begins to hold.
	Threshold time.Duration
}

// AlertOf returns an alert of the table.
func AlertOf(name string) (observe.Alert, bool) {
	all := observe.Alerts()
	i := slices.IndexFunc(all, func(a observe.Alert) bool { return a.Name == name })
	if i < 0 {
		return observe.Alert{}, false
	}
	return all[i], true
}

// Delay returns how long a condition has to hold before the alert fires.
func Delay(a *observe.Alert) time.Duration { return duration(a.For) }

// settled is the number of steps of a phase behind the longest window.
const settled = 20

var window = regexp.MustCompile(`\[(\d+[mhd])\]|offset (\d+[mhd])|slo_\w+:[a-z]+(\d+[mhd])`)

// duration reads a duration of Prometheus.
func duration(text string) time.Duration {
	units := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}
	if text == "" {
		return 0
	}
	n, _ := strconv.Atoi(text[:len(text)-1])
	return time.Duration(n) * units[text[len(text)-1]]
}

// Test renders the rule of the alert, and the test of rules that it is quiet before the fault, fires during it, and has cleared after it.
func (f *Fault) Test(rulesFile string) (rules, test string, err error) {
	a, known := AlertOf(f.Alert)
	if !known {
		return "", "", fmt.Errorf("%s is no alert", f.Alert)
	}
	exprs := []string{a.Expr}
	var b strings.Builder
	b.WriteString("groups:\n- name: tested\n  rules:\n")
	for _, r := range observe.Records() {
		if strings.Contains(a.Expr, r.Name+" ") {
			b.WriteString(r.YAML())
			exprs = append(exprs, r.Expr)
		}
	}
	b.WriteString(a.YAML())
	longest, step := windows(a.Expr)
	longest += Delay(&a) + f.Threshold
	quiet := int(longest/step) + settled
	steps := []int{quiet, quiet, quiet}
	scrapes := [][]Scrape{f.Before, f.During, f.After}
	if len(f.After) == 0 {
		steps, scrapes = steps[:2], scrapes[:2]
	}
	var metrics []string
	for _, expr := range exprs {
		for _, s := range observe.Selectors(expr) {
			name, _, _ := strings.Cut(s, "{")
			metrics = append(metrics, name)
		}
	}
	all, err := histories(scrapes, metrics, f.Ages, step, steps)
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", f.Alert, err)
	}
	return b.String(), f.render(rulesFile, all, step, steps), nil
}

// windows returns the longest window of a rule, and a step of time that its shortest window has twice.
func windows(expr string) (longest, step time.Duration) {
	step = time.Minute
	shortest := time.Duration(0)
	for _, found := range window.FindAllStringSubmatch(expr, -1) {
		d := duration(found[1] + found[2] + found[3])
		longest = max(longest, d)
		if shortest == 0 || d < shortest {
			shortest = d
		}
	}
	if shortest > 5*time.Minute {
		step = min(shortest/6, time.Hour)
	}
	return longest, step
}

// render renders the test of rules.
func (f *Fault) render(rules string, all []*history, step time.Duration, steps []int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "rule_files: [%s]\nevaluation_interval: %s\ntests:\n- interval: %s\n  input_series:\n", rules, step, step)
	for _, h := range all {
		fmt.Fprintf(&b, "  - series: %s\n    values: %s\n", quote(h.labels), quote(h.text(step, steps)))
	}
	b.WriteString("  promql_expr_test:\n")
	matchers := `alertstate="firing"`
	if f.Labels != "" {
		matchers += "," + f.Labels
	}
	for n, at := 0, 0; n < len(steps); n++ {
		at += steps[n]
		fires := "ALERTS{" + matchers + "}"
		switch n {
		case 0: // its begin looks like that of a new process
			fires = fmt.Sprintf("max_over_time(%s[%s])", fires, time.Duration(settled-1)*step)
		case 1: // at any time
			fires = fmt.Sprintf("max_over_time(%s[%s])", fires, time.Duration(steps[n])*step)
		}
		fmt.Fprintf(&b, "  - expr: %s\n    eval_time: %s\n", quote("group("+fires+")"), time.Duration(at-1)*step)
		if n == 1 {
			b.WriteString("    exp_samples: [{labels: '{}', value: 1}]\n")
		}
	}
	return b.String()
}

// quote returns a string as YAML.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
