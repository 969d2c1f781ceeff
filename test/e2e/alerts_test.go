package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meterplex/meterplex/infra/local/download"
	"github.com/meterplex/meterplex/internal/must"
	"github.com/meterplex/meterplex/internal/stripetest"
	"github.com/meterplex/meterplex/internal/tier"
	"github.com/meterplex/meterplex/test/observe"
	"github.com/meterplex/meterplex/test/observe/feed"
	"github.com/meterplex/meterplex/test/observe/ruletest"
)

// alerts is a service whose parts a test breaks one after the other, to see that each alert fires for its cause and that its runbook works.
type alerts struct {
	*deployment
	front    *instance      // serves the API, and the commands of runbooks
	targets  []*instance    // that Prometheus scrapes
	frozen   *instance      // does not answer
	relabel  *regexp.Regexp // series that Prometheus drops; nil: none
	url      string         // of front, when it was last scraped
	database string         // the superuser's address
	dir      string         // of the commands of runbooks
	earlier  []feed.Scrape  // before the traffic that the next fault interrupts
	fed      []feed.Fault   // the faults so far

	relay, back     *instance // back aggregates and sends webhooks
	toFront, toBack *proxy    // from the instances to the database
	toBroker        []*proxy
	stripe          *stripetest.Server
	servers         *serverPair
}

// condition compares a scrape with the one before the fault.
type condition func(before, now *feed.Scrape) bool

// alertFault is a fault of a part of the service, the alert that it causes, and the way that the runbook leads.
type alertFault struct {
	alert, labels string // labels are matchers of the alert
	breaks, mends func() // nil: the fault is that of another alert; its remedies end it
	shown, over   condition
	rate          bool                     // the fault goes on as fast as it was measured
	ages          []string                 // selectors of metrics that grow with the clock while the fault lasts
	threshold     time.Duration            // of the ages, if it is more than minutes
	env           []string                 // settings of the runbook's commands
	words         func() map[string]string // of the runbook's commands that stand for an id or a file
	remedies      []string                 // begins of the commands of the runbook's remedy that end the fault
	lasts         bool                     // the alert does not clear by a change of the metrics
}

// TestEveryAlertFiresForItsFault breaks the parts of a service, and of a server with a standby, scrapes the metrics, follows the runbooks,
// and feeds the scrapes to the rules. Only the clock of the rules is simulated.
func TestEveryAlertFiresForItsFault(t *testing.T) {
	tier.AtSize(t)
	t.Parallel()
	// The node exporter, which is no program of the project, reports disks.
	fired := map[string]bool{"MeterplexDiskFull": true, "MeterplexDiskNotWatched": true}
	for _, of := range []func(*testing.T) *alerts{alertsOfTheService, alertsOfTheServer} {
		for _, f := range of(t).fires() {
			fired[f.Alert] = true
		}
	}
	for _, a := range observe.Alerts() {
		if !fired[a.Name] {
			t.Errorf("no fault causes %s", a.Name)
		}
	}
}

// alertsOfTheService breaks parts of three instances, whose connections to the database and to the broker it may cut.
func alertsOfTheService(t *testing.T) *alerts {
	w := &alerts{deployment: newDeployment(t), dir: t.TempDir()}
	w.database = w.sql.Config().ConnString()
	to := func() string { return hostOf(w.db) }
	w.toFront, w.toBack, w.toBroker = newProxy(t, to), newProxy(t, to), newPipeProxies(t, w.brokers().Brokers())
	w.toFront.start()
	w.toBack.start()
	w.stripe = stripetest.New("sk_test_alerts", time.Now().UTC())
	w.stripe.Real = true // the tests of a busy machine last longer than Stripe lets the time of an event be ahead
	t.Cleanup(w.stripe.Close)
	w.stripe.AddMeter(stripetest.Meter{Event: "api_calls"})
	w.front = w.serve("api,projector,commands,sagas,biller,deadletter,validator", "DATABASE_URL="+atHost(w.db, w.toFront.addr()),
		"METERPLEX_STRIPE_KEY=sk_test_alerts", "METERPLEX_STRIPE_URL="+w.stripe.URL, hooksAllowed, "METERPLEX_ROLLBACK_KEEP=1s")
	address := "DATABASE_URL=" + atHost(w.db, w.toBack.addr())
	w.relay = w.serve("relay", address, "KAFKA_BROKERS="+w.toBroker[0].addr())
	w.back = w.serve("aggregator,notifier", address, hooksAllowed)
	w.targets = []*instance{w.front, w.relay, w.back}
	w.catalogue(w.front)
	w.faultsOfFigures()
	w.faultsOfBilling()
	w.faultsOfFolds()
	w.faultsOfThePipe()
	w.faultsOfTheDatabase()
	w.faultsOfProcesses()
	return w
}

// alertsOfTheServer breaks a server of its own, and promotes its standby.
func alertsOfTheServer(t *testing.T) *alerts {
	p := newServerPair(t, "archive_mode", "on", "max_wal_size", "32MB", "min_wal_size", "32MB", "wal_keep_size", "32MB",
		"max_slot_wal_keep_size", "128MB")
	w := &alerts{deployment: newDeploymentAt(t, p.url(), p.adminURL()), dir: t.TempDir(), servers: p, database: p.adminURL()}
	w.pipe = "postgres"
	p.archive("true")
	p.admin(p.primary, `GRANT pg_monitor TO meterplex`)
	w.front = w.serve("")
	w.targets = []*instance{w.front}
	w.catalogue(w.front)
	p.attach()
	p.synchronous(true)
	w.faultsOfTheServer()
	return w
}

// scrape reads the metrics of all targets. A target that is frozen or dead gives no answer.
func (w *alerts) scrape() *feed.Scrape {
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
				if status, body, err := w.call(w.t.Context(), "", http.MethodGet, at+"/metrics", nil); err == nil &&
					status == http.StatusOK {
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

// happen breaks parts together, waits until the metrics show each fault, follows the runbooks, and waits until the metrics show that each
// is over.
func (w *alerts) happen(parts ...*alertFault) {
	w.t.Helper()
	fed := make([]feed.Fault, len(parts))
	began, took := make([]time.Time, len(parts)), make([]time.Duration, len(parts))
	awaitFreshMetrics()
	before := w.scrape()
	earlier := append(w.earlier, *before)
	w.earlier = nil
	for n, b := range parts {
		fed[n] = feed.Fault{Alert: b.alert, Labels: b.labels, Threshold: b.threshold, Before: earlier}
		for _, selector := range b.ages {
			name, _, _ := strings.Cut(selector, "{")
			fed[n].Ages = append(fed[n].Ages, name)
		}
	}
	for n, b := range parts {
		if began[n] = time.Now(); b.breaks != nil {
			b.breaks()
		}
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
	w.fed = append(w.fed, fed...)
}

// aged reports whether the ages that show the fault have grown.
func (b *alertFault) aged(first, now *feed.Scrape) bool {
	for _, selector := range b.ages {
		for series, was := range first.Metric(selector) {
			if v, has := now.Metric(selector)[series]; was > 0 && has && v <= was {
				return false
			}
		}
	}
	return true
}

// await scrapes until a condition has held once for each part.
func (w *alerts) await(condition string, parts []*alertFault, holds func(n int, now *feed.Scrape) bool) {
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

// above holds if a series of a selector is above a bound.
func above(selector string, bound float64) condition {
	return func(_, now *feed.Scrape) bool {
		return slices.ContainsFunc(valuesOf(now, selector), func(v float64) bool { return v > bound })
	}
}

// every holds if each series of a selector is above a bound, and one exists.
func every(selector string, bound float64) condition {
	return func(_, now *feed.Scrape) bool {
		all := valuesOf(now, selector)
		return len(all) > 0 && slices.Min(all) > bound
	}
}

// below holds if each series of a selector is below a bound, and one exists.
func below(selector string, bound float64) condition {
	return func(_, now *feed.Scrape) bool {
		all := valuesOf(now, selector)
		return len(all) > 0 && slices.Max(all) < bound
	}
}

// grown holds if the sum of a counter has grown by more than a bound.
func grown(selector string, by float64) condition {
	return func(before, now *feed.Scrape) bool { return seriesSum(now, selector) > seriesSum(before, selector)+by }
}

func valuesOf(s *feed.Scrape, selector string) []float64 {
	return slices.Collect(maps.Values(s.Metric(selector)))
}

func seriesSum(s *feed.Scrape, selector string) (sum float64) {
	for _, v := range s.Metric(selector) {
		sum += v
	}
	return sum
}

// always holds.
func always(_, _ *feed.Scrape) bool { return true }

// fires feeds the scrapes of all faults to the rules.
func (w *alerts) fires() []feed.Fault {
	w.t.Helper()
	tool, err := ruletest.Build(filepath.Join(repository(), "test", "observe", "tools"), download.CacheDir())
	must.OK(w.t, err)
	folder := w.t.TempDir()
	var names []string
	for n, f := range w.fed {
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
	return w.fed
}

// The intervals at which the metrics of a page are read, and scraped. infra/prometheus reads the state of the database each 2 s, of its
// server each 4 s, and compares the identity each 10 s.
const (
	atOnce       = 0 * time.Second
	stateEach    = 2 * time.Second
	serverEach   = 4 * time.Second
	identityEach = 10 * time.Second
	scrapeEach   = 15 * time.Second
)

// slowest is the time from the fault of a page until its metric passes the threshold: until it is read, and the age that the rule compares
// with.
func slowest() map[string][2]time.Duration {
	return map[string][2]time.Duration{
		// if all requests fail, and as many are sent as before
		"MeterplexSLOBurn14_4": {atOnce, 26 * time.Second}, "MeterplexSLOBurn6": {atOnce, 65 * time.Second},
		"MeterplexIdentityBroken": {identityEach}, "MeterplexLogHole": {5 * time.Second}, "MeterplexProjectionDrift": {stateEach},
		"MeterplexQuotaDrift": {2 * stateEach}, "MeterplexPeriodDrift": {stateEach},
		"MeterplexOutboxStalled": {stateEach, time.Minute}, "MeterplexPartitionWithoutLease": {atOnce},
		"MeterplexProjectionLag": {stateEach, 5 * time.Second}, "MeterplexDeadLetters": {atOnce},
		"MeterplexStateNotRead": {atOnce, time.Minute}, "MeterplexServerReplaced": {serverEach}, "MeterplexStandbyMissing": {serverEach},
		"MeterplexArchiveOld": {serverEach, 5 * time.Minute}, "MeterplexWALRetained": {serverEach}, "MeterplexDiskFull": {atOnce},
		"MeterplexNoInstance": {atOnce}, "MeterplexMetricAbsent": {atOnce},
	}
}

// A page fires within 6 minutes of its fault, those of figures within one.
func TestPagesFireInTime(t *testing.T) {
	document, err := os.ReadFile(filepath.Join(repository(), "docs", "project", "alerts.md"))
	must.OK(t, err)
	for _, g := range observe.Groups() {
		for _, a := range g.Alerts {
			parts, listed := slowest()[a.Name]
			if listed != (a.Severity == observe.Page) {
				t.Errorf("%s is of severity %s; its time is listed: %t", a.Name, a.Severity, listed)
			}
			if !listed {
				continue
			}
			limit := 6 * time.Minute
			if g.Name == "exactness" {
				limit = time.Minute
			}
			took := parts[0] + parts[1] + feed.Delay(&a) + scrapeEach
			if took >= limit {
				t.Errorf("%s fires after %s, and has to within %s", a.Name, took, limit)
			}
			if row := fmt.Sprintf("| %s | %s |", a.Name, took); !strings.Contains(string(document), row) {
				t.Errorf("docs/project/alerts.md has no row %q", row)
			}
		}
	}
}

// Each runbook of an alert has all parts, and a command of its check that runs.
func TestEveryRunbookHasAllParts(t *testing.T) {
	for _, a := range observe.Alerts() {
		parts, err := runbookOf(a.Runbook)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, part := range partsOfRunbooks() {
			if parts[part] == "" {
				t.Errorf("%s: docs/runbooks/%s has no part %q", a.Name, a.Runbook, part)
			}
		}
		if len(commandsOf(parts[checkPart])) == 0 {
			t.Errorf("%s: the check of docs/runbooks/%s has no command", a.Name, a.Runbook)
		}
	}
}

func repository() string { return filepath.Join("..", "..") }
