package commands

import (
	"encoding/json"
	"math/big"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// newAdjustments returns the command beside a closed period of Alice with pending adjustments 1 (of 5) and 2 (of -7), an approved one 3 and one
// of Barry, 4.
func newAdjustments() (*Periods, *periodTx) {
	c, tx := newPeriods(requested, closed)
	for i, a := range []domain.Adjustment{{State: events.AdjustmentPending, Amount: big.NewInt(5)}, {State: events.AdjustmentPending, Amount: big.NewInt(-7)},
		{State: events.AdjustmentApproved, Amount: big.NewInt(100)}, {TenantID: suspendedTenant, State: events.AdjustmentPending, Amount: big.NewInt(9)}} {
		if a.ID = (uuid.UUID{byte(i + 1)}); a.TenantID == uuid.Nil {
			a.TenantID = activeTenant
		}
		tx.adjustments[a.ID] = a
	}
	return c, tx
}

func scopeOfMay(spoil ...func(*events.AdjustmentScope)) *events.AdjustmentScope {
	s := &events.AdjustmentScope{PeriodKey: "2026-05", UpTo: ofAlice(100)}
	for _, f := range spoil {
		f(s)
	}
	return s
}

func TestP8_BadDecisionsAreRefused(t *testing.T) {
	ids := func(n ...byte) (list []uuid.UUID) {
		for _, id := range n {
			list = append(list, uuid.UUID{id})
		}
		return list
	}
	for name, c := range map[string]struct {
		in            DecideAdjustments
		code, pointer string
	}{
		"no reason":         {DecideAdjustments{IDs: ids(1), Decision: DecisionApprove}, "reason_required", "/reason"},
		"no decision":       {DecideAdjustments{IDs: ids(1), Reason: "r"}, "decision_invalid", "/decision"},
		"another decision":  {DecideAdjustments{IDs: ids(1), Reason: "r", Decision: "VOID"}, "decision_invalid", "/decision"},
		"both":              {DecideAdjustments{IDs: ids(1), Scope: scopeOfMay(), TenantID: activeTenant, Reason: "r", Decision: DecisionApprove}, "decision_invalid", "/ids"},
		"neither":           {DecideAdjustments{Reason: "r", Decision: DecisionApprove}, "decision_invalid", ""},
		"too many":          {DecideAdjustments{IDs: make([]uuid.UUID, MaxDecided+1), Reason: "r", Decision: DecisionApprove}, "decision_invalid", "/ids"},
		"unknown":           {DecideAdjustments{IDs: ids(1, 9), Reason: "r", Decision: DecisionApprove}, "adjustment_not_found", ""},
		"of two tenants":    {DecideAdjustments{IDs: ids(1, 4), Reason: "r", Decision: DecisionApprove}, "decision_invalid", "/ids"},
		"decided":           {DecideAdjustments{IDs: ids(1, 3), Reason: "r", Decision: DecisionWaive}, "adjustment_decided", ""},
		"decided, dry run":  {DecideAdjustments{IDs: ids(3), Reason: "r", Decision: DecisionWaive, DryRun: true}, "adjustment_decided", ""},
		"another kind":      {DecideAdjustments{Scope: scopeOfMay(func(s *events.AdjustmentScope) { s.Kind = "late" }), TenantID: activeTenant, Reason: "r", Decision: DecisionWaive}, "decision_invalid", "/kind"},
		"no position":       {DecideAdjustments{Scope: scopeOfMay(func(s *events.AdjustmentScope) { s.UpTo.Number = 0 }), TenantID: activeTenant, Reason: "r", Decision: DecisionWaive}, "decision_invalid", "/upTo"},
		"another partition": {DecideAdjustments{Scope: scopeOfMay(func(s *events.AdjustmentScope) { s.UpTo.Partition++ }), TenantID: activeTenant, Reason: "r", Decision: DecisionWaive}, "decision_invalid", "/upTo"},
		"a bad key":         {DecideAdjustments{Scope: scopeOfMay(func(s *events.AdjustmentScope) { s.PeriodKey = "2026-00" }), TenantID: activeTenant, Reason: "r", Decision: DecisionWaive}, "period_key_invalid", "/periodKey"},
		"of the lifetime":   {DecideAdjustments{Scope: scopeOfMay(func(s *events.AdjustmentScope) { s.PeriodKey = domain.PeriodLifetime }), TenantID: activeTenant, Reason: "r", Decision: DecisionWaive}, "period_not_closed", ""},
		"of an open period": {DecideAdjustments{Scope: scopeOfMay(func(s *events.AdjustmentScope) { s.PeriodKey = "2026-04" }), TenantID: activeTenant, Reason: "r", Decision: DecisionWaive}, "period_not_closed", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, tx := newAdjustments()
			_, err := p.Decide(t.Context(), keyed(1), c.in)
			tx.refused(t, err, c.code, c.pointer)
		})
	}
}

// Adjustments named by ids are decided together, each once however often it is named.
func TestP8_AdjustmentsAreDecidedByIDs(t *testing.T) {
	c, tx := newAdjustments()
	for decision, state := range map[string]string{DecisionApprove: events.AdjustmentApproved, DecisionWaive: events.AdjustmentWaived} {
		tx.appended = nil
		tx.answers = map[string]Answer{}
		answer, event := tx.once(t, caused{subject: events.AdjustmentDecided, tenant: activeTenant, residency: "eu-central-1"}, func(req Request) (any, error) {
			return c.Decide(t.Context(), req, DecideAdjustments{IDs: []uuid.UUID{{2}, {1}, {2}}, Decision: decision, Reason: "checked"})
		})
		if got := answer.(DecidedAdjustments); got.Count != 2 || got.Amount != "-2" || got.Position == nil || *got.Position != ofAlice(1) {
			t.Errorf("answered %+v", got)
		}
		got := payload[events.DecidedAdjustments](t, &event)
		if want := []uuid.UUID{{1}, {2}}; !slices.Equal(got.IDs, want) || got.Scope != nil || got.Decision != state || got.Reason != "checked" || got.Count != 2 || got.Amount != "-2" {
			t.Errorf("recorded %+v", got)
		}
		if d := event.Decided; d == nil || d.State != state || d.Reason != "checked" || !slices.Equal(d.IDs, got.IDs) || d.Scope != nil {
			t.Errorf("decides %+v", d)
		}
	}
}

// A scope decides the pending adjustments of the present snapshot. Without any, no event is recorded.
func TestP8_AdjustmentsAreDecidedByScope(t *testing.T) {
	c, tx := newAdjustments()
	scope := scopeOfMay(func(s *events.AdjustmentScope) { s.Feature, s.Kind = "calls", events.LateRetry })
	in := DecideAdjustments{Scope: scope, TenantID: activeTenant, Decision: DecisionWaive, Reason: "small"}
	answer, event := tx.once(t, caused{subject: events.AdjustmentDecided, tenant: activeTenant, residency: "eu-central-1"}, func(req Request) (any, error) {
		return c.Decide(t.Context(), req, in)
	})
	if got := answer.(DecidedAdjustments); got.Count != 2 || got.Amount != "-2" || *got.Position != ofAlice(1) {
		t.Errorf("answered %+v", got)
	}
	if got := payload[events.DecidedAdjustments](t, &event); got.Scope == nil || *got.Scope != *scope || got.IDs != nil || got.Decision != events.AdjustmentWaived {
		t.Errorf("recorded %+v", got)
	}
	if d := event.Decided; d == nil || d.Snapshot != 1 || d.Scope == nil || *d.Scope != *scope || d.State != events.AdjustmentWaived || d.IDs != nil {
		t.Errorf("decides %+v", d)
	}
	in.TenantID, in.Scope = suspendedTenant, scopeOfMay(func(s *events.AdjustmentScope) { s.UpTo.Partition = events.PartitionOf(suspendedTenant) })
	tx.changes[suspendedTenant] = tx.changes[activeTenant]
	delete(tx.adjustments, uuid.UUID{4})
	nothing, err := c.Decide(t.Context(), Request{By: operator}, in)
	if tx.succeeded(t, err, 1); nothing != (DecidedAdjustments{Amount: json.Number("0")}) {
		t.Errorf("answered %+v", nothing)
	}
}

func TestP8_ADryRunDecidesNothing(t *testing.T) {
	c, tx := newAdjustments()
	for name, in := range map[string]DecideAdjustments{"ids": {IDs: []uuid.UUID{{1}, {2}}}, "scope": {Scope: scopeOfMay(), TenantID: activeTenant}} {
		in.DryRun, in.Decision, in.Reason = true, DecisionApprove, "r"
		got, err := c.Decide(t.Context(), Request{By: operator}, in)
		if tx.succeeded(t, err, 0); got != (DecidedAdjustments{Count: 2, Amount: "-2"}) {
			t.Errorf("%s: answered %+v", name, got)
		}
	}
}
