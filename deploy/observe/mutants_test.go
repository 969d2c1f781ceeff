package observe

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// token matches the parts of an expression that a mutation changes, and those that it passes over.
var token = regexp.MustCompile(`"[^"]*"|[a-zA-Z_][a-zA-Z0-9_:]*|\[\d+[a-z]\]|\d+(?:\.\d+)?[a-z]?|[=!><]=|=~|!~|[<>=]`)

// mutantsOf returns an expression with one part changed at a time: thresholds, windows, operators, matchers and labels.
func mutantsOf(expr string) (all []string) {
	braces, last := 0, 0
	for _, at := range token.FindAllStringIndex(expr, -1) {
		part := expr[at[0]:at[1]]
		braces += strings.Count(expr[last:at[0]], "{") - strings.Count(expr[last:at[0]], "}")
		last = at[1]
		replace := func(by string) { all = append(all, expr[:at[0]]+by+expr[at[1]:]) }
		for _, by := range replacements(part, braces > 0) {
			replace(by)
		}
	}
	return all
}

// replacements returns the mutations of a token.
func replacements(part string, inMatcher bool) []string {
	operators := map[string][]string{">": {">=", "<"}, "<": {"<=", ">"}, ">=": {">", "<"}, "==": {"!="}, "and": {"or"}, "or": {"and"}, "unless": {"and"}, "max": {"min"}, "min": {"max"},
		"increase": {"idelta"}, "rate": {"idelta"}}
	switch {
	case inMatcher && part == "=":
		return []string{"!="}
	case inMatcher && part == "=~":
		return []string{"!~"}
	case inMatcher && strings.HasPrefix(part, `"`):
		return []string{`"x` + part[1:]}
	case inMatcher:
		return nil
	case operators[part] != nil:
		return operators[part]
	case strings.HasPrefix(part, "["):
		return []string{"[" + scaled(part[1:len(part)-1], 2) + "]", "[" + scaled(part[1:len(part)-1], 0.5) + "]"}
	case part == "0":
		return []string{"1", "-1"}
	case regexp.MustCompile(`^\d+$`).MatchString(part):
		n, _ := strconv.Atoi(part)
		return []string{strconv.Itoa(n + 1), strconv.Itoa(n - 1)}
	case regexp.MustCompile(`^\d+\.\d+$`).MatchString(part):
		n, _ := strconv.ParseFloat(part, 64)
		return []string{fmt.Sprint(n * 1.05), fmt.Sprint(n * 0.95)}
	case regexp.MustCompile(`^\d+[a-z]$`).MatchString(part):
		return []string{scaled(part, 2), scaled(part, 0.5)}
	}
	return nil
}

// scaled multiplies a duration of Prometheus.
func scaled(d string, by float64) string {
	unit := map[byte]time.Duration{'m': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}[d[len(d)-1]]
	n, _ := strconv.Atoi(d[:len(d)-1])
	return fmt.Sprintf("%ds", int(float64(n)*by*unit.Seconds()))
}

// changed returns the alert of a case with one member changed at a time.
func changed(a Alert) (all []Alert) {
	for _, expr := range mutantsOf(a.Expr) {
		b := a
		b.Expr = expr
		all = append(all, b)
	}
	delays := []string{"5m"}
	if a.For != "" {
		if delays = []string{"", scaled(a.For, 2)}; a.For != "1m" { // the step of the tests
			delays = append(delays, scaled(a.For, 0.5))
		}
	}
	for _, d := range delays {
		b := a
		b.For = d
		all = append(all, b)
	}
	b, c := a, a
	if b.Severity = Ticket; a.Severity == Ticket {
		b.Severity = Page
	}
	c.Owner = "nobody"
	return append(all, b, c)
}

// failed finds the names of rules in the failures of ruletest.
var failed = regexp.MustCompile(`\b[Mm]utant:?\d+\b`)

// TestEveryChangeOfARuleIsCaught changes thresholds, windows, operators, matchers, delays and labels of each rule, one at a time: the tests of the rule fail.
// All changes of a rule are rules of one test.
func TestEveryChangeOfARuleIsCaught(t *testing.T) {
	folder := t.TempDir()
	var names []string
	mutants := map[string][]string{} // names in the tests, by the mutant
	number := 0
	add := func(rules, test string) {
		name := fmt.Sprintf("m%d.yaml", len(names))
		write(t, folder, "rules-"+name, rules)
		write(t, folder, name, strings.Replace(test, "RULES", "rules-"+name, 1))
		names = append(names, name)
	}
	all := cases()
	for i := range all {
		c := &all[i]
		var alerts []Alert
		var called []string
		of := *c.of()
		if c.alert == absentAlert { // its parts differ in the metric only
			of.Expr, _, _ = strings.Cut(of.Expr, " or ")
			*c = firstAbsent()
		}
		for _, m := range changed(of) {
			description := fmt.Sprintf("%s: %s for %q, %s, %s", m.Name, m.Expr, m.For, m.Severity, m.Owner)
			number++
			m.Name = fmt.Sprintf("Mutant%d", number)
			alerts, called, mutants[description] = append(alerts, m), append(called, m.Name), append(mutants[description], m.Name)
		}
		add(rules(alerts...), c.yaml("RULES", called...))
	}
	for _, c := range recordCases() {
		var records []Record
		var called []string
		for _, expr := range mutantsOf(c.Expr) {
			description := c.Name + " " + c.SLO + ": " + expr
			number++
			m := Record{fmt.Sprintf("mutant:%d", number), c.SLO, expr}
			records, called, mutants[description] = append(records, m), append(called, m.Name), append(mutants[description], m.Name)
		}
		add(recordRules(records...), c.yaml("RULES", called...))
	}
	caught := map[string]bool{}
	for _, failure := range testRules(t, folder, names) {
		for _, name := range failed.FindAllString(failure, -1) {
			caught[name] = true
		}
	}
	for mutant, called := range mutants {
		if !slices.ContainsFunc(called, func(name string) bool { return caught[name] }) {
			t.Errorf("not caught: %s", mutant)
		}
	}
	t.Logf("%d changes of rules", len(mutants))
}
