package store

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/infra/local/localtest"
	"github.com/meterplex/meterplex/infra/postgres"
)

// The tenant and its periods are read with the lock. A change sees its own change of a period nevertheless, and other tenants.
func TestAChangeOfPeriodsSeesItsOwnChanges(t *testing.T) {
	w := newCachingWorld(t, localtest.Migrated(t, postgres.Migrate))
	w.fill()
	periods := &Periods{Store: w.store}
	undone := errors.New("undone")
	err := periods.ChangePeriods(t.Context(), w.a.id, func(tx commands.PeriodTx) error {
		if of, err := tx.Tenant(w.a.id); err != nil || of == nil || of.ID != w.a.id {
			t.Errorf("its tenant is %+v, %v", of, err)
		}
		if of, err := tx.Tenant(w.b.id); err != nil || of == nil || of.ID != w.b.id {
			t.Errorf("the other tenant is %+v, %v", of, err)
		}
		before, err := tx.Periods([]uuid.UUID{w.a.id})
		if err != nil || len(before[w.a.id].Changes) != 0 {
			t.Errorf("its periods before are %+v, %v", before, err)
		}
		change := domain.PeriodChange{Position: 7, PeriodKey: "2026-05", Snapshot: 1, Change: domain.PeriodCloseRequested}
		if err := tx.SavePeriodChange(w.a.id, change, time.Now()); err != nil {
			t.Error(err)
		}
		after, err := tx.Periods([]uuid.UUID{w.a.id})
		if list := after[w.a.id].Changes; err != nil || len(list) != 1 || list[0] != change {
			t.Errorf("its periods after are %+v, %v", after, err)
		}
		return undone
	})
	if err == nil {
		t.Error("the change is not undone")
	}
	if err := periods.ChangePeriods(t.Context(), uuid.UUID{1}, func(tx commands.PeriodTx) error {
		if of, err := tx.Tenant(uuid.UUID{1}); of != nil || err != nil {
			t.Errorf("an unknown tenant is %+v, %v", of, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
