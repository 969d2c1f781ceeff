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

// Late usage is listed again if some of it was not compared yet, else once an adjustment is added, and after a minute: a close adds none.
func TestP8_LateUsageIsListedUntilAllOfItIsCompared(t *testing.T) {
	p, tx := newPeriods(requested, closed)
	r := &LateReconciles{Periods: p, Logger: p.Logger}
	tx.differences, tx.newest = []domain.UnreconciledLine{{}}, uuid.UUID{1}
	late := func(first, n int) {
		for i := range n {
			tx.late = append(tx.late, LateUsage{TenantID: uuid.UUID{14: byte((first + i) >> 8), 15: byte(first + i)}, Flip: 4, Position: int64(first + i + 1), Ready: true})
		}
	}
	look := func(sagas int) {
		t.Helper()
		if err := r.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
		tx.late = nil // the store lists none that has a saga
		if len(tx.sagas) != sagas {
			t.Fatalf("%d sagas, want %d", len(tx.sagas), sagas)
		}
	}
	late(0, lateBatch+1)
	look(lateBatch)
	late(lateBatch, 1) // the one that was left
	look(lateBatch + 1)
	late(500, 1)
	look(lateBatch + 1) // no new adjustment
	tx.newest = uuid.UUID{2}
	late(500, 1)
	look(lateBatch + 2)
	tx.late = nil
	for range lateWhole {
		late(600, 1)
		if err := r.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(tx.sagas) > lateBatch+2 {
			return
		}
		tx.late = nil
	}
	t.Errorf("%d looks did not compare late usage without a new adjustment", lateWhole)
}
