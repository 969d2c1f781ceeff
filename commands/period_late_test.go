package commands

import (
	"testing"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
)

// Late usage is reconciled once it is folded, once, and again if more of it arrives.
func TestP8_LateUsageIsReconciledOnce(t *testing.T) {
	p, tx := newPeriods(requested, closed)
	woken := 0
	p.Wake = func() { woken++ }
	r := &LateReconciles{Periods: p, Logger: p.Logger}
	tx.differences = []domain.UnreconciledLine{{}}
	usage := LateUsage{TenantID: activeTenant, Flip: 4, RebuildID: uuid.UUID{77}, Position: 17, Resolved: 2, Snapshots: 1}
	for n, look := range []struct {
		change func()
		sagas  int
	}{
		{func() { tx.late = []LateUsage{{TenantID: uuid.UUID{15: 1}, Ready: true, Flip: 4, Position: 1}, usage} }, 1},
		{func() { tx.late[1].Ready = true }, 2},
		{func() {}, 2},
		{func() { tx.late[1].Position++ }, 3},
		{func() { tx.late[1].Resolved++ }, 4},
		{func() { tx.late[1].Snapshots++ }, 5},
		{func() { tx.late[1].Flip++ }, 6},
		{func() { tx.differences = nil; tx.late[1].Position++ }, 6},
		{func() { tx.differences = []domain.UnreconciledLine{{}} }, 6}, // compared before
		{func() { tx.late[1].Position++ }, 7},
	} {
		look.change()
		if err := r.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(tx.sagas) != look.sagas || woken != look.sagas {
			t.Errorf("look %d: %d sagas, woken %d times; want %d", n, len(tx.sagas), woken, look.sagas)
		}
	}
	for _, s := range tx.sagas {
		if _, err := readReconciliation(s.Key); err != nil || s.Kind != SagaReconcile || s.Step != stepReconcile || s.State != domain.SagaRunning && s.State != "" {
			t.Errorf("the saga %+v: %v", s, err)
		}
	}
}
