package audit

import (
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// CorrectionStep is a correction or a retraction that was applied to the event. Position is that of the recorded correction, At the
// time of the verdict on it.
type CorrectionStep struct {
	EventID         string          `json:"eventId" doc:"The eventId of the correction or the retraction."`
	Kind            string          `json:"kind" enum:"CORRECTION,RETRACTION"`
	Position        events.Position `json:"position"`
	VerdictPosition events.Position `json:"verdictPosition"`
	Before          int64           `json:"before"`
	After           int64           `json:"after"`
	Delta           int64           `json:"delta" doc:"after - before: the change of the figure."`
	Status          string          `json:"status" enum:"VALIDATED,AGGREGATED,DEAD_LETTERED"`
	At              time.Time       `json:"at" doc:"The time at which the correction was validated, in UTC."`
}

// CorrectsStep is the change that a correction or a retraction made to its target.
type CorrectsStep struct {
	EventID  string          `json:"eventId" doc:"The eventId of the corrected usage."`
	Position events.Position `json:"position" doc:"The position of the corrected usage."`
	Kind     string          `json:"kind" enum:"CORRECTION,RETRACTION"`
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
	s.Kind, s.Delta = strings.ToUpper(s.Kind), s.After-s.Before
	c.Corrections = append(c.Corrections, s)
	return err
}

// The dead letters of corrections, by their eventIds $2.
const readCorrectionLetters = `
SELECT d.producer_event_id, d.stage, d.status, d.topic, coalesce(d.details ->> 'consumer', '')
FROM (SELECT p.generation FROM projection_pointers p
      WHERE p.live AND p.projection = '` + projections.ProjectionDeadLetters +
	`' AND p.tenant_id IN ($1, '00000000-0000-0000-0000-000000000000')
      ORDER BY p.tenant_id DESC LIMIT 1) live
JOIN dead_letter_events d ON d.generation = live.generation
WHERE d.tenant_id = $1 AND d.producer_event_id = ANY ($2) AND d.stage <> 'INGESTION'`

// correctionLetters reads the dead letters of the corrections.
func (c *receipt) correctionLetters() query.Statement {
	ids := make([]string, len(c.Corrections))
	for i := range c.Corrections {
		ids[i] = c.Corrections[i].EventID
	}
	c.correctionsLetters = map[string][]usageLetter{}
	return query.New(readCorrectionLetters, []any{c.TenantID, ids}, query.Each(func(rows pgx.Rows) error {
		var id string
		var l usageLetter
		err := rows.Scan(&id, &l.Stage, &l.Status, &l.Topic, &l.Consumer)
		c.correctionsLetters[id] = append(c.correctionsLetters[id], l)
		return err
	}))
}

// concludeCorrections sets the members that follow from the verdict and the corrections.
func (c *receipt) concludeCorrections() {
	slices.Reverse(c.Corrections)
	for i := range c.Corrections {
		s := &c.Corrections[i]
		facts := usageFacts{recorded: s.Position.Number, validated: s.VerdictPosition.Number, aggregated: c.facts.aggregated,
			letters: c.correctionsLetters[s.EventID],
			failing: c.facts.failing}
		s.Status = facts.status()
	}
	if c.Validated == nil {
		return
	}
	if change := c.verdict.CorrectedUsage; change != nil {
		c.Corrects = &CorrectsStep{change.TargetEventID, c.at(change.TargetPosition), strings.ToUpper(change.Kind), change.Before,
			change.After}
		return
	}
	amount := c.verdict.Amount
	if n := len(c.Corrections); n > 0 {
		amount = c.Corrections[n-1].After
	}
	c.EffectiveAmount = &amount
}
