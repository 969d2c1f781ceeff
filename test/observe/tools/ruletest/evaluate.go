package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

// testFile returns the failures of a file's tests.
func testFile(name string) []string {
	f, err := readFile(name)
	if err != nil {
		return []string{err.Error()}
	}
	var failures []string
	for i := range f.Tests {
		r := &running{group: &f.Tests[i], every: time.Duration(f.Every), parser: parser.NewParser(parser.Options{})}
		if err := r.run(f.RuleFiles); err != nil {
			r.failures = append(r.failures, err.Error())
		}
		for _, failure := range r.failures {
			failures = append(failures, fmt.Sprintf("test %d: %s", i, failure))
		}
	}
	return failures
}

// running is a group whose rules are evaluated.
type running struct {
	*group
	every    time.Duration
	parser   parser.Parser
	series   *promqltest.LazyLoader
	loaded   map[string]*rules.Group
	failures []string
}

func (r *running) run(ruleFiles []string) (err error) {
	r.series, err = promqltest.NewLazyLoader(r.load(), promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.series.Close()) }()
	r.series.SubqueryInterval = r.every
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc:  rules.EngineQueryFunc(r.series.QueryEngine(), r.series.Storage()),
		Appendable: r.series.Storage(),
		Context:    context.Background(),
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
		Logger:     slog.New(slog.DiscardHandler),
		Parser:     r.parser,
	})
	var errs []error
	if r.loaded, errs = manager.LoadGroups(time.Duration(r.Step), labels.EmptyLabels(), "", nil, false, ruleFiles...); len(errs) > 0 {
		return errors.Join(errs...)
	}
	r.alerting(func(a *rules.AlertingRule) { a.SetRestored(true) }) // without it, the rule makes no series of its alerts
	if err := r.evaluate(); err != nil {
		return err
	}
	for _, e := range r.Exprs {
		if err := r.checkExpr(e); err != nil {
			r.failures = append(r.failures, fmt.Sprintf("%s at %s: %v", e.Expr, e.At, err))
		}
	}
	return nil
}

// alerting calls a function for each rule that is an alert.
func (r *running) alerting(do func(*rules.AlertingRule)) {
	for _, g := range r.loaded {
		for _, rule := range g.Rules() {
			if a, ok := rule.(*rules.AlertingRule); ok {
				do(a)
			}
		}
	}
}

// evaluate evaluates the rules from the time 0 to the end, and compares the alerts.
func (r *running) evaluate() (err error) {
	for at := time.Duration(0); at <= r.end(); at += r.every {
		now := time.Unix(0, 0).UTC().Add(at)
		r.series.WithSamplesTill(now, func(unread error) {
			if err = unread; err != nil {
				return
			}
			for _, g := range r.loaded {
				g.Eval(r.series.Context(), now)
				for _, rule := range g.Rules() {
					if failed := rule.LastError(); failed != nil {
						err = errors.Join(err, fmt.Errorf("%s at %s: %w", rule.Name(), at, failed))
					}
				}
			}
		})
		if err != nil {
			return err
		}
		r.checkAlerts(at)
	}
	return nil
}

// checkAlerts compares the alerts of the tests from this evaluation to the next one.
func (r *running) checkAlerts(at time.Duration) {
	firing := map[string][]string{}
	r.alerting(func(rule *rules.AlertingRule) {
		for _, a := range rule.ActiveAlerts() {
			if a.State == rules.StateFiring {
				firing[rule.Name()] = append(firing[rule.Name()], a.Labels.String()+" "+a.Annotations.String())
			}
		}
	})
	for _, c := range r.Alerts {
		if when := time.Duration(c.At); when < at || when >= at+r.every {
			continue
		}
		var want []string
		for _, f := range c.Fires {
			all := map[string]string{labels.AlertName: c.Name}
			for name, value := range f.Labels {
				all[name] = value
			}
			want = append(want, labels.FromMap(all).String()+" "+labels.FromMap(f.Annotations).String())
		}
		got := firing[c.Name]
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			r.failures = append(r.failures, fmt.Sprintf("%s at %s: fires %q, want %q", c.Name, c.At, got, want))
		}
	}
}

func (r *running) checkExpr(e exprTest) error {
	query, err := r.series.QueryEngine().NewInstantQuery(r.series.Context(), r.series.Queryable(), nil, e.Expr,
		time.Unix(0, 0).UTC().Add(time.Duration(e.At)))
	if err != nil {
		return err
	}
	defer query.Close()
	result := query.Exec(r.series.Context())
	vector, err := result.Vector()
	if err != nil {
		return err
	}
	var want promql.Vector
	for _, s := range e.Want {
		metric, err := r.parser.ParseMetric(s.Labels)
		if err != nil {
			return err
		}
		want = append(want, promql.Sample{Metric: metric, F: s.Value})
	}
	got, wanted := samples(vector), samples(want)
	if !slices.Equal(got, wanted) {
		return fmt.Errorf("%q, want %q", got, wanted)
	}
	return nil
}

// samples renders samples without their times, in order.
func samples(v promql.Vector) (all []string) {
	for _, s := range v {
		text := fmt.Sprintf("%s %v", s.Metric, s.F)
		if s.H != nil {
			text = fmt.Sprintf("%s %s", s.Metric, s.H)
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return all
}
