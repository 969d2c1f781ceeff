package billing

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// SagaReconcile is the kind of the sagas that propose adjustments after a flip of generations, and after late usage that the live fold
// counts in another way than the log: closed periods stay as they are, and the difference of each line becomes an adjustment.
const SagaReconcile = "period_reconcile"

const stepReconcile = "reconcile"

// reconciliation identifies a saga of SagaReconcile among those of its tenant. Its key is written as flip/rebuild, or flip/rebuild/late.
type reconciliation struct {
	flip    int
	rebuild uuid.UUID // Nil: the live generation is of no rebuild
	late    string    // identifies a LateUsage; "": the reconciliation of the flip itself
}

func (r reconciliation) key() string {
	return strings.TrimSuffix(strconv.Itoa(r.flip)+"/"+r.rebuild.String()+"/"+r.late, "/")
}

// name is the part of KeyProposal that is its own.
func (r reconciliation) name() string {
	return strings.TrimSuffix(strconv.Itoa(r.flip)+"/"+r.late, "/")
}

func readReconciliation(key string) (r reconciliation, err error) {
	number, rest, _ := strings.Cut(key, "/")
	rebuild, late, _ := strings.Cut(rest, "/")
	if r.flip, err = strconv.Atoi(number); err != nil {
		return r, fmt.Errorf("the key %q of a reconciliation names no flip", key)
	}
	if r.rebuild, err = uuid.Parse(rebuild); err != nil {
		return r, fmt.Errorf("the key %q of a reconciliation names no rebuild", key)
	}
	r.late = late
	return r, nil
}

// ReconcileFlip starts the reconciliation of the closed periods of a tenant, or of all if it is Nil, after a flip to a rebuild's
// generation, or back.
func ReconcileFlip(tx commands.SagaStarter, id, tenant uuid.UUID, flip int, rebuild uuid.UUID) error {
	_, err := startReconcile(tx, id, tenant, reconciliation{flip: flip, rebuild: rebuild})
	return err
}

// startReconcile starts the reconciliation of the closed periods of a tenant, or of all if it is Nil.
func startReconcile(tx commands.SagaStarter, id, tenant uuid.UUID, r reconciliation) (started bool, err error) {
	_, started, err = tx.StartSaga(domain.SagaStart{ID: id, Kind: SagaReconcile, TenantID: tenant, Key: r.key(), FirstStep: stepReconcile})
	return started, err
}

// ReconcileKind returns the kind of the sagas that reconcile closed periods.
func (c *Periods) ReconcileKind() commands.SagaKind {
	return commands.SagaKind{Name: SagaReconcile, Steps: []string{stepReconcile}, Run: c.runReconcile}
}

// runReconcile proposes the differences of all closed periods of the reconciled tenants, tenant by tenant. A line whose difference is
// proposed no longer differs, so a repeated run may start from the beginning.
func (c *Periods) runReconcile(ctx context.Context, s *domain.Saga) (domain.SagaResult, error) {
	of, err := readReconciliation(s.Key)
	if err != nil {
		return domain.SagaResult{}, err
	}
	tenants := []uuid.UUID{s.TenantID}
	if s.TenantID == uuid.Nil {
		if tenants, err = c.Store.ClosedTenants(ctx); err != nil {
			return domain.SagaResult{}, err
		}
	}
	for _, tenant := range tenants {
		err := c.Store.FreezePeriod(ctx, tenant, func(tx FreezeTx) error { return c.propose(tx, tenant, of) })
		if err != nil {
			return domain.SagaResult{}, err
		}
	}
	return domain.SagaDone(), nil
}

// propose appends a proposal for each line of a tenant's closed periods that differs from its frozen figure and its adjustments.
func (c *Periods) propose(tx FreezeTx, tenant uuid.UUID, of reconciliation) error {
	lines, err := tx.Unreconciled(tenant)
	if err != nil || len(lines) == 0 {
		return err
	}
	req, now := commands.ServiceRequest(), c.now()
	var rebuild *uuid.UUID
	if of.rebuild != uuid.Nil {
		rebuild = &of.rebuild
	}
	list := make([]events.Pending, 0, len(lines))
	for i := range lines {
		l := &lines[i]
		id := c.NewID()
		p, err := req.Event(id, now, tenant, events.AdjustmentProposed, events.ProposedAdjustment{AdjustmentID: id, PeriodKey: l.PeriodKey,
			Snapshot: l.Snapshot,
			Feature:  l.Feature, SubscriptionID: l.SubscriptionID, Kind: events.AdjustmentRebuild, Amount: l.Amount.String(),
			EventCount: l.EventCount, Flip: of.flip, RebuildID: rebuild})
		if err != nil {
			return err
		}
		p.DedupeKey = events.KeyProposal(of.name(), l.PeriodKey, l.Feature, l.SubscriptionID)
		p.Adjustment = &events.Adjustment{PeriodKey: l.PeriodKey, Feature: l.Feature, Snapshot: l.Snapshot,
			SubscriptionID: l.SubscriptionID,
			Kind:           events.AdjustmentRebuild, Amount: l.Amount, EventCount: l.EventCount, RebuildID: rebuild}
		list = append(list, p)
	}
	_, err = commands.AppendAll(tx, list...)
	return err
}
