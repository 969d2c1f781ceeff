package commands

import (
	"bytes"
	"cmp"
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

// periodTx fakes the port of periods. A close with figures that agree ends as soon as all conditions are met.
type periodTx struct {
	*memory
	changes     map[uuid.UUID]domain.PeriodHistory
	adjustments map[uuid.UUID]domain.Adjustment
	sagas       map[string]domain.Saga
	snapshots   map[string]domain.Snapshot
	missing     []string               // outside the transaction that freezes
	locked      []string               // inside it
	log, rows   domain.Figures         // by the log and by the rows
	known       []*domain.LateVerdicts // that the figures by the rows are computed with
	differences []domain.UnreconciledLine
	due         []domain.Closing
	found       []domain.Closing // due at the look, whatever has changed since
	tenants     []uuid.UUID      // with closed periods
	late        []LateUsage
	newest      uuid.UUID // of the adjustments
}

func (tx *periodTx) ChangePeriods(_ context.Context, tenant uuid.UUID, decide func(PeriodTx) error) error {
	return tx.run(tenant, func() error { return decide(tx) })
}

func (tx *periodTx) FreezePeriod(_ context.Context, tenant uuid.UUID, decide func(FreezeTx) error) error {
	return tx.run(tenant, func() error { return decide(lockedPeriods{tx}) })
}

// lockedPeriods is a periodTx that holds the locks of a freeze.
type lockedPeriods struct{ *periodTx }

func (tx lockedPeriods) Missing(_ domain.Closing, cut int64) ([]string, error) {
	if cut != 900 {
		return nil, fmt.Errorf("the cut is %d", cut)
	}
	return tx.locked, nil
}

func (tx *periodTx) PeriodEvent(_ context.Context, _ domain.Closing, change string) (events.TracedEvent, error) {
	if change != domain.PeriodCloseRequested {
		return events.TracedEvent{}, fmt.Errorf("the event of %q is read", change)
	}
	return requestOfClose, nil
}

// requestOfClose is the event that requested each close.
var requestOfClose = events.TracedEvent{Trace: uuid.UUID{7}, EventID: uuid.UUID{8}}

func (tx lockedPeriods) FiguresOfRows(_ domain.Closing, known *domain.LateVerdicts) (domain.Figures, error) {
	tx.known = append(tx.known, known)
	return tx.rows, nil
}
func (tx lockedPeriods) Unreconciled(uuid.UUID) ([]domain.UnreconciledLine, error) {
	return tx.differences, nil
}

func (tx lockedPeriods) SaveSnapshot(s domain.Snapshot) error {
	key := closeKey(s.PeriodKey, s.Snapshot)
	if _, known := tx.snapshots[key]; known {
		return fmt.Errorf("the snapshot %s exists", key)
	}
	tx.snapshots[key] = s
	return nil
}

func (tx lockedPeriods) FrozenDespite(c domain.Closing) ([]string, error) {
	return tx.snapshots[closeKey(c.PeriodKey, c.Snapshot)].Despite, nil
}

func (tx *periodTx) Missing(context.Context, domain.Closing) ([]string, error) {
	return tx.missing, nil
}
func (tx *periodTx) FiguresOfLog(context.Context, domain.Closing) (domain.Figures, error) {
	return tx.log, nil
}
func (tx *periodTx) Differs(context.Context, uuid.UUID) (bool, error) {
	return len(tx.differences) > 0, nil
}

func (tx *periodTx) LateUsage(_ context.Context, seen uuid.UUID) ([]LateUsage, uuid.UUID, error) {
	if seen == tx.newest && seen != uuid.Nil {
		return nil, seen, nil
	}
	return tx.late, tx.newest, nil
}

func (tx *periodTx) ClosedTenants(context.Context) ([]uuid.UUID, error) { return tx.tenants, nil }

// policy sets the hours after which the periods of the active tenant are closed.
func (tx *periodTx) policy(hours int) {
	tenant := tx.memory.tenants[activeTenant]
	tenant.CloseAfterHours = &hours
	tx.memory.tenants[activeTenant] = tenant
}

func (tx *periodTx) DueCloses(_ context.Context, after domain.Closing, limit int) ([]domain.Closing, error) {
	due := slices.DeleteFunc(slices.Clone(tx.due), func(c domain.Closing) bool {
		h := tx.changes[c.TenantID]
		return h.LastSnapshot(c.PeriodKey) != c.Snapshot || cmp.Or(bytes.Compare(c.TenantID[:], after.TenantID[:]), strings.Compare(c.PeriodKey, after.PeriodKey)) <= 0
	})
	if after == (domain.Closing{}) {
		due = append(due, tx.found...)
	}
	return due[:min(limit, len(due))], nil
}

func (tx *periodTx) TenantsOfAdjustments(_ context.Context, ids []uuid.UUID) (map[uuid.UUID]uuid.UUID, error) {
	found := map[uuid.UUID]uuid.UUID{}
	for _, id := range ids {
		if a, ok := tx.adjustments[id]; ok {
			found[id] = a.TenantID
		}
	}
	return found, nil
}

func (tx *periodTx) Periods([]uuid.UUID) (map[uuid.UUID]domain.PeriodHistory, error) {
	return tx.changes, nil
}

func (tx *periodTx) SavePeriodChange(tenant uuid.UUID, c domain.PeriodChange, _ time.Time) error {
	h := tx.changes[tenant]
	tx.changes[tenant] = domain.PeriodHistory{Changes: append(slices.Clone(h.Changes), c)}
	return nil
}

func (tx *periodTx) StartSaga(s domain.SagaStart) (*domain.Saga, bool, error) {
	if known, ok := tx.sagas[s.Key]; ok {
		return &known, false, nil
	}
	deadline := stored.Add(s.Deadline)
	saga := domain.Saga{ID: s.ID, Kind: s.Kind, TenantID: s.TenantID, Key: s.Key, Step: s.FirstStep, State: domain.SagaRunning, DeadlineAt: &deadline, Despite: s.Despite}
	tx.sagas[s.Key] = saga
	return &saga, true, nil
}

func (tx *periodTx) Adjustments(tenant uuid.UUID, ids []uuid.UUID) (list []domain.Adjustment, err error) {
	for _, id := range ids {
		if a, ok := tx.adjustments[id]; ok && a.TenantID == tenant {
			list = append(list, a)
		}
	}
	return list, nil
}

// PendingAdjustments counts the pending adjustments of the tenant: the fake knows no periods.
func (tx *periodTx) PendingAdjustments(tenant uuid.UUID, _ int, scope events.AdjustmentScope) (count int64, amount string, err error) {
	var sum big.Int
	for _, a := range tx.adjustments {
		if a.TenantID == tenant && a.State == events.AdjustmentPending {
			count, _ = count+1, sum.Add(&sum, a.Amount)
		}
	}
	return count, sum.String(), nil
}

func (tx *periodTx) ApprovedAdjustments(tenant uuid.UUID, _ string, _ int) (count int64, err error) {
	for _, a := range tx.adjustments {
		if a.TenantID == tenant && a.State == events.AdjustmentApproved {
			count++
		}
	}
	return count, nil
}

// newPeriods returns the command, beside periods of Alice with the changes of May 2026 so far.
func newPeriods(changes ...string) (*Periods, *periodTx) {
	tx := &periodTx{memory: newMemory(), changes: map[uuid.UUID]domain.PeriodHistory{}, adjustments: map[uuid.UUID]domain.Adjustment{},
		sagas: map[string]domain.Saga{}, snapshots: map[string]domain.Snapshot{}}
	transacted(tx.memory, &tx.changes)
	transacted(tx.memory, &tx.sagas)
	transacted(tx.memory, &tx.snapshots)
	snapshot := 0
	var h domain.PeriodHistory
	for i, change := range changes {
		if change == domain.PeriodCloseRequested {
			snapshot++
		}
		h.Changes = append(h.Changes, domain.PeriodChange{Position: int64(900 + i), PeriodKey: "2026-05", Snapshot: snapshot, Change: change})
	}
	tx.changes[activeTenant] = h
	return &Periods{Store: tx, Now: clock, NewID: tx.newID, Logger: slog.New(slog.DiscardHandler)}, tx
}

const (
	requested = domain.PeriodCloseRequested
	closed    = domain.PeriodClosed
	reopened  = domain.PeriodReopened
)

func ofAlice(n int64) events.Position {
	return events.Position{Partition: events.PartitionOf(activeTenant), Number: n}
}

// The position of the request is the cut. clock is in May, so that the close is early.
func TestP8_ACloseIsRequestedOnce(t *testing.T) {
	c, tx := newPeriods(requested, closed, reopened)
	woken := 0
	c.Wake = func() { woken++ }
	answer, event := tx.once(t, caused{subject: events.PeriodCloseRequested, tenant: activeTenant, residency: "eu-central-1", key: events.KeyPeriod("2026-05", 2, "close")},
		func(req Request) (any, error) {
			return c.Close(t.Context(), req, ClosePeriod{TenantID: activeTenant, PeriodKey: "2026-05", Reason: "invoice", Early: true,
				Despite: []string{domain.MissingRebuilds, domain.MissingLetters, domain.MissingRebuilds}})
		})
	got := answer.(RequestedClose)
	saga := tx.sagas["2026-05/2"]
	if got.DeadlineAt == nil || !got.DeadlineAt.Equal(stored.Add(domain.CloseDeadline)) {
		t.Errorf("the deadline is %v", got.DeadlineAt)
	}
	got.DeadlineAt = nil
	if want := (RequestedClose{ID: saga.ID, TenantID: activeTenant, PeriodKey: "2026-05", State: domain.StateClosing, Snapshot: 2, CutPosition: ofAlice(1)}); got != want {
		t.Errorf("answered %+v instead of %+v", got, want)
	}
	both := []string{domain.MissingLetters, domain.MissingRebuilds}
	if p := payload[events.CloseRequested](t, &event); p.PeriodKey != "2026-05" || p.Snapshot != 2 || !p.Early || p.Scheduled || p.Reason != "invoice" || !slices.Equal(p.Despite, both) {
		t.Errorf("recorded %+v", p)
	}
	if saga.Kind != SagaPeriodClose || saga.Step != stepWait || saga.TenantID != activeTenant || !slices.Equal(saga.Despite, both) || len(tx.sagas) != 1 {
		t.Errorf("started %+v", tx.sagas)
	}
	if want := (domain.PeriodChange{Position: 1, PeriodKey: "2026-05", Snapshot: 2, Change: requested}); tx.changes[activeTenant].Changes[3] != want {
		t.Errorf("saved %+v", tx.changes[activeTenant].Changes)
	}
	if woken == 0 || tx.held[0] != activeTenant {
		t.Errorf("woken %d times, under the head of %s", woken, tx.held[0])
	}
	known, err := c.Close(t.Context(), Request{By: operator}, ClosePeriod{TenantID: activeTenant, PeriodKey: "2026-05", Reason: "again"})
	if tx.succeeded(t, err, 1); !known.Known || known.ID != saga.ID || known.Snapshot != 2 || known.CutPosition != ofAlice(1) || known.State != domain.StateClosing {
		t.Errorf("the second request is answered %+v", known)
	}
}

func TestP8_BadClosesAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		in            ClosePeriod
		code, pointer string
	}{
		"no reason":       {ClosePeriod{PeriodKey: "2026-04", Reason: " "}, "reason_required", "/reason"},
		"a long reason":   {ClosePeriod{PeriodKey: "2026-04", Reason: strings.Repeat("理", domain.MaxReason+1)}, "reason_invalid", "/reason"},
		"despite retries": {ClosePeriod{PeriodKey: "2026-04", Reason: "r", Despite: []string{domain.MissingRebuilds, domain.MissingRetries}}, "despite_invalid", "/despite/1"},
		"despite":         {ClosePeriod{PeriodKey: "2026-04", Reason: "r", Despite: []string{""}}, "despite_invalid", "/despite/0"},
		"not ended":       {ClosePeriod{PeriodKey: "2026-05", Reason: "r"}, "period_not_ended", ""},
		"of another":      {ClosePeriod{TenantID: uuid.UUID{9}, PeriodKey: "2026-04", Reason: "r"}, "tenant_not_found", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, tx := newPeriods()
			if c.in.TenantID == uuid.Nil {
				c.in.TenantID = activeTenant
			}
			_, err := p.Close(t.Context(), keyed(1), c.in)
			refusedWith(t, err, c.code, c.pointer)
			if tx.succeeded(t, nil, 0); len(tx.sagas) > 0 || len(tx.changes[activeTenant].Changes) > 0 {
				t.Errorf("stored %+v and %+v", tx.sagas, tx.changes)
			}
		})
	}
}

// Of an archived tenant no further period is closed. One that is being offboarded may close a period by hand, and the answer to a known close stays.
func TestP8_APeriodOfAnArchivedTenantIsNotClosed(t *testing.T) {
	for state, refused := range map[string]bool{domain.OffboardingRunning: false, domain.OffboardingCancelling: false, domain.OffboardingCancelled: false, domain.OffboardingArchived: true} {
		for _, scheduled := range []bool{false, true} {
			c, tx := newPeriods(requested, closed)
			tx.sagas["2026-05/1"] = domain.Saga{ID: uuid.UUID{5}}
			tx.offboardings = map[uuid.UUID]*domain.Offboarding{activeTenant: {TenantID: activeTenant, State: state}}
			tx.policy(24)
			_, err := c.Close(t.Context(), keyed(1), ClosePeriod{TenantID: activeTenant, PeriodKey: "2026-04", Reason: "r", Scheduled: scheduled})
			if refused {
				tx.refused(t, err, "tenant_offboarding", "")
			} else {
				tx.succeeded(t, err, 1)
			}
			if len(tx.sagas) != len(tx.changes[activeTenant].Changes)-1 {
				t.Errorf("%s: %d closes run after %+v", state, len(tx.sagas), tx.changes[activeTenant].Changes)
			}
			known, err := c.Close(t.Context(), Request{By: operator}, ClosePeriod{TenantID: activeTenant, PeriodKey: "2026-05", Reason: "again"})
			if err != nil || !known.Known || known.State != domain.StateClosed || known.ID != (uuid.UUID{5}) {
				t.Errorf("%s: a known close is answered %+v %v", state, known, err)
			}
		}
	}
}

// A reopening voids the pending adjustments of the snapshot, and names the approved ones.
func TestP8_AReopeningVoidsPendingAdjustments(t *testing.T) {
	c, tx := newPeriods(requested, closed)
	for i, state := range []string{events.AdjustmentPending, events.AdjustmentPending, events.AdjustmentApproved, events.AdjustmentWaived, events.AdjustmentVoid} {
		id := uuid.UUID{byte(i + 1)}
		tx.adjustments[id] = domain.Adjustment{ID: id, TenantID: activeTenant, State: state, Amount: big.NewInt(1)}
	}
	answer, event := tx.once(t, caused{subject: events.PeriodReopened, tenant: activeTenant, residency: "eu-central-1", key: events.KeyPeriod("2026-05", 1, "reopen")},
		func(req Request) (any, error) {
			return c.Reopen(t.Context(), req, activeTenant, "2026-05", "a mistake")
		})
	if want := (ReopenedPeriod{TenantID: activeTenant, PeriodKey: "2026-05", State: domain.StateOpen, Snapshot: 1, Voided: 2, Approved: 1, Position: ofAlice(1)}); answer != want {
		t.Errorf("answered %+v instead of %+v", answer, want)
	}
	if got := payload[events.ReopenedPeriod](t, &event); got != (events.ReopenedPeriod{PeriodKey: "2026-05", Snapshot: 1, Reason: "a mistake", Voided: 2}) {
		t.Errorf("recorded %+v", got)
	}
	d := event.Decided
	if d == nil || d.State != events.AdjustmentVoid || d.Snapshot != 1 || d.Scope == nil || d.Scope.PeriodKey != "2026-05" || d.Scope.UpTo.Number != wholeLog || d.Scope.Feature+d.Scope.Kind != "" {
		t.Errorf("the reopening decides %+v", d)
	}
	if want := (domain.PeriodChange{Position: 1, PeriodKey: "2026-05", Snapshot: 1, Change: reopened}); tx.changes[activeTenant].Changes[2] != want {
		t.Errorf("saved %+v", tx.changes[activeTenant].Changes)
	}
}

func TestP8_BadReopeningsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		changes       []string
		key, reason   string
		tenant        uuid.UUID
		code, pointer string
	}{
		"no reason":    {[]string{requested, closed}, "2026-05", "", activeTenant, "reason_required", "/reason"},
		"never closed": {nil, "2026-05", "r", activeTenant, "period_not_closed", ""},
		"of another":   {[]string{requested, closed}, "2026-05", "r", suspendedTenant, "period_not_closed", ""},
		"of nobody":    {[]string{requested, closed}, "2026-05", "r", uuid.UUID{9}, "tenant_not_found", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, tx := newPeriods(c.changes...)
			_, err := p.Reopen(t.Context(), keyed(1), c.tenant, c.key, c.reason)
			tx.refused(t, err, c.code, c.pointer)
		})
	}
}
