package simulation

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"math/big"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

var (
	_ commands.PushStore = (*pushWorld)(nil)
	_ commands.PushTx    = (*pushWorld)(nil)

	errDied   = errors.New("the instance died")
	errCommit = errors.New("COMMIT was not answered")
)

// pushTables are the tables that transactions of pushes change.
type pushTables struct {
	pushes   []domain.Push // in the order in which they were stored
	sagas    []domain.Saga
	ends     []events.Pending
	history  domain.PeriodHistory
	frozen   map[string]map[string]int64 // of the present snapshot, by period and feature
	approved map[string]map[string]int64
	billing  *events.Billing
}

func (t *pushTables) clone() pushTables {
	c := *t
	c.pushes, c.sagas, c.ends, c.history.Changes = slices.Clone(t.pushes), slices.Clone(t.sagas), slices.Clone(t.ends), slices.Clone(t.history.Changes)
	c.frozen, c.approved = map[string]map[string]int64{}, map[string]map[string]int64{}
	for period := range t.frozen {
		c.frozen[period], c.approved[period] = maps.Clone(t.frozen[period]), maps.Clone(t.approved[period])
	}
	return c
}

func (w *pushWorld) pushes() *commands.Pushes {
	return &commands.Pushes{Store: w, Provider: w, Now: func() time.Time { return w.now }, NewID: w.newID, Logger: slog.New(slog.DiscardHandler), Settle: 10 * time.Minute}
}

func (w *pushWorld) ctx() context.Context { return context.Background() }

func (w *pushWorld) newID() (id uuid.UUID) {
	w.ids++
	id[0], id[14], id[15] = 1, byte(w.ids>>8), byte(w.ids)
	return id
}

// transact runs a transaction. Its instance may die before and behind its commit, and the answer to the commit may be lost.
func (w *pushWorld) transact(do func() error) error {
	if w.open {
		panic("a transaction is open")
	}
	if w.faulty && w.calls < mostCalls && w.rng.IntN(20) == 0 { // others work between a read and the transaction
		w.calls++
		w.step()
		w.calls--
	}
	w.now = w.now.Add(time.Microsecond) // no two transactions have the same time
	before := w.tables.clone()
	w.open = true
	err := do()
	if w.open = false; err != nil {
		w.tables = before
		return err
	}
	if !w.faulty {
		return nil
	}
	switch w.rng.IntN(60) {
	case 0:
		w.tables = before
		w.count("died before a commit")
		panic(errDied)
	case 1:
		w.count("died behind a commit")
		panic(errDied)
	case 2:
		w.tables = before
		w.count("lost a commit that did not")
		return errCommit
	case 3:
		w.count("lost a commit that happened")
		return errCommit
	}
	return nil
}

func (w *pushWorld) ChangePushes(_ context.Context, _ uuid.UUID, decide func(commands.PushTx) error) error {
	return w.transact(func() error { return decide(w) })
}

func (w *pushWorld) find(id uuid.UUID) *domain.Push {
	for i := range w.tables.pushes {
		if w.tables.pushes[i].ID == id {
			return &w.tables.pushes[i]
		}
	}
	return nil
}

func (w *pushWorld) UpdatePush(_ context.Context, id uuid.UUID, change func(*domain.Push, time.Time) bool) (updated *domain.Push, err error) {
	err = w.transact(func() error {
		p := *w.find(id)
		if change(&p, w.now) {
			*w.find(id) = p
		}
		updated = &p
		return nil
	})
	if err != nil {
		return nil, err
	}
	return updated, nil
}

func (w *pushWorld) OpenPushes(_ context.Context, _ uuid.UUID, periodKey string) (open []domain.Push, now time.Time, err error) {
	for _, p := range w.tables.pushes {
		if p.PeriodKey == periodKey && p.Open() {
			open = append(open, p)
		}
	}
	return open, w.now, nil
}

func (w *pushWorld) PeriodEvent(context.Context, domain.Closing, string) (events.TracedEvent, error) {
	return events.TracedEvent{}, nil
}

func (w *pushWorld) NotePushes(context.Context, uuid.UUID, string, string) error { return nil }

func windowOfPush(p *domain.Push) domain.PushWindow {
	return domain.PushWindow{PushAddress: p.PushAddress, Month: p.Timestamp.Format("2006-01"), TenantID: p.TenantID, Feature: p.Feature}
}

func (w *pushWorld) PushWindows(context.Context, time.Time) (list []domain.PushWindow, err error) {
	for i := range w.tables.pushes {
		p := &w.tables.pushes[i]
		if of := windowOfPush(p); p.Timestamp.After(w.now.Add(-domain.PushOldest)) && (!p.Open() || p.UnknownSince != nil) && !slices.Contains(list, of) {
			list = append(list, of)
		}
	}
	return list, nil
}

// PushSums has the definition of the docs: what is delivered, what stays in doubt, and what is on its way.
func (w *pushWorld) PushSums(_ context.Context, of domain.PushWindow, settle time.Duration) (domain.PushSums, error) {
	sums := domain.PushSums{Delivered: new(big.Int), Unknown: new(big.Int)}
	for _, p := range w.tables.pushes {
		doubt := p.UnknownSince != nil
		switch {
		case windowOfPush(&p) != of || !doubt:
		case p.State == domain.PushStateDelivered && p.DeliveredAt.Add(settle).After(w.now), p.State == domain.PushStateUnknown && p.NextAt != nil, p.State == domain.PushStateFailed && !p.Undecided(w.now):
			sums.OnTheWay++
		case p.State == domain.PushStateDelivered:
			sums.Delivered.Add(sums.Delivered, p.Amount)
		default:
			sums.Unknown.Add(sums.Unknown, p.Amount)
			sums.Undecided = append(sums.Undecided, p)
		}
	}
	return sums, nil
}

func (w *pushWorld) Version(commands.Ref) (string, error)               { return "", nil }
func (w *pushWorld) Answer(string) (*commands.Answer, error)            { return nil, nil }
func (w *pushWorld) SaveAnswer(string, commands.Answer) error           { return nil }
func (w *pushWorld) Offboarding(uuid.UUID) (*domain.Offboarding, error) { return nil, nil }
func (w *pushWorld) Billed() (bool, error)                              { return true, nil }
func (w *pushWorld) Today() (string, error)                             { return w.now.Format("2006-01-02"), nil }

func (w *pushWorld) Tenant(id uuid.UUID) (*domain.Tenant, error) {
	return &domain.Tenant{ID: id, Status: domain.TenantActive, Billing: w.tables.billing}, nil
}

func (w *pushWorld) SaveTenant(t domain.Tenant) error { w.tables.billing = t.Billing; return nil }

func (w *pushWorld) Feature(key string) (*domain.Feature, error) {
	return &domain.Feature{LookupKey: key}, nil
}

func (w *pushWorld) Append(list ...events.Pending) (at []events.Position, err error) {
	for _, p := range list {
		for i := range w.tables.ends {
			if w.tables.ends[i].DedupeKey == p.DedupeKey {
				w.fail("the dedupe key %s is stored twice", p.DedupeKey)
			}
		}
		if p.Subject == events.PushCompared {
			w.explainDifference(&p)
		}
		w.tables.ends = append(w.tables.ends, p)
		at = append(at, events.Position{Number: int64(len(w.tables.ends))})
	}
	return at, nil
}

// explainDifference refuses the event of a difference that no push in doubt explains.
func (w *pushWorld) explainDifference(p *events.Pending) {
	var c events.ComparedPushes
	if err := json.Unmarshal(p.Payload, &c); err != nil {
		panic(err)
	}
	w.count("a difference")
	for i := range w.tables.pushes {
		if of := windowOfPush(&w.tables.pushes[i]); of.Customer == c.Customer && of.Month == c.PeriodKey && w.tables.pushes[i].Undecided(w.now) && w.tables.pushes[i].Open() {
			return
		}
	}
	w.fail("the total %s of %s in %s differs from %s without a push in doubt", c.Total, c.Customer, c.PeriodKey, c.Delivered)
}

func (w *pushWorld) StartSaga(s domain.SagaStart) (*domain.Saga, bool, error) {
	for i := range w.tables.sagas {
		if w.tables.sagas[i].Key == s.Key {
			return &w.tables.sagas[i], false, nil
		}
	}
	deadline := w.now.Add(s.Deadline)
	saga := domain.Saga{ID: s.ID, Kind: s.Kind, TenantID: s.TenantID, Key: s.Key, Step: s.FirstStep, State: domain.SagaRunning, NextAt: w.now, CreatedAt: w.now, DeadlineAt: &deadline}
	w.tables.sagas = append(w.tables.sagas, saga)
	return &saga, true, nil
}

func (w *pushWorld) Periods([]uuid.UUID) (map[uuid.UUID]domain.PeriodHistory, error) {
	return map[uuid.UUID]domain.PeriodHistory{pipeTenant: w.tables.history}, nil
}

func (w *pushWorld) RecentlyClosed(tenant uuid.UUID) (recent []domain.Closing, err error) {
	for _, period := range pushPeriods {
		last := w.tables.history.Last(period)
		pushed := slices.ContainsFunc(w.tables.pushes, func(p domain.Push) bool { return p.PeriodKey == period })
		if _, end, bounded := domain.PeriodBounds(period); last.State() == domain.StateClosed && (!bounded || pushed || end.Add(domain.PushOldest).After(w.now)) {
			recent = append(recent, domain.Closing{TenantID: tenant, PeriodKey: period, Snapshot: last.Snapshot})
		}
	}
	return recent, nil
}

func (w *pushWorld) DatabaseTime() (time.Time, error) { return w.now, nil }

func (w *pushWorld) Due(c domain.Closing) (due []domain.PushDue, err error) {
	for _, feature := range pushFeatures {
		d := domain.PushDue{Feature: feature, Frozen: big.NewInt(w.tables.frozen[c.PeriodKey][feature]), Pushed: w.pushed(c.PeriodKey, feature), Last: -1}
		d.Billable = big.NewInt(w.billable(c.PeriodKey, feature))
		for _, p := range w.tables.pushes {
			if p.Feature == feature && p.PeriodKey == c.PeriodKey && p.Snapshot == c.Snapshot {
				d.Last = max(d.Last, p.N)
			}
		}
		due = append(due, d)
	}
	return due, nil
}

func (w *pushWorld) AddPush(p domain.Push) error {
	for _, known := range w.tables.pushes {
		if known.Key == p.Key {
			w.fail("the key %s exists", p.Key)
		}
	}
	w.tables.pushes = append(w.tables.pushes, p)
	if p.Amount.Sign() < 0 {
		pushes, _ := w.PushesOf(p.TenantID, p.Feature, p.PeriodKey)
		w.checkCredit(&p, domain.ChargesOf(pushes))
	}
	return nil
}

// checkCredit refuses a credit that gives a customer more than it is charged while another one is charged.
func (w *pushWorld) checkCredit(p *domain.Push, charged []domain.PushCharge) {
	of := func(c domain.PushCharge) bool { return c.PushAddress == p.PushAddress && c.Amount.Sign() < 0 }
	if others := slices.IndexFunc(charged, func(c domain.PushCharge) bool { return c.Amount.Sign() > 0 }); others >= 0 && slices.ContainsFunc(charged, of) {
		w.fail("the credit %s of %s goes to %s, and %s is charged %s", p.Amount, p.Key, p.Customer, charged[others].Customer, charged[others].Amount)
	}
	if p.Customer != w.tables.billing.Customer {
		w.count("credited to a former customer")
	}
}

func (w *pushWorld) Push(id uuid.UUID) (*domain.Push, time.Time, error) {
	p := *w.find(id)
	return &p, w.now, nil
}

// SavePush notes the pushes that the provider's total decided.
func (w *pushWorld) SavePush(p domain.Push) error {
	if before := w.find(p.ID); w.comparing && before.Undecided(w.now) && (p.State == domain.PushStateDelivered || p.UnknownSince == nil) {
		w.byTotal[p.Identifier] = true
		if p.State == domain.PushStateDelivered {
			w.count("counted by its total")
		} else {
			w.count("not counted by its total")
		}
	}
	if before := w.find(p.ID); before.Customer != p.Customer && p.Attempts == 0 {
		w.count("readdressed before it was sent")
	}
	switch p.Code {
	case domain.PushUndecided:
		w.count("undecided after 23 hours")
	case domain.PushTooOld:
		w.count("too old")
	}
	*w.find(p.ID) = p
	return nil
}

func (w *pushWorld) NeverSent(uuid.UUID) (list []domain.Push, err error) {
	for _, p := range w.tables.pushes {
		if p.State == domain.PushStatePending && p.Attempts == 0 {
			list = append(list, p)
		}
	}
	return list, nil
}

func (w *pushWorld) PushesOf(_ uuid.UUID, feature, periodKey string) (list []domain.Push, err error) {
	for _, p := range w.tables.pushes {
		if p.Feature == feature && p.PeriodKey == periodKey {
			list = append(list, p)
		}
	}
	return list, nil
}

func (w *pushWorld) RetryPushes(uuid.UUID, string, string) error {
	for i := range w.tables.sagas {
		if s := &w.tables.sagas[i]; s.Open() {
			s.Retries, s.NextAt = s.Retries+1, w.now
		}
	}
	return nil
}

func (w *pushWorld) SaveComparison(domain.PushWindow, *big.Int, *big.Int) error { return nil }
