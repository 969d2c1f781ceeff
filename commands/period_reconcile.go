package commands

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// SagaReconcile is the kind of the sagas that propose adjustments after a flip of generations: closed periods stay as they are, and the
// difference of each line becomes an adjustment.
const SagaReconcile = "period_reconcile"

const stepReconcile = "reconcile"

// startReconcile starts the reconciliation of the closed periods in a rebuild's scope, in the transaction of its flip.
func startReconcile(tx SagaStarter, id uuid.UUID, r *domain.Rebuild) error {
	_, _, err := tx.StartSaga(domain.SagaStart{ID: id, Kind: SagaReconcile, TenantID: r.TenantID, Key: strconv.Itoa(r.Flip) + "/" + r.ID.String(), FirstStep: stepReconcile})
	return err
}

// ReconcileKind returns the kind of the sagas that reconcile closed periods.
func (c *Periods) ReconcileKind() SagaKind {
	return SagaKind{Name: SagaReconcile, Steps: []string{stepReconcile}, Run: c.runReconcile}
}

// runReconcile proposes the differences of all closed periods of a flip's tenants, tenant by tenant. A line whose difference is proposed no longer differs, so
// a repeated run may start from the beginning.
func (c *Periods) runReconcile(ctx context.Context, s *domain.Saga) (domain.SagaResult, error) {
	number, rebuild, _ := strings.Cut(s.Key, "/")
	flip, err := strconv.Atoi(number)
	if err != nil {
		return domain.SagaResult{}, fmt.Errorf("the key %q of a reconciliation names no flip", s.Key)
	}
	id, err := uuid.Parse(rebuild)
	if err != nil {
		return domain.SagaResult{}, fmt.Errorf("the key %q of a reconciliation names no rebuild", s.Key)
	}
	tenants := []uuid.UUID{s.TenantID}
	if s.TenantID == uuid.Nil {
		if tenants, err = c.Store.ClosedTenants(ctx); err != nil {
			return domain.SagaResult{}, err
		}
	}
	for _, tenant := range tenants {
		err := c.Store.FreezePeriod(ctx, tenant, func(tx FreezeTx) error { return c.propose(tx, tenant, flip, id) })
		if err != nil {
			return domain.SagaResult{}, err
		}
	}
	return domain.SagaDone(), nil
}

// propose appends a proposal for each line of a tenant's closed periods that differs from its frozen figure and its adjustments.
func (c *Periods) propose(tx FreezeTx, tenant uuid.UUID, flip int, rebuild uuid.UUID) error {
	lines, err := tx.Unreconciled(tenant)
	if err != nil || len(lines) == 0 {
		return err
	}
	req, now := serviceRequest(), c.now()
	list := make([]events.Pending, 0, len(lines))
	for i := range lines {
		l := &lines[i]
		id := c.NewID()
		p, err := req.event(id, now, tenant, events.AdjustmentProposed, events.ProposedAdjustment{AdjustmentID: id, PeriodKey: l.PeriodKey, Snapshot: l.Snapshot,
			Feature: l.Feature, SubscriptionID: l.SubscriptionID, Kind: events.RebuiltFigure, Amount: l.Amount.String(), EventCount: l.EventCount, Flip: flip, RebuildID: &rebuild})
		if err != nil {
			return err
		}
		p.DedupeKey = events.KeyProposal(flip, l.PeriodKey, l.Feature, l.SubscriptionID)
		p.Adjustment = &events.Adjustment{PeriodKey: l.PeriodKey, Feature: l.Feature, Snapshot: l.Snapshot, SubscriptionID: l.SubscriptionID,
			Kind: events.RebuiltFigure, Amount: l.Amount, EventCount: l.EventCount, RebuildID: &rebuild}
		list = append(list, p)
	}
	_, err = appendAll(tx, list...)
	return err
}
