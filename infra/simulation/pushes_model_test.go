package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

var (
	pushPeriods  = []string{"2026-05", "lifetime"}
	pushFeatures = []string{"calls", "seats"}
)

const (
	// uniqueFor is how long the provider knows an identifier.
	uniqueFor = 24 * time.Hour
	// callFor bounds a call of the provider, and lateFor the time in which a request arrives that was given up.
	callFor = domain.PushAttempt / 2
	lateFor = 30 * time.Second
	// mostCalls bounds the instances that work inside one another.
	mostCalls = 3
)

// pushWorld is a tenant with its periods, instances that push, and their provider, on one simulated clock. It implements the ports of pushes.
type pushWorld struct {
	rng       *rand.Rand
	now       time.Time
	until     time.Time // the end of the call that runs; zero: none
	tables    pushTables
	ids       int
	faulty    bool
	open      bool // a transaction is open
	calls     int  // instances that wait for a call or a transaction
	comparing bool

	counted []countedPush
	late    []latePush        // requests on their way to the provider, by their arrival
	bodies  map[string]string // of the last request for an identifier that was not refused
	byTotal map[string]bool   // identifiers that a total decided: of several amounts it knows the sum only
	lag     time.Duration     // from which on a total has an amount

	seen  map[string]int
	trace []string
	wrong error
}

type countedPush struct {
	push domain.Push
	at   time.Time
}

type latePush struct {
	push domain.Push
	at   time.Time
}

func (w *pushWorld) billable(period, feature string) int64 {
	return w.tables.frozen[period][feature] + w.tables.approved[period][feature]
}

func (w *pushWorld) pushed(period, feature string) *big.Int {
	sum := new(big.Int)
	for _, p := range w.tables.pushes {
		if p.PeriodKey == period && p.Feature == feature {
			sum.Add(sum, p.Amount)
		}
	}
	return sum
}

func (w *pushWorld) timesCounted(identifier string) (n int) {
	for i := range w.counted {
		if w.counted[i].push.Identifier == identifier {
			n++
		}
	}
	return n
}

// closePeriod closes a period with other figures, as a close does: the saga of its push starts with it.
func (w *pushWorld) closePeriod() {
	period := pushPeriods[w.rng.IntN(len(pushPeriods))]
	last := w.tables.history.Last(period)
	if last.State() != domain.StateOpen {
		return
	}
	snapshot := 1
	if last != nil {
		snapshot = last.Snapshot + 1
		w.count("closed again")
	}
	w.did("close %s", period)
	w.tables.history.Changes = append(w.tables.history.Changes, domain.PeriodChange{PeriodKey: period, Snapshot: snapshot, Change: domain.PeriodClosed})
	w.tables.frozen[period], w.tables.approved[period] = map[string]int64{}, map[string]int64{}
	for _, feature := range pushFeatures {
		w.tables.frozen[period][feature] = int64(w.rng.IntN(4)) * int64(1+w.rng.IntN(9))
	}
	w.startPush("close", period, snapshot, 0)
}

func (w *pushWorld) startPush(origin, period string, snapshot, number int) {
	if w.tables.billing == nil {
		return
	}
	key := origin + "/" + period + "/" + strconv.Itoa(snapshot)
	if number > 0 {
		key += "/" + strconv.Itoa(number)
	}
	_, _, _ = w.StartSaga(domain.SagaStart{ID: w.newID(), Kind: commands.SagaBillingPush, TenantID: pipeTenant, Key: key, FirstStep: "plan", Deadline: domain.PushDeadline})
}

func (w *pushWorld) reopen() {
	period := pushPeriods[w.rng.IntN(len(pushPeriods))]
	if last := w.tables.history.Last(period); last.State() == domain.StateClosed {
		w.count("reopened")
		w.tables.history.Changes = append(w.tables.history.Changes, domain.PeriodChange{PeriodKey: period, Snapshot: last.Snapshot, Change: domain.PeriodReopened})
		w.tables.approved[period] = map[string]int64{}
	}
}

// approve approves adjustments of a closed period; often those before it are taken back.
func (w *pushWorld) approve() {
	period, feature := pushPeriods[w.rng.IntN(len(pushPeriods))], pushFeatures[w.rng.IntN(len(pushFeatures))]
	last := w.tables.history.Last(period)
	if last.State() != domain.StateClosed {
		return
	}
	amount := int64(w.rng.IntN(11) - 5)
	if before := w.tables.approved[period][feature]; before != 0 && w.rng.IntN(2) == 0 {
		amount = -before
	}
	w.count("approved")
	w.tables.approved[period][feature] += amount
	w.startPush("adjust", period, last.Snapshot, len(w.tables.sagas)+1)
}

// setBilling removes the tenant's customer, or sets another one.
func (w *pushWorld) setBilling() {
	to, what := (*events.Billing)(nil), "billing removed"
	if w.tables.billing == nil || w.rng.IntN(2) == 0 {
		to, what = &events.Billing{Provider: events.ProviderStripe, Customer: "cus_" + strconv.Itoa(1+w.rng.IntN(2))}, "billing set"
	}
	w.alive(func() {
		if _, err := w.pushes().SetBilling(w.ctx(), commands.Request{By: commands.Caller{}}, pipeTenant, to); err == nil {
			w.count(what)
		}
	})
}

// call lets other instances work during a call of the provider, and the clock run up to its end.
func (w *pushWorld) call() {
	if w.open {
		w.fail("a transaction is open during a call of the provider")
	}
	before := w.until
	if end := w.now.Add(callFor); before.IsZero() || end.Before(before) {
		w.until = end
	}
	defer func() { w.until = before; w.calls-- }()
	for w.calls++; w.faulty && w.calls < mostCalls && w.rng.IntN(3) == 0; {
		w.step()
	}
}

// Send implements commands.BillingProvider.
func (w *pushWorld) Send(_ context.Context, p domain.Push, _ events.TracedEvent) domain.PushResult {
	if stored := w.find(p.ID); stored.State == domain.PushStatePending || stored.Attempts < p.Attempts {
		w.fail("%s is sent before its attempt is stored", p.Key)
	}
	body := fmt.Sprint(p.Key, p.Identifier, p.Customer, p.Event, p.Timestamp, p.Amount)
	if before := w.bodies[p.Identifier]; before != "" && before != body {
		w.fail("the attempts of %s differ: %s and %s", p.Key, before, body)
	}
	w.bodies[p.Identifier] = body
	w.call()
	fault := 0
	if w.faulty {
		fault = w.rng.IntN(13)
	}
	switch fault {
	case 1:
		w.count("answer lost before")
		return domain.PushResult{Outcome: domain.PushUnknown, Reason: "lost"}
	case 2, 3:
		w.count("answer lost after")
		w.handle(&p)
		return domain.PushResult{Outcome: domain.PushUnknown, Reason: "lost"}
	case 4:
		w.did("a request is on its way")
		w.late = append(w.late, latePush{p, w.now.Add(time.Duration(w.rng.Int64N(int64(lateFor))))})
		slices.SortStableFunc(w.late, func(a, b latePush) int { return a.at.Compare(b.at) })
		return domain.PushResult{Outcome: domain.PushUnknown, Reason: "lost"}
	case 5:
		w.count("overloaded")
		return domain.PushResult{Outcome: domain.PushLater, Code: "rate_limit", RetryAfter: time.Duration(w.rng.IntN(9)) * time.Hour}
	case 6:
		w.count("unreachable")
		return domain.PushResult{Outcome: domain.PushLater, Code: "provider_unreachable"}
	case 7:
		w.count("refused")
		delete(w.bodies, p.Identifier)
		return domain.PushResult{Outcome: domain.PushRefused, Code: "resource_missing", Reason: "no such meter"}
	}
	if !p.Timestamp.After(w.now.Add(-domain.PushOldest)) {
		delete(w.bodies, p.Identifier)
		return domain.PushResult{Outcome: domain.PushRefused, Code: "timestamp_too_far_in_past"}
	}
	w.handle(&p)
	return domain.PushResult{Outcome: domain.PushDelivered}
}

// handle counts a push at the provider, unless it knows its identifier.
func (w *pushWorld) handle(p *domain.Push) {
	forgotten := false
	for i := range w.counted {
		if c := &w.counted[i]; c.push.Identifier == p.Identifier {
			if w.now.Sub(c.at) < uniqueFor {
				w.count("known to the provider")
				return
			}
			forgotten = true
		}
	}
	if forgotten && !w.byTotal[p.Identifier] {
		w.fail("the provider counts %s twice", p.Key)
	}
	w.did("the provider counts %s of %s", p.Amount, p.Key)
	w.counted = append(w.counted, countedPush{*p, w.now})
	for i := range w.counted {
		if w.now.Sub(w.counted[i].at) >= uniqueFor {
			w.seen["forgotten by the provider"]++
		}
	}
}

// Total implements commands.BillingProvider.
func (w *pushWorld) Total(_ context.Context, customer, event string, from, to time.Time) (*big.Int, error) {
	w.call()
	if w.faulty && w.rng.IntN(5) == 0 {
		return nil, errors.New("overloaded")
	}
	total := new(big.Int)
	for _, c := range w.counted {
		if p := c.push; p.Customer == customer && p.Event == event && !p.Timestamp.Before(from) && p.Timestamp.Before(to) && !c.at.Add(w.lag).After(w.now) {
			total.Add(total, p.Amount)
		}
	}
	return total, nil
}

// check compares the pushes with the provider and with their events.
func (w *pushWorld) check() {
	ends := map[string]int{}
	for i := range w.tables.ends {
		ends[w.tables.ends[i].DedupeKey]++
	}
	for i := range w.tables.pushes {
		p := &w.tables.pushes[i]
		n, delivered := w.timesCounted(p.Identifier), p.State == domain.PushStateDelivered
		if decided := w.byTotal[p.Identifier]; !decided && delivered && n != 1 {
			w.fail("%s is DELIVERED, and the provider has counted it %d times", p.Key, n)
		} else if !decided && n > 0 && !delivered && p.UnknownSince == nil {
			w.fail("%s is %s without a doubt, and the provider has counted it", p.Key, p.State)
		}
		if ends[events.KeyPush(p.ID, "delivered")] > 0 != delivered {
			w.fail("%s is %s, its delivery in the log: %v", p.Key, p.State, !delivered)
		}
		if last := ends[events.KeyPush(p.ID, "failed/"+strconv.Itoa(p.Failures))]; p.Failures > 0 && last == 0 {
			w.fail("%s has failed %d times, its last failure is not in the log", p.Key, p.Failures)
		}
		if p.NextAt == nil && p.Failures == 0 && !delivered {
			w.fail("%s is %s, and nothing sends it", p.Key, p.State)
		}
	}
}

// end lets everything work until all pushes are delivered, closes what is open, and compares the provider with what is billable.
func (w *pushWorld) end() {
	w.faulty = false
	for w.tables.billing == nil {
		w.setBilling()
	}
	for round := 0; round < 2000 && !w.settled() && w.wrong == nil; round++ {
		w.runSagas()
		if round%30 == 29 {
			w.compare()
			w.help()
		}
		w.pass(10 * time.Minute)
		w.check()
	}
	recent, _ := w.RecentlyClosed(pipeTenant)
	for _, period := range pushPeriods {
		pushed := slices.ContainsFunc(recent, func(c domain.Closing) bool { return c.PeriodKey == period }) // not if it ended before the tenant had billing
		for _, feature := range pushFeatures {
			w.compareEnd(period, feature, pushed)
		}
	}
}

func (w *pushWorld) runSagas() {
	for i := range w.tables.sagas {
		for s := w.tables.sagas[i]; s.Open() && !s.NextAt.After(w.now); s = w.tables.sagas[i] {
			w.runStep(s)
		}
	}
}

func (w *pushWorld) settled() bool {
	for i := range w.tables.pushes {
		if p := &w.tables.pushes[i]; p.Open() && !w.aged(p) {
			return false
		}
	}
	return !slices.ContainsFunc(w.tables.sagas, func(s domain.Saga) bool { return s.Open() && s.Step == "plan" })
}

// aged reports whether the provider accepts a push no more.
func (w *pushWorld) aged(p *domain.Push) bool { return w.now.Sub(p.Timestamp) >= domain.PushOldest }

// help lets an operator retry what was refused, and resolve what the totals do not decide.
func (w *pushWorld) help() {
	for _, p := range w.tables.pushes {
		by := commands.Request{By: commands.Caller{}}
		switch {
		case p.State == domain.PushStateFailed && !p.Undecided(w.now):
			_, _ = w.pushes().Retry(w.ctx(), by, p.ID, "simulated")
		case p.Open() && p.Undecided(w.now.Add(-2*24*time.Hour)):
			_, _ = w.pushes().Resolve(w.ctx(), by, p.ID, w.timesCounted(p.Identifier) > 0, "simulated")
		}
	}
}

// compareEnd compares what the provider counts of a feature with the delivered amounts and with what is billable.
func (w *pushWorld) compareEnd(period, feature string, pushed bool) {
	counted, delivered, waiting := new(big.Int), new(big.Int), new(big.Int)
	for _, c := range w.counted {
		if c.push.PeriodKey == period && c.push.Feature == feature {
			counted.Add(counted, c.push.Amount)
		}
	}
	for i := range w.tables.pushes {
		p := &w.tables.pushes[i]
		switch {
		case p.PeriodKey != period || p.Feature != feature:
		case !p.Open():
			delivered.Add(delivered, p.Amount)
		case w.aged(p) && w.timesCounted(p.Identifier) == 0:
			waiting.Add(waiting, p.Amount)
		case w.aged(p): // in doubt: only an operator can tell
			delivered.Add(delivered, p.Amount)
		default:
			w.fail("%s is %s at the end: %s", p.Key, p.State, p.LastError)
		}
	}
	if counted.Cmp(delivered) != 0 {
		w.fail("%s of %s: the provider counts %s, delivered are %s", feature, period, counted, delivered)
	}
	if pushed && new(big.Int).Add(delivered, waiting).Cmp(big.NewInt(w.billable(period, feature))) != 0 {
		w.fail("%s of %s: %d is billable, delivered are %s and %s wait", feature, period, w.billable(period, feature), delivered, waiting)
	}
}
