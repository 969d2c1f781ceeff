package simulation

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// LateUsage is that of the second fold.
func (s pipeStore) LateUsage(_ context.Context, seen uuid.UUID) ([]commands.LateUsage, uuid.UUID, error) {
	p := s.p
	if p.version == 0 || len(p.adjustments) == 0 {
		return nil, seen, nil
	}
	newest := p.adjustments[len(p.adjustments)-1].id
	late := commands.LateUsage{TenantID: pipeTenant, Flip: p.flips, RebuildID: p.flipped, Resolved: int64(len(p.resolved)), Snapshots: int64(len(p.snapshots))}
	for i := range p.adjustments {
		if a := &p.adjustments[i]; a.Kind != events.RebuiltFigure && a.state != events.AdjustmentVoid {
			late.Position = max(late.Position, a.position)
		}
	}
	key := fmt.Sprintf("%d/%s/%d/%d/%d", late.Flip, late.RebuildID, late.Position, late.Resolved, late.Snapshots)
	known := slices.ContainsFunc(p.sagas, func(g *domain.Saga) bool { return g.Kind == commands.SagaReconcile && g.Key == key })
	open := slices.ContainsFunc(p.sagas, func(g *domain.Saga) bool { return g.Kind == commands.SagaReconcile && g.Open() })
	if late.Ready = p.aggregated >= late.Position && !open; late.Position == 0 || known || newest == seen {
		return nil, newest, nil
	}
	return []commands.LateUsage{late}, newest, nil
}

// Differs implements commands.PeriodStore.
func (s pipeStore) Differs(context.Context, uuid.UUID) (bool, error) {
	return len(s.p.unreconciled()) > 0, nil
}

// settle folds all events and ends all reconciliations. Then no line may differ.
func (p *periodPipe) settle() {
	for p.wrong == nil && int(p.aggregated) < len(p.log) {
		p.aggregate()
	}
	p.reconcileLate()
	opened := func(s *domain.Saga) bool { return s.Open() && s.Kind == commands.SagaReconcile }
	const whole = 12 // looks of which one sees all late usage
	for n := 0; p.wrong == nil && (n <= whole || slices.ContainsFunc(p.sagas, opened)); n++ {
		p.saga()
		p.validate()
		p.aggregate()
		p.reconcileLate()
	}
	if left := p.unreconciled(); p.wrong == nil && int(p.aggregated) == len(p.log) && len(left) > 0 {
		p.fail("at the end, row ≠ F + Σ adjustments: %s", describeSums(left))
	}
}

// reconcileLate starts the reconciliation of late usage that is due.
func (p *periodPipe) reconcileLate() {
	before := len(p.sagas)
	if err := p.late.Look(context.Background()); err != nil {
		p.fail("late usage: %w", err)
	}
	if len(p.sagas) > before {
		p.did("reconciliation of late usage")
	}
}
