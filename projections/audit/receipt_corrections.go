package audit

import (
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// CorrectionStep is a correction or a retraction that was applied to the event. Position is that of the recorded correction, At the
// time of the verdict on it.
type CorrectionStep struct {
	EventID         string          `json:"eventId" doc:"The eventId of the correction or the retraction."`
	Kind            string          `json:"kind" enum:"correction,retraction"`
	Position        events.Position `json:"position"`
	VerdictPosition events.Position `json:"verdictPosition"`
	Before          int64           `json:"before"`
	After           int64           `json:"after"`
	At              time.Time       `json:"at" doc:"The time at which the correction was validated, in UTC."`
}

// CorrectsStep is the change that a correction or a retraction made to its target.
type CorrectsStep struct {
	EventID  string          `json:"eventId" doc:"The eventId of the corrected usage."`
	Position events.Position `json:"position" doc:"The position of the corrected usage."`
	Kind     string          `json:"kind" enum:"correction,retraction"`
	Before   int64           `json:"before"`
	After    int64           `json:"after"`
}

// The last 1000 corrections of recorded usage, the latest first. LIMIT 1 makes the planner look up each position.
const readEventCorrections = `
SELECT c.kind, c.cause, c.position, c.before, c.after, substr(l.dedupe_key, 3), v.recorded_at
FROM usage_corrections c
CROSS JOIN LATERAL (SELECT e.dedupe_key FROM event_log e WHERE e.partition = $1 AND e.position = c.cause LIMIT 1) l
CROSS JOIN LATERAL (SELECT e.recorded_at FROM event_log e WHERE e.partition = $1 AND e.position = c.position LIMIT 1) v
WHERE c.tenant_id = $2 AND c.target = $3
ORDER BY c.n DESC
LIMIT 1000`

func (c *receipt) scanCorrection(rows pgx.Rows) error {
	s := CorrectionStep{Position: c.at(0), VerdictPosition: c.at(0)}
	err := rows.Scan(&s.Kind, &s.Position.Number, &s.VerdictPosition.Number, &s.Before, &s.After, &s.EventID, &s.At)
	s.At = s.At.UTC()
	c.Corrections = append(c.Corrections, s)
	return err
}

// concludeCorrections sets the members that follow from the verdict and the corrections.
func (c *receipt) concludeCorrections() {
	slices.Reverse(c.Corrections)
	if c.Validated == nil {
		return
	}
	if change := c.verdict.CorrectedUsage; change != nil {
		c.Corrects = &CorrectsStep{change.TargetEventID, c.at(change.TargetPosition), change.Kind, change.Before, change.After}
		return
	}
	amount := c.verdict.Amount
	if n := len(c.Corrections); n > 0 {
		amount = c.Corrections[n-1].After
	}
	c.EffectiveAmount = &amount
}
