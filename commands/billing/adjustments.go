package billing

import (
	"context"
	"encoding/json"
	"math/big"
	"slices"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// MaxDecided bounds the ids of one decision. A scope has no bound.
const MaxDecided = 1000

// Decisions on adjustments.
const (
	DecisionApprove = "approve"
	DecisionWaive   = "waive"
)

// DecideAdjustments is a request to decide adjustments: those of IDs, all of one tenant, or the pending ones of a scope.
type DecideAdjustments struct {
	IDs      []uuid.UUID
	TenantID uuid.UUID // of the scope
	Scope    *events.AdjustmentScope
	Decision string
	Reason   string
	DryRun   bool // count only
}

// DecidedAdjustments is the answer: how many adjustments are decided, or would be, and their sum.
type DecidedAdjustments struct {
	Count    int64            `json:"count"`
	Amount   json.Number      `json:"amount" doc:"Sum of their amounts."`
	Position *events.Position `json:"position" nullable:"true" doc:"Of the decision; null if no adjustment was decided."`
}

// check returns why a request to decide is invalid, nil if it is not.
func (in *DecideAdjustments) check() error {
	if refusal := domain.CheckReason(in.Reason); refusal != nil {
		return refusal
	}
	if err := commands.OneOf(in.Decision, "decision_invalid", "/decision", DecisionApprove, DecisionWaive); err != nil {
		return err
	}
	switch {
	case in.Scope != nil && len(in.IDs) > 0:
		return domain.Refuse("decision_invalid", "/ids", "send either ids or a scope (tenantId, periodKey, upTo), not both")
	case in.Scope == nil && len(in.IDs) == 0:
		return domain.Refuse("decision_invalid", "", "name the adjustments by ids, or by tenantId, periodKey and upTo")
	case len(in.IDs) > MaxDecided:
		return domain.Refuse("decision_invalid", "/ids", "ids has %d entries: at most %d are possible; use a scope", len(in.IDs),
			MaxDecided)
	case in.Scope == nil:
		return nil
	case in.Scope.Kind != "" && !slices.Contains(events.AdjustmentKinds(), in.Scope.Kind):
		return domain.Refuse("decision_invalid", "/kind", "kind must be one of %q", events.AdjustmentKinds())
	case in.Scope.UpTo.Partition != events.PartitionOf(in.TenantID) || in.Scope.UpTo.Number < 1:
		return domain.Refuse("decision_invalid", "/upTo",
			"upTo must be a position of the tenant's log: that of the last adjustment that you have seen")
	}
	if refusal := domain.CheckUsagePeriod(in.Scope.PeriodKey); refusal != nil {
		return refusal
	}
	return nil
}

// state returns the state that the decision sets.
func (in *DecideAdjustments) state() string {
	if in.Decision == DecisionApprove {
		return events.AdjustmentApproved
	}
	return events.AdjustmentWaived
}

// Decide approves or waives adjustments. It decides all of them, and only if all are pending.
func (c *Periods) Decide(ctx context.Context, req commands.Request, in DecideAdjustments) (DecidedAdjustments, error) {
	if err := in.check(); err != nil {
		return DecidedAdjustments{}, err
	}
	if in.Scope == nil {
		in.IDs = slices.Compact(slices.SortedFunc(slices.Values(in.IDs), func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }))
		tenants, err := c.Store.TenantsOfAdjustments(ctx, in.IDs)
		if err != nil {
			return DecidedAdjustments{}, err
		}
		in.TenantID = tenants[in.IDs[0]]
		for _, id := range in.IDs {
			switch tenant, known := tenants[id]; {
			case !known:
				return DecidedAdjustments{}, domain.Refuse("adjustment_not_found", "", "no such adjustment: %s", id)
			case tenant != in.TenantID:
				return DecidedAdjustments{},
					domain.Refuse("decision_invalid", "/ids", "the adjustments of one decision must belong to one tenant")
			}
		}
	}
	decided, err := commands.Change(c.changeOf(ctx, in.TenantID), req, func(tx PeriodTx) (DecidedAdjustments, error) {
		if _, err := commands.LoadTenant(tx, in.TenantID); err != nil {
			return DecidedAdjustments{}, err
		}
		if in.Scope != nil {
			return c.decideScope(tx, &req, &in)
		}
		return c.decideIDs(tx, &req, &in)
	})
	if err == nil && decided.Position != nil && c.Wake != nil {
		c.Wake()
	}
	return decided, err
}

func (c *Periods) decideIDs(tx PeriodTx, req *commands.Request, in *DecideAdjustments) (DecidedAdjustments, error) {
	list, err := tx.Adjustments(in.TenantID, in.IDs)
	if err != nil {
		return DecidedAdjustments{}, err
	}
	var sum big.Int
	for i := range list {
		if refusal := list[i].Decidable(); refusal != nil {
			return DecidedAdjustments{}, refusal
		}
		sum.Add(&sum, list[i].Amount)
	}
	said := events.DecidedAdjustments{IDs: in.IDs, Count: int64(len(list)), Amount: sum.String()}
	return c.decide(tx, req, in, said, events.AdjustmentChange{IDs: in.IDs}, domain.PeriodsOf(list))
}

func (c *Periods) decideScope(tx PeriodTx, req *commands.Request, in *DecideAdjustments) (DecidedAdjustments, error) {
	periods, err := tx.Periods([]uuid.UUID{in.TenantID})
	if err != nil {
		return DecidedAdjustments{}, err
	}
	history := periods[in.TenantID]
	last := history.Last(in.Scope.PeriodKey)
	if last.State() == domain.StateOpen {
		return DecidedAdjustments{}, domain.Refuse("period_not_closed", "", "the period %s is open: it has no pending adjustments",
			in.Scope.PeriodKey)
	}
	said := events.DecidedAdjustments{Scope: in.Scope}
	if said.Count, said.Amount, err = tx.PendingAdjustments(in.TenantID, last.Snapshot, *in.Scope); err != nil {
		return DecidedAdjustments{}, err
	}
	return c.decide(tx, req, in, said, events.AdjustmentChange{Scope: in.Scope, Snapshot: last.Snapshot},
		[]domain.Closing{{TenantID: in.TenantID, PeriodKey: in.Scope.PeriodKey, Snapshot: last.Snapshot}})
}

// decide appends a decision, unless it is a dry run or no adjustment is pending. Approved amounts of the snapshots are pushed.
func (c *Periods) decide(tx PeriodTx, req *commands.Request, in *DecideAdjustments, said events.DecidedAdjustments,
	changed events.AdjustmentChange, of []domain.Closing) (DecidedAdjustments, error) {
	answer := DecidedAdjustments{Count: said.Count, Amount: json.Number(said.Amount)}
	if in.DryRun || said.Count == 0 {
		return answer, nil
	}
	said.Decision, said.Reason = in.state(), in.Reason
	p, err := req.Event(c.NewID(), c.now(), in.TenantID, events.AdjustmentDecided, said)
	if err != nil {
		return answer, err
	}
	changed.State, changed.Reason = said.Decision, in.Reason
	p.Decided = &changed
	at, err := commands.AppendOne(tx, p)
	answer.Position = &at
	if err != nil || changed.State != events.AdjustmentApproved {
		return answer, err
	}
	return answer, StartPushes(tx, c.NewID, of, at)
}
