package usage

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// maxLeftOut bounds the left out events of one answer.
const maxLeftOut = 1000

// LeftOutUsage is an event of a figure's feature, used in its period, that is not in
// the figure, and why: REJECTED by the validator, or DEAD_LETTERED since its verdict
// could not be folded or published.
type LeftOutUsage struct {
	EventID         string          `json:"eventId"`
	Position        events.Position `json:"position"`
	Status          string          `json:"status" enum:"REJECTED,DEAD_LETTERED"`
	Code            string          `json:"code"`
	Reason          string          `json:"reason"`
	Timestamp       time.Time       `json:"timestamp"`
	VerdictPosition events.Position `json:"verdictPosition"`
}

const readRejections = `
SELECT l.position, l.occurred_at, l.causation_id, l.payload FROM event_log l
WHERE l.partition = $1 AND l.tenant_id = $2 AND l.dedupe_key > 'x/' AND l.dedupe_key < 'x0'
  AND l.payload ->> 'feature' = $3 AND ($4::timestamptz IS NULL OR l.occurred_at >= $4 AND l.occurred_at < $5)`

// leftOut lists the last refusal of each event that is not counted. A refused event
// has no period of its own: the time of usage determines it.
func (x *explanation) leftOut(ctx context.Context, tx pgx.Tx, t *tenantVerdicts, parked []countedUsage) ([]LeftOutUsage, bool, error) {
	last := make(map[int64]LeftOutUsage)
	keep := func(raw int64, u LeftOutUsage) {
		if !x.raws[raw] && u.VerdictPosition.Number > last[raw].VerdictPosition.Number {
			u.Position = events.Position{Partition: t.partition, Number: raw}
			last[raw] = u
		}
	}
	for _, c := range parked {
		why := t.uncounted[c.position]
		keep(c.verdict.RawPosition, LeftOutUsage{EventID: c.verdict.EventID, Status: projections.UsageDeadLettered, Code: why.code, Reason: why.reason,
			Timestamp: c.verdict.Timestamp.UTC(), VerdictPosition: events.Position{Partition: t.partition, Number: c.position}})
	}
	var from, to *time.Time
	if start, end, ok := domain.PeriodBounds(x.PeriodKey); ok {
		from, to = &start, &end
	}
	if err := t.readRetried(ctx, tx); err != nil {
		return nil, false, err
	}
	args := []any{t.partition, t.tenant, x.Feature, from, to}
	err := query.Run(ctx, tx, query.New(readRejections, args, query.Each(func(rows pgx.Rows) error {
		u := LeftOutUsage{Status: projections.UsageRejected, VerdictPosition: events.Position{Partition: t.partition}}
		var causation *uuid.UUID
		var payload []byte
		if err := rows.Scan(&u.VerdictPosition.Number, &u.Timestamp, &causation, &payload); err != nil {
			return err
		}
		var no events.Rejected
		if err := json.Unmarshal(payload, &no); err != nil {
			return err
		}
		if x.live || t.causeOf(no.RawPosition, causation) <= x.place.asOf {
			u.EventID, u.Code, u.Reason, u.Timestamp = no.EventID, no.Code, no.Reason, u.Timestamp.UTC()
			keep(no.RawPosition, u)
		}
		return nil
	})))
	list := make([]LeftOutUsage, 0, len(last))
	for _, u := range last {
		list = append(list, u)
	}
	slices.SortFunc(list, func(a, b LeftOutUsage) int { return cmp.Compare(a.Position.Number, b.Position.Number) })
	return list[:min(len(list), maxLeftOut)], len(list) > maxLeftOut, err
}
