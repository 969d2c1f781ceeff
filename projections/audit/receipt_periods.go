package audit

import (
	"encoding/json"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/projections"
)

// AdjustmentStep is an adjustment of a closed period that the event, or a correction of it, became.
type AdjustmentStep struct {
	ID     uuid.UUID   `json:"id"`
	Kind   string      `json:"kind" enum:"LATE_USAGE,LATE_COMMIT,RETRY,CORRECTION,RETRACTION"`
	Amount json.Number `json:"amount" doc:"The difference, an exact integer."`
	State  string      `json:"state" enum:"PENDING,APPROVED,WAIVED,VOID"`
}

// FrozenStep names the last snapshot whose frozen figure counts the event.
type FrozenStep struct {
	PeriodKey string `json:"periodKey"`
	Snapshot  int    `json:"snapshot" doc:"The last snapshot whose frozen figure counts the event."`
}

// The last 1000 adjustments of recorded usage and of its corrections.
const readEventAdjustments = `
SELECT a.id, a.kind, a.amount::text, a.state FROM (
  SELECT $2::bigint AS recorded UNION SELECT c.cause FROM usage_corrections c WHERE c.tenant_id = $1 AND c.target = $2) of
JOIN adjustments a ON a.tenant_id = $1 AND a.recorded = of.recorded AND a.kind <> 'REBUILD'
ORDER BY a.position DESC LIMIT 1000`

const readChangesOfPeriod = `SELECT position, snapshot, change FROM period_changes WHERE tenant_id = $1 AND period_key = $2
	ORDER BY position`

func (c *receipt) scanAdjustment(rows pgx.Rows) error {
	var a AdjustmentStep
	err := rows.Scan(&a.ID, &a.Kind, (*string)(&a.Amount), &a.State)
	c.Adjustments = append(c.Adjustments, a)
	return err
}

func (c *receipt) scanPeriodChange(rows pgx.Rows) error {
	change := domain.PeriodChange{PeriodKey: c.verdict.PeriodKey}
	err := rows.Scan(&change.Position, &change.Snapshot, &change.Change)
	c.periods.Changes = append(c.periods.Changes, change)
	return err
}

// concludePeriods sets the members that follow from the closes of the event's period.
func (c *receipt) concludePeriods() {
	if c.Validated == nil {
		return
	}
	c.Late = c.verdict.Late
	if c.Status != projections.UsageAggregated {
		return // a close that did not wait for it counts it as 0
	}
	cause := c.cause()
	for _, change := range c.periods.Changes {
		if change.Change == domain.PeriodClosed && c.periods.Cut(c.verdict.PeriodKey, change.Snapshot) >= cause {
			c.Frozen = &FrozenStep{c.verdict.PeriodKey, change.Snapshot}
		}
	}
}

// cause returns the position that decides which snapshots count the event.
func (c *receipt) cause() int64 {
	cause := c.facts.recorded
	for i := range c.retried {
		retry := c.retried[i]
		if retry.Position > c.facts.validated { // its verdict is folded again
			cause = c.periods.Cause(c.verdict.PeriodKey, cause, &domain.RetriedUsage{Position: retry.Position})
		} else {
			cause = c.periods.Cause(c.verdict.PeriodKey, c.facts.recorded, &retry)
		}
	}
	return cause
}
