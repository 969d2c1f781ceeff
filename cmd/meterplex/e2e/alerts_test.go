package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/deploy/observe/feed"
	"github.com/meterplex/meterplex/deploy/observe/ruletest"
	"github.com/meterplex/meterplex/infra/local/download"
	"github.com/meterplex/meterplex/internal/must"
)

// alertsTest is a service whose parts a test breaks one after the other, to see that each alert fires for its cause and that its runbook works.
type alertsTest struct {
	*deployment
	front    *instance      // serves the API, and the commands of runbooks
	targets  []*instance    // that Prometheus scrapes
	frozen   *instance      // does not answer
	relabel  *regexp.Regexp // series that Prometheus drops; nil: none
	url      string         // of front, when it was last scraped
	database string         // the superuser's address
	dir      string         // of the commands of runbooks
	fed      *fedFaults
}

// fedFaults are the faults so far.
type fedFaults struct {
	mu         sync.Mutex
	all        []feed.Fault
	aggregates sync.Mutex // of faults in usage_aggregates: a repair of all tenants mends those of another group, too
}

// group runs faults as a test of its own. It may run beside other groups, but not as a parallel test: such a test would begin behind all that
// wait for their turn, and the rest of the caller would run after them, alone.
func (w *alertsTest) group(t *testing.T, name string, do func(w *alertsTest)) {
	t.Run(name, func(t *testing.T) {
		d := w.deployment
		do(&alertsTest{&deployment{t: t, db: d.db, prefix: d.prefix, pipe: d.pipe, operator: d.operator, sql: d.sql, http: d.http, cluster: d.cluster}, w.front, w.targets, nil, nil, "", w.database, w.dir, w.fed})
	})
}

// brokenPart is a fault of a part of the service, the alert that it causes, and the way that the runbook leads.
type brokenPart struct {
	alert, labels string // labels are matchers of the alert
	quiet         func() // traffic before the fault, for rules that compare rates; nil: none
	breaks        func()
	shown         func(before, now *feed.Scrape) bool // the metrics show the fault
	rate          bool                                // the fault goes on as fast as it was measured
	ages          []string                            // selectors of metrics that grow with the clock while the fault lasts
	threshold     time.Duration                       // of the ages, if it is more than minutes
	env           []string                            // settings of the runbook's commands
	words         map[string]string                   // the words of the runbook's commands that stand for an id or a file
	known         func() map[string]string            // words that are known once the fault is shown; nil: none
	remedies      []string                            // begins of the commands of the runbook's remedy that end the fault
	mends         func()                              // a remedy that is no command; nil: none
	over          func(before, now *feed.Scrape) bool // the metrics show that it is over; nil: they do not show the fault
	lasts         bool                                // the alert does not clear by a change of the metrics
}

// scrape reads the metrics of all targets. A target that is frozen or dead gives no answer.
func (w *alertsTest) scrape() *feed.Scrape {
	w.t.Helper()
	if at := w.front.url(); at != "" {
		w.url = at
	}
	s := &feed.Scrape{At: time.Now(), Instances: map[string]string{}}
	var mu sync.Mutex
	var wait sync.WaitGroup
	for _, i := range w.targets {
		s.Instances[i.name] = ""
		if at := i.health(); at != "" && i.alive() && w.frozen != i {
			wait.Go(func() {
				if status, body, err := w.call(w.t.Context(), "", http.MethodGet, at+"/metrics", nil); err == nil && status == http.StatusOK {
					mu.Lock()
					defer mu.Unlock()
					if w.relabel != nil {
						body = w.relabel.ReplaceAll(body, nil)
					}
					s.Instances[i.name] = string(body)
				}
			})
		}
	}
	wait.Wait()
	return s
}

// happen breaks parts together, waits until the metrics show each fault, follows the runbooks, and waits until the metrics show that each is over.
func (w *alertsTest) happen(parts ...*brokenPart) {
	w.t.Helper()
	fed := make([]feed.Fault, len(parts))
	began, took := make([]time.Time, len(parts)), make([]time.Duration, len(parts))
	awaitFreshMetrics()
	before := w.scrape()
	earlier := []feed.Scrape{*before}
	for _, b := range parts {
		if b.quiet != nil {
			b.quiet()
			awaitFreshMetrics()
			before = w.scrape()
			earlier = append(earlier, *before)
		}
	}
	for n, b := range parts {
		fed[n] = feed.Fault{Alert: b.alert, Labels: b.labels, Ages: b.metrics(), Threshold: b.threshold, Before: earlier}
	}
	for n, b := range parts {
		began[n] = time.Now()
		b.breaks()
	}
	w.await("shown", parts, func(n int, now *feed.Scrape) bool {
		b, f := parts[n], &fed[n]
		switch {
		case len(f.During) == 0 && b.shown(before, now):
			took[n] = now.At.Sub(began[n])
			if b.rate {
				f.During = append(f.During, *before)
			}
			f.During = append(f.During, *now)
			return len(b.ages) == 0
		case len(f.During) > 0 && b.aged(&f.During[0], now):
			f.During = append(f.During, *now)
			return true
		}
		return false
	})
	for n, b := range parts {
		w.t.Logf("%s: the metrics showed the fault after %s", b.alert, took[n].Round(100*time.Millisecond))
		if b.known != nil {
			b.words = b.known()
		}
		w.check(b)
	}
	for _, b := range parts {
		w.mend(b)
	}
	for _, b := range parts {
		w.isOver(b)
	}
	awaitFreshMetrics()
	w.await("over", parts, func(n int, now *feed.Scrape) bool {
		b := parts[n]
		ended := b.over != nil && b.over(before, now) || b.over == nil && !b.shown(before, now)
		if ended = ended || b.lasts; ended && !b.lasts {
			fed[n].After = []feed.Scrape{*now}
		}
		return ended
	})
	w.fed.mu.Lock()
	defer w.fed.mu.Unlock()
	w.fed.all = append(w.fed.all, fed...)
}

// aged reports whether the ages that show the fault have grown.
func (b *brokenPart) aged(first, now *feed.Scrape) bool {
	for _, selector := range b.ages {
		for series, was := range first.Metric(selector) {
			if v, has := now.Metric(selector)[series]; was > 0 && has && v <= was {
				return false
			}
		}
	}
	return true
}

// metrics returns the names of the ages.
func (b *brokenPart) metrics() (names []string) {
	for _, selector := range b.ages {
		name, _, _ := strings.Cut(selector, "{")
		names = append(names, name)
	}
	return names
}

// await scrapes until a condition has held once for each part.
func (w *alertsTest) await(condition string, parts []*brokenPart, holds func(n int, now *feed.Scrape) bool) {
	w.t.Helper()
	open := map[int]bool{}
	for n := range parts {
		open[n] = true
	}
	within(w.t, "all faults are "+condition, func(context.Context) (bool, string) {
		now := w.scrape()
		var wait []string
		for n, b := range parts {
			if open[n] && holds(n, now) {
				delete(open, n)
			}
			if open[n] {
				wait = append(wait, b.alert)
				for _, selector := range b.ages {
					wait = append(wait, fmt.Sprint(now.Metric(selector)))
				}
			}
		}
		if len(open) > 0 {
			time.Sleep(scrapeAge / 4)
		}
		return len(open) == 0, fmt.Sprint(wait)
	})
}

// Conditions on metrics.

// above holds if a series of a selector is above a bound.
func above(selector string, bound float64) func(_, now *feed.Scrape) bool {
	return func(_, now *feed.Scrape) bool {
		for _, v := range now.Metric(selector) {
			if v > bound {
				return true
			}
		}
		return false
	}
}

// every holds if each series of a selector is above a bound, and one exists.
func every(selector string, bound float64) func(_, now *feed.Scrape) bool {
	return func(_, now *feed.Scrape) bool {
		all := valuesOfSeries(now, selector)
		return len(all) > 0 && slices.Min(all) > bound
	}
}

// below holds if each series of a selector is below a bound, and one exists.
func below(selector string, bound float64) func(_, now *feed.Scrape) bool {
	return func(before, now *feed.Scrape) bool {
		return len(now.Metric(selector)) > 0 && !above(selector, bound)(before, now) && !slices.Contains(valuesOfSeries(now, selector), bound)
	}
}

// grown holds if the sum of a counter has grown.
func grown(selector string) func(before, now *feed.Scrape) bool {
	return func(before, now *feed.Scrape) bool { return sumOfSeries(now, selector) > sumOfSeries(before, selector) }
}

func valuesOfSeries(s *feed.Scrape, selector string) (all []float64) {
	for _, v := range s.Metric(selector) {
		all = append(all, v)
	}
	return all
}

func sumOfSeries(s *feed.Scrape, selector string) (sum float64) {
	for _, v := range valuesOfSeries(s, selector) {
		sum += v
	}
	return sum
}

// always holds.
func always(_, _ *feed.Scrape) bool { return true }

// fires feeds the scrapes of all faults to the rules.
func (w *alertsTest) fires() {
	w.t.Helper()
	tool, err := ruletest.Build(filepath.Join(repository(), "deploy", "observe", "tools"), download.CacheDir())
	must.OK(w.t, err)
	folder := w.t.TempDir()
	var names []string
	for n, f := range w.fed.all {
		name := fmt.Sprintf("%s-%d", f.Alert, n)
		rules, test, err := f.Test(name + "-rules.yaml")
		if err != nil {
			w.t.Error(err)
			continue
		}
		for file, text := range map[string]string{name + "-rules.yaml": rules, name + ".yaml": test} {
			must.OK(w.t, os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600))
		}
		names = append(names, name+".yaml")
	}
	outcomes, err := tool.Test(folder, names)
	must.OK(w.t, err)
	for _, name := range names {
		if failure := outcomes[name]; failure != "" {
			w.t.Errorf("%s: %.3000s", strings.TrimSuffix(name, ".yaml"), failure)
		}
	}
}

// checkCovered checks that the faults of the test have caused the alerts that the table names for it.
func (w *alertsTest) checkCovered() {
	w.t.Helper()
	for alert, by := range causesOfAlerts() {
		caused := slices.ContainsFunc(w.fed.all, func(f feed.Fault) bool { return f.Alert == alert })
		if caused != (by.test == w.t.Name()) {
			w.t.Errorf("%s: a fault of %s caused it: %t; the table names %q", alert, w.t.Name(), caused, by.test)
		}
	}
}

func repository() string { return filepath.Join("..", "..", "..") }
