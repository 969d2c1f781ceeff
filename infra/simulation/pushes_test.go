package simulation

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

const (
	pushSteps = 40
	pushSeeds = 2000
)

// TestP8_InterleavedPushesAgreeWithTheProvider runs the pushes of a tenant in 2,000 orders: closes, reopenings, approvals, changes of the customer, retries and resolutions of
// operators, comparisons, instances that run the same step and that die at any of its effects, and a provider that refuses, fails, loses answers before and after it
// counted, counts late, and forgets identifiers after a day. After each step the provider has counted each push at most once, and counts each that is delivered; at the
// end it counts what is billable.
func TestP8_InterleavedPushesAgreeWithTheProvider(t *testing.T) {
	first, n := seedsOf(t)
	if n != 1 && os.Getenv("METERPLEX_TEST_SEEDS") == "" {
		n = pushSeeds
	}
	began, seen := time.Now(), map[string]int{}
	for seed := first; seed < first+n; seed++ {
		w := newPushWorld(seed, seen)
		if w.run(); w.wrong != nil {
			t.Fatalf("seed %d: %v\n%s\nagain: METERPLEX_SIM_SEED=%d go test ./infra/simulation -run %s", seed, w.wrong, strings.Join(w.trace, "\n"), seed, t.Name())
		}
	}
	t.Logf("seeds %d to %d in %s: %v", first, first+n-1, time.Since(began).Round(time.Millisecond), seen)
	for _, what := range []string{"closed again", "approved", "reopened", "billing removed", "billing set", "retried", "resolved as delivered", "resolved as not counted", "died before a commit",
		"died behind a commit", "lost a commit that happened", "lost a commit that did not", "answer lost before", "answer lost after", "counted late", "refused", "overloaded", "unreachable", "known to the provider",
		"forgotten by the provider", "undecided after 23 hours", "counted by its total", "not counted by its total", "too old", "a difference", "credited to a former customer", "readdressed before it was sent"} {
		if n >= pushSeeds && seen[what] < 20 {
			t.Errorf("%d × %s in %d seeds", seen[what], what, n)
		}
	}
}

func newPushWorld(seed uint64, seen map[string]int) *pushWorld {
	w := &pushWorld{rng: rand.New(rand.NewPCG(seed, 19)), seen: seen, now: time.Date(2026, 6, 1, 1, 0, 0, 0, time.UTC), faulty: true}
	w.tables = pushTables{billing: &events.Billing{Provider: events.ProviderStripe, Customer: "cus_1"}, frozen: map[string]map[string]int64{}, approved: map[string]map[string]int64{}}
	w.lag = time.Duration(w.rng.IntN(9)) * time.Minute
	w.bodies, w.byTotal = map[string]string{}, map[string]bool{}
	return w
}

func (w *pushWorld) run() {
	w.closePeriod()
	for range pushSteps {
		w.step()
		if w.check(); w.wrong != nil {
			return
		}
	}
	w.end()
}

// step does one thing of the world. Inside a call of the provider the clock stays before the end of the call.
func (w *pushWorld) step() {
	steps := []struct {
		weight int
		do     func()
	}{{14, w.runSaga}, {8, w.wait}, {2, w.closePeriod}, {2, w.reopen}, {3, w.approve}, {1, w.setBilling}, {4, w.operate}, {2, w.compare}}
	total := 0
	for _, s := range steps {
		total += s.weight
	}
	at := w.rng.IntN(total)
	for _, s := range steps {
		if at -= s.weight; at < 0 {
			s.do()
			return
		}
	}
}

func (w *pushWorld) did(format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	w.trace = append(w.trace, w.now.Format("01-02 15:04:05 ")+what)
}

func (w *pushWorld) count(what string) { w.seen[what]++; w.did("%s", what) }

func (w *pushWorld) fail(format string, args ...any) {
	if w.wrong == nil {
		w.wrong = fmt.Errorf(format, args...)
	}
}

// wait lets time pass.
func (w *pushWorld) wait() {
	waits := []time.Duration{time.Second, 5 * time.Second, time.Minute, 2 * time.Minute, 10 * time.Minute, time.Hour, 6 * time.Hour, 23 * time.Hour, 25 * time.Hour}
	d := waits[w.rng.IntN(len(waits))]
	if w.rng.IntN(200) == 0 {
		d = 35 * 24 * time.Hour
	}
	w.pass(d)
}

// pass moves the clock, and lets requests arrive that are on their way to the provider.
func (w *pushWorld) pass(d time.Duration) {
	until := w.now.Add(d)
	if !w.until.IsZero() && until.After(w.until) {
		until = w.until
	}
	for len(w.late) > 0 && !w.late[0].at.After(until) {
		next := w.late[0]
		if w.late = w.late[1:]; next.at.After(w.now) {
			w.now = next.at
		}
		w.count("counted late")
		w.handle(&next.push)
	}
	if until.After(w.now) {
		w.now = until
	}
}

// runSaga runs the step of a saga that is due; sometimes of one whose lease another instance holds.
func (w *pushWorld) runSaga() {
	var due []*domain.Saga
	for i := range w.tables.sagas {
		if s := &w.tables.sagas[i]; s.Open() && (!s.NextAt.After(w.now) || w.faulty && w.rng.IntN(8) == 0) {
			due = append(due, s)
		}
	}
	if len(due) > 0 {
		w.runStep(*due[w.rng.IntN(len(due))])
	}
}

func (w *pushWorld) runStep(s domain.Saga) {
	w.did("run %s of %s", s.Step, s.Key)
	var result domain.SagaResult
	var err error
	alive := w.alive(func() { result, err = w.pushes().PushKind().Run(w.ctx(), &s) })
	for i := range w.tables.sagas {
		now := &w.tables.sagas[i]
		if now.ID != s.ID || !now.Open() {
			continue
		}
		switch missed := now.Missed(&s); {
		case !alive: // until its lease ends
			now.NextAt = w.now.Add(30 * time.Second)
		case err != nil:
			now.Fail(err.Error(), w.now)
		default:
			if now.Apply(result, w.now); missed {
				now.NextAt = w.now
			}
		}
	}
}

// alive runs a part of an instance, and reports whether the instance is alive behind it.
func (w *pushWorld) alive(do func()) (alive bool) {
	defer func() {
		if r := recover(); r != nil && r != error(errDied) {
			panic(r)
		}
	}()
	do()
	return true
}

// compare runs a comparison once.
func (w *pushWorld) compare() {
	if w.comparing {
		return
	}
	w.did("compare")
	w.comparing = true
	defer func() { w.comparing = false }()
	w.alive(func() {
		_, _ = w.pushes().CompareKind().Run(w.ctx(), &domain.Saga{Kind: commands.SagaBillingCompare, Step: "compare", State: domain.SagaRunning, CreatedAt: w.now})
	})
}

// operate lets an operator who sees the provider's events retry or resolve a push; resolve it only after every request has arrived.
func (w *pushWorld) operate() {
	if len(w.tables.pushes) == 0 {
		return
	}
	p := w.tables.pushes[w.rng.IntN(len(w.tables.pushes))]
	counted := w.timesCounted(p.Identifier) > 0
	kind, by := w.rng.IntN(3), commands.Request{By: commands.Caller{}}
	if slices.ContainsFunc(w.late, func(l latePush) bool { return l.push.Identifier == p.Identifier }) {
		kind = 0
	}
	calls := w.calls
	w.calls = mostCalls // what the operator saw is true until the answer
	defer func() { w.calls = calls }()
	w.alive(func() {
		var err error
		what := "retried"
		if kind == 0 {
			_, err = w.pushes().Retry(w.ctx(), by, p.ID, "simulated")
		} else {
			if what = "resolved as not counted"; counted {
				what = "resolved as delivered"
			}
			_, err = w.pushes().Resolve(w.ctx(), by, p.ID, counted, "simulated")
		}
		if err == nil {
			w.count(what)
		}
	})
}
