package billing

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// LateUsage is late usage of a tenant's closed periods. The log counts it by the verdict's amount, and the live fold, which is of another
// version than the first, perhaps otherwise.
type LateUsage struct {
	TenantID  uuid.UUID
	Flip      int
	RebuildID uuid.UUID // of the flip; Nil: the live generation is of no rebuild
	Position  int64     // of its last adjustment
	Resolved  int64     // how many of the tenant's events failed in aggregation and were folded later
	Snapshots int64     // of the tenant's closed periods
	Ready     bool      // the live generation has passed Position, and no reconciliation of the tenant is open
}

func (l *LateUsage) reconciliation() reconciliation {
	return reconciliation{flip: l.Flip, rebuild: l.RebuildID, late: fmt.Sprintf("%d/%d/%d", l.Position, l.Resolved, l.Snapshots)}
}

// LateReconciles starts reconciliations of late usage. Any number of instances may run it: the saga has one key.
type LateReconciles struct {
	Periods *Periods

	seen  uuid.UUID               // the newest adjustment when all late usage was compared last
	equal map[uuid.UUID]LateUsage // whose lines do not differ, by tenant
	looks int
}

// lateBatch bounds the tenants whose lines one look compares.
const lateBatch = 200

// lateWhole is the number of looks of which one compares all tenants: neither a close nor the end of a dead letter adds an adjustment.
const lateWhole = 12

// Look starts the reconciliation of each tenant whose late usage is folded, if a line differs. One that fails delays no other.
func (r *LateReconciles) Look(ctx context.Context) (failed error) {
	if r.looks++; r.looks%lateWhole == 0 {
		r.seen = uuid.Nil
	}
	list, newest, err := r.Periods.Store.LateUsage(ctx, r.seen)
	if err != nil {
		return err
	}
	if r.equal == nil {
		r.equal = map[uuid.UUID]LateUsage{}
	}
	wake, left, compared := false, false, 0
	for _, l := range list {
		if r.equal[l.TenantID] == l {
			continue
		}
		if !l.Ready || compared == lateBatch {
			left = true
			continue
		}
		compared++
		started, err := r.reconcile(ctx, l)
		wake = wake || started
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("reconciling late usage of tenant %s: %w", l.TenantID, err))
		}
	}
	if wake && r.Periods.Wake != nil {
		r.Periods.Wake()
	}
	if failed == nil && !left {
		r.seen = newest
	}
	return failed
}

// reconcile starts the reconciliation of a tenant, if a line differs.
func (r *LateReconciles) reconcile(ctx context.Context, l LateUsage) (started bool, err error) {
	differs, err := r.Periods.Store.Differs(ctx, l.TenantID)
	if err != nil {
		return false, err
	}
	if !differs {
		r.equal[l.TenantID] = l
		return false, nil
	}
	err = r.Periods.Store.ChangePeriods(ctx, l.TenantID, func(tx PeriodTx) (err error) {
		started, err = startReconcile(tx, r.Periods.NewID(), l.TenantID, l.reconciliation())
		return err
	})
	return started, err
}
