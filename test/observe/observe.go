// Package observe holds one table of alerts, SLOs and dashboards. The rules of Prometheus, the dashboards of Grafana and the index of
// runbooks are generated from it by `make generate`. It is no part of the service.
package observe

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Severity is the urgency of an alert.
type Severity string

// Severities.
const (
	Page   Severity = "page"   // wakes the person on call
	Ticket Severity = "ticket" // is read on the next working day
)

// Owners of alerts.
const (
	Service  = "service"  // runs the instances
	Database = "database" // runs PostgreSQL
	Billing  = "billing"  // answers for closed periods, invoices and tenants
)

// Alert is an alert rule. An alert fires for a job of Prometheus: each installation has one.
type Alert struct {
	Name     string
	Severity Severity
	Owner    string
	Symptom  string // one sentence, which the index of runbooks lists
	Expr     string
	For      string // "" fires at once
	Runbook  string // file of docs/runbooks/ with an anchor
}

// Group is a file of alert rules.
type Group struct {
	Name   string
	Title  string
	Alerts []Alert
}

// Alerts returns all alerts in the order of their groups.
func Alerts() (all []Alert) {
	for _, g := range Groups() {
		all = append(all, g.Alerts...)
	}
	return all
}

// Groups lists the alerts. An alert is one entry here, its section of a runbook and its case in the tests of the rules.
func Groups() []Group {
	groups := []Group{slos(), exactness(), outbox(), consumers(), database(), billing()}
	return append(groups, instances(groups))
}

// jobs selects the instances of the service: the name of a job begins with meterplex.
const jobs = `job=~"meterplex.*"`

// selector is a metric with its matchers.
var selector = regexp.MustCompile(`\b((?:meterplex|node)_[a-z0-9_]+)(\{[^}]*\})?`)

// Selectors returns the selectors of exported metrics in an expression.
func Selectors(expr string) (all []string) {
	for _, found := range selector.FindAllString(expr, -1) {
		if !slices.Contains(all, found) {
			all = append(all, found)
		}
	}
	return all
}

// metricsOf returns the names of the service's metrics that expressions use, sorted.
func metricsOf(exprs ...string) (names []string) {
	for _, expr := range exprs {
		for _, s := range Selectors(expr) {
			name, _, _ := strings.Cut(s, "{")
			if strings.HasPrefix(name, "meterplex_") && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// grew is true for window after a counter has grown. A counter of an instance that began within the window has grown if it is not 0: no
// sample from before its growth exists.
func grew(counter, by, window string) string {
	return fmt.Sprintf(`sum by (%[2]s) (increase(%[1]s[%[3]s])) > 0 or sum by (%[2]s) (%[1]s unless %[1]s offset %[3]s) > 0`, counter, by,
		window)
}
