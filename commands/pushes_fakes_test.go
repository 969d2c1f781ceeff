package commands

import (
	"context"
	"fmt"
	"log/slog"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// pushTx fakes the port of pushes on a clock of its own, which is the database's. The tenant is Alice; her period is 2026-05.
type pushTx struct {
	*memory
	changes     map[uuid.UUID]domain.PeriodHistory
	sagas       map[string]domain.Saga
	pushes      map[uuid.UUID]domain.Push
	billable    map[string]int64 // of the present snapshot, by feature
	recent      []domain.Closing
	comparisons map[string]string // total and delivered, by window
	retries     []string
	time        time.Time
	open        bool                        // a transaction is open
	ended       func(context.Context) error // returns why a transaction cannot run; may be nil
}

func (tx *pushTx) ChangePushes(ctx context.Context, tenant uuid.UUID, decide func(PushTx) error) error {
	if tx.ended != nil && tx.ended(ctx) != nil {
		return tx.ended(ctx)
	}
	tx.open = true
	defer func() { tx.open = false }()
	return tx.run(tenant, func() error { return decide(tx) })
}

func (tx *pushTx) UpdatePush(_ context.Context, id uuid.UUID, change func(*domain.Push, time.Time) bool) (*domain.Push, error) {
	p, ok := tx.pushes[id]
	if !ok {
		return nil, nil
	}
	if change(&p, tx.time) {
		tx.pushes[id] = p
	}
	return &p, nil
}

func (tx *pushTx) OpenPushes(_ context.Context, tenant uuid.UUID, periodKey string) (open []domain.Push, now time.Time, err error) {
	for _, p := range tx.sorted() {
		if p.TenantID == tenant && p.PeriodKey == periodKey && p.Open() {
			open = append(open, p)
		}
	}
	return open, tx.time, nil
}

func (tx *pushTx) sorted() (all []domain.Push) {
	for _, p := range tx.pushes {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b domain.Push) int { return strings.Compare(a.Key, b.Key) })
	return all
}

// closeOfPush is the event that closed each period.
func closeOfPush(of domain.Closing) events.TracedEvent {
	return events.TracedEvent{Trace: uuid.UUID{9, byte(of.Snapshot)}, EventID: uuid.UUID{10, byte(of.Snapshot)}}
}

func (tx *pushTx) PeriodEvent(_ context.Context, of domain.Closing, change string) (events.TracedEvent, error) {
	if change != domain.PeriodClosed || tx.open {
		return events.TracedEvent{}, fmt.Errorf("the event of %q is read, in a transaction: %t", change, tx.open)
	}
	return closeOfPush(of), nil
}

func (tx *pushTx) NotePushes(_ context.Context, _ uuid.UUID, _, reason string) error {
	for id, p := range tx.pushes {
		p.LastError = reason
		tx.pushes[id] = p
	}
	return nil
}

func (tx *pushTx) PushWindows(context.Context, time.Time) (windows []domain.PushWindow, err error) {
	seen := map[string]bool{}
	for _, p := range tx.sorted() {
		w := domain.PushWindow{PushAddress: p.PushAddress, Month: p.Timestamp.Format("2006-01"), TenantID: p.TenantID, Feature: p.Feature}
		if !seen[windowOf(w)] {
			seen[windowOf(w)], windows = true, append(windows, w)
		}
	}
	return windows, nil
}

func windowOf(w domain.PushWindow) string { return w.Customer + " " + w.Event + " " + w.Month }

func (tx *pushTx) PushSums(_ context.Context, w domain.PushWindow, settle time.Duration) (domain.PushSums, error) {
	sums := domain.PushSums{Delivered: new(big.Int), Unknown: new(big.Int)}
	for _, p := range tx.sorted() {
		if p.Customer+" "+p.Event+" "+p.Timestamp.Format("2006-01") != windowOf(w) {
			continue
		}
		switch {
		case p.State == domain.PushStateUnknown && p.NextAt != nil, p.State == domain.PushStateFailed && p.UnknownSince != nil && !p.Undecided(tx.time), p.State == domain.PushStateDelivered && p.DeliveredAt.Add(settle).After(tx.time):
			sums.OnTheWay++
		case p.State == domain.PushStateDelivered:
			sums.Delivered.Add(sums.Delivered, p.Amount)
		case p.State == domain.PushStateUnknown, p.State == domain.PushStateFailed && p.UnknownSince != nil:
			sums.Unknown.Add(sums.Unknown, p.Amount)
			sums.Undecided = append(sums.Undecided, p)
		}
	}
	return sums, nil
}

func (tx *pushTx) StartSaga(s domain.SagaStart) (*domain.Saga, bool, error) {
	if known, ok := tx.sagas[s.Kind+" "+s.Key]; ok {
		return &known, false, nil
	}
	saga := domain.Saga{ID: s.ID, Kind: s.Kind, TenantID: s.TenantID, Key: s.Key, Step: s.FirstStep, State: domain.SagaRunning}
	tx.sagas[s.Kind+" "+s.Key] = saga
	return &saga, true, nil
}

func (tx *pushTx) SaveTenant(t domain.Tenant) error { tx.tenants[t.ID] = t; return nil }
func (tx *pushTx) Feature(key string) (*domain.Feature, error) {
	return &domain.Feature{LookupKey: key}, nil
}
func (tx *pushTx) Periods([]uuid.UUID) (map[uuid.UUID]domain.PeriodHistory, error) {
	return tx.changes, nil
}
func (tx *pushTx) RecentlyClosed(uuid.UUID) ([]domain.Closing, error) { return tx.recent, nil }

func (tx *pushTx) DatabaseTime() (time.Time, error) { return tx.time, nil }

func (tx *pushTx) Due(c domain.Closing) (due []domain.PushDue, err error) {
	for feature, amount := range tx.billable {
		d := domain.PushDue{Feature: feature, Frozen: big.NewInt(amount), Billable: big.NewInt(amount), Pushed: new(big.Int), Last: -1}
		for _, p := range tx.pushes {
			if p.Feature == feature && p.PeriodKey == c.PeriodKey {
				d.Pushed.Add(d.Pushed, p.Amount)
			}
			if p.Feature == feature && p.PeriodKey == c.PeriodKey && p.Snapshot == c.Snapshot {
				d.Last = max(d.Last, p.N)
			}
		}
		due = append(due, d)
	}
	return due, nil
}

func (tx *pushTx) AddPush(p domain.Push) error {
	for _, known := range tx.pushes {
		if known.Key == p.Key {
			return fmt.Errorf("the key %s exists", p.Key)
		}
	}
	tx.pushes[p.ID] = p
	return nil
}

func (tx *pushTx) Push(id uuid.UUID) (*domain.Push, time.Time, error) {
	p, ok := tx.pushes[id]
	if !ok {
		return nil, tx.time, nil
	}
	return &p, tx.time, nil
}

func (tx *pushTx) SavePush(p domain.Push) error {
	tx.pushes[p.ID] = p
	return nil
}

func (tx *pushTx) NeverSent(tenant uuid.UUID) (list []domain.Push, err error) {
	for _, p := range tx.sorted() {
		if p.TenantID == tenant && p.State == domain.PushStatePending && p.Attempts == 0 {
			list = append(list, p)
		}
	}
	return list, nil
}

func (tx *pushTx) PushesOf(_ uuid.UUID, feature, periodKey string) (list []domain.Push, err error) {
	for _, p := range tx.sorted() {
		if p.Feature == feature && p.PeriodKey == periodKey {
			list = append(list, p)
		}
	}
	return list, nil
}

func (tx *pushTx) RetryPushes(_ uuid.UUID, reason, _ string) error {
	tx.retries = append(tx.retries, reason)
	return nil
}

func (tx *pushTx) SaveComparison(w domain.PushWindow, total, delivered *big.Int) error {
	tx.comparisons[windowOf(w)] = total.String() + " " + delivered.String()
	return nil
}
func (tx *pushTx) Billed() (bool, error)  { return len(tx.pushes) > 0, nil }
func (tx *pushTx) Today() (string, error) { return tx.time.Format("2006-01-02"), nil }

// provider fakes a billing provider: it counts an identifier once in 24 hours, by its own clock.
type provider struct {
	t         *testing.T
	tx        *pushTx
	counted   map[string]time.Time // by identifier
	bodies    map[string]string    // by identifier
	totals    map[string]*big.Int  // by customer, event and month
	calls     int
	meanwhile func()                                                 // while a total is computed; may be nil
	answer    func(call int) (counts bool, result domain.PushResult) // nil: counts all
}

func (p *provider) Send(_ context.Context, push domain.Push, of events.TracedEvent) domain.PushResult {
	if of != closeOfPush(push.Closing()) {
		panic(fmt.Sprintf("%s is sent in the trace of %v", push.Key, of))
	}
	p.calls++
	if p.tx.open {
		p.t.Error("a transaction is open during a call of the provider")
	}
	if stored := p.tx.pushes[push.ID]; stored.State != domain.PushStateUnknown || stored.Attempts != push.Attempts {
		p.t.Errorf("sent before its attempt was stored: %+v", stored)
	}
	counts, result := true, domain.PushResult{Outcome: domain.PushDelivered}
	if p.answer != nil {
		counts, result = p.answer(p.calls)
	}
	body := fmt.Sprint(push.Key, push.Identifier, push.Customer, push.Event, push.Timestamp, push.Amount)
	if before := p.bodies[push.Identifier]; before != "" && before != body {
		p.t.Errorf("the attempts of a push differ: %s and %s", before, body)
	}
	if result.Outcome != domain.PushRefused { // a refused push may be addressed anew
		p.bodies[push.Identifier] = body
	}
	if at, known := p.counted[push.Identifier]; counts && (!known || p.tx.time.Sub(at) >= 24*time.Hour) {
		p.counted[push.Identifier] = p.tx.time
		key := push.Customer + " " + push.Event + " " + push.Timestamp.Format("2006-01")
		if p.totals[key] == nil {
			p.totals[key] = new(big.Int)
		}
		p.totals[key].Add(p.totals[key], push.Amount)
	}
	return result
}

func (p *provider) Total(_ context.Context, customer, event string, from, _ time.Time) (*big.Int, error) {
	sum := new(big.Int)
	if total := p.totals[customer+" "+event+" "+from.Format("2006-01")]; total != nil {
		sum.Set(total)
	}
	if p.meanwhile != nil {
		p.meanwhile()
	}
	return sum, nil
}

// sum is the amount that the provider counted of a feature.
func (p *provider) sum(feature string) (sum int64) {
	for key, total := range p.totals {
		if strings.Contains(key, " "+feature+" ") {
			sum += total.Int64()
		}
	}
	return sum
}

// newPushes returns the command beside Alice, who has billing and the changes of May 2026 so far, in June.
func newPushes(t *testing.T, changes ...string) (*Pushes, *pushTx, *provider) {
	_, periods := newPeriods(changes...)
	tx := &pushTx{memory: periods.memory, changes: periods.changes, sagas: map[string]domain.Saga{}, pushes: map[uuid.UUID]domain.Push{},
		billable: map[string]int64{}, comparisons: map[string]string{}, time: time.Date(2026, 6, 1, 1, 0, 0, 0, time.UTC)}
	transacted(tx.memory, &tx.pushes)
	transacted(tx.memory, &tx.sagas)
	alice := tx.tenants[activeTenant]
	alice.Billing = &events.Billing{Provider: events.ProviderStripe, Customer: "cus_1"}
	tx.tenants[activeTenant] = alice
	p := &provider{t: t, tx: tx, counted: map[string]time.Time{}, bodies: map[string]string{}, totals: map[string]*big.Int{}}
	return &Pushes{Store: tx, Provider: p, Now: clock, NewID: tx.newID, Logger: slog.New(slog.DiscardHandler)}, tx, p
}

// pushSaga returns a saga of May.
func pushSaga(key string) *domain.Saga {
	return &domain.Saga{Kind: SagaBillingPush, TenantID: activeTenant, Key: key, Step: stepPlan, State: domain.SagaRunning}
}

// runSteps runs a saga until it waits, and returns its last result.
func runSteps(t *testing.T, c *Pushes, s *domain.Saga) domain.SagaResult {
	t.Helper()
	for {
		result, err := c.PushKind().Run(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if result.Step == "" || result.Step == s.Step {
			return result
		}
		s.Step = result.Step
	}
}

// ends counts the events of a subject.
func (tx *pushTx) ends(subject events.Subject) (n int) {
	for i := range tx.appended {
		if tx.appended[i].Subject == subject {
			n++
		}
	}
	return n
}
