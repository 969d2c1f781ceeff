package usage

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections"
	"github.com/meterplex/meterplex/projections/query"
)

// maxLeftOut bounds the left out events of one answer.
const maxLeftOut = 1000

// mostLookedThrough bounds the tenant's rejections, and its failures, that one answer looks through for
// those of the figure.
const mostLookedThrough = 10_000

// mostAtOnce bounds the events whose facts one statement reads.
const mostAtOnce = 1000

// LeftOutUsage is an event of a figure's feature, used in its period, that is not in
// the figure, and why: REJECTED by the validator, or DEAD_LETTERED since its verdict
// could not be folded or published. A correction or a retraction is left out of the period of its target.
type LeftOutUsage struct {
	EventID         string          `json:"eventId"`
	Kind            string          `json:"kind" enum:"usage,correction,retraction"`
	Position        events.Position `json:"position"`
	Status          string          `json:"status" enum:"REJECTED,DEAD_LETTERED"`
	Code            string          `json:"code"`
	Reason          string          `json:"reason"`
	Timestamp       time.Time       `json:"timestamp"`
	VerdictPosition events.Position `json:"verdictPosition"`
}

// leftOutSearch finds the events that are not in an explained figure. It does not read the figure: its
// candidates are the tenant's events that were rejected and those whose verdicts failed, and
// of each of them it reads whether the figure counts it.
type leftOutSearch struct {
	*explanation
	verdicts *tenantVerdicts
	from, to *time.Time     // of the period; nil: lifetime
	seen     map[int64]bool // recorded positions
	list     []LeftOutUsage
}

// leftOut lists the last refusal of each event that is not counted, by the position of the event: those
// whose verdicts failed and the latest of the others, at most maxLeftOut. More is true if there are
// others, and if the tenant has more rejections or failures than mostLookedThrough: others may be among
// those that were not looked at.
func (x *explanation) leftOut(ctx context.Context, tx pgx.Tx, t *tenantVerdicts) (list []LeftOutUsage, more bool, err error) {
	s := &leftOutSearch{explanation: x, verdicts: t, seen: make(map[int64]bool), list: []LeftOutUsage{}}
	if start, end, ok := domain.PeriodBounds(x.PeriodKey); ok {
		s.from, s.to = &start, &end
	}
	failures, err := s.scanFailures(ctx, tx)
	if err != nil {
		return nil, false, err
	}
	rejections, err := s.scanRejections(ctx, tx)
	slices.SortFunc(s.list, func(a, b LeftOutUsage) int { return cmp.Compare(a.Position.Number, b.Position.Number) })
	return s.list[max(0, len(s.list)-maxLeftOut):], failures || rejections || len(s.list) > maxLeftOut, err
}

// full reports whether more events are found than an answer lists.
func (s *leftOutSearch) full() bool { return len(s.list) > maxLeftOut }

const readRejected = `SELECT rejected_positions($1, $2, $3)`

// scanRejections looks at the tenant's rejected events, the latest first. A refused event has no period
// of its own: the time of usage determines it; for a correction the verdict on its target, or the target's time, if there is one. It
// returns true if it ended before the first of them.
func (s *leftOutSearch) scanRejections(ctx context.Context, tx pgx.Tx) (more bool, err error) {
	below := int64(math.MaxInt64)
	if !s.live {
		below = s.cursor.asOf + 1 // later events were refused later
	}
	size := firstPiece
	for looked := 0; !s.full(); size = min(2*size, mostAtOnce) {
		if looked >= mostLookedThrough {
			return true, nil
		}
		var raws []int64
		err := query.Run(ctx, tx, query.New(readRejected, []any{s.TenantID, below, size}, query.Values(&raws)))
		if err != nil {
			return false, err
		}
		if err := s.check(ctx, tx, raws, true); err != nil || len(raws) < size {
			return false, err
		}
		looked, below = looked+size, raws[size-1]
	}
	return false, nil
}

// The verdicts of the figure among the sources of the tenant's failures, as many as $5 says, and whether
// there are more. The condition and the order are those of the index event_log_failures; IS NOT DISTINCT
// FROM keeps the planner off the indexes that begin with the partition. A failure holds the payload of
// its source, unless that is too large.
var readFailures = events.SQL(`
WITH looked AS MATERIALIZED (
  SELECT l.subject, l.origin, (l.body ->> 'sourcePosition')::bigint AS source,
         coalesce(l.body #>> '{payload,feature}', l.body #>> '{payload,validated,feature}') AS feature,
         coalesce(l.body #>> '{payload,periodKey}', l.body #>> '{payload,validated,periodKey}') AS period,
         l.body #>> '{payload,eventId}' IS NULL AND l.body #>> '{payload,validated,eventId}' IS NULL AS short
  FROM event_log l
  WHERE l.partition IS NOT DISTINCT FROM $1 AND l.tenant_id = $2 AND l.subject IN ({usage.event.publish_failed},
  {usage.event.aggregation_failed})
  ORDER BY l.tenant_id, ` + projections.FailureSource("l") + `
  LIMIT $5 + 1)
SELECT coalesce(array_agg(f.source) FILTER (WHERE (f.short OR f.feature = $3 AND f.period = $4)
         AND (f.subject = {usage.event.publish_failed} OR EXISTS (SELECT FROM log_origins o WHERE o.id = f.origin AND o.actor_id = '` +
	events.GroupAggregator + `'))), '{}'),
       count(*) > $5
FROM looked f`)

var readVerdictsAt = events.SQL(`
SELECT ` + verdictColumns + ` FROM unnest($3::bigint[]) AS given (number)
CROSS JOIN LATERAL (SELECT e.* FROM event_log e WHERE e.partition = $1 AND e.position = given.number LIMIT 1) l
WHERE l.tenant_id = $2 AND l.subject IN ({usage.event.validated}, {usage.event.reaggregated})`)

// scanFailures looks at the events of the figure whose verdicts failed to fold or to be published. It returns
// true if it did not look through all of the tenant's failures.
func (s *leftOutSearch) scanFailures(ctx context.Context, tx pgx.Tx) (more bool, err error) {
	var sources []int64
	args := []any{s.verdicts.partition, s.TenantID, s.Feature, s.PeriodKey, mostLookedThrough}
	err = query.Run(ctx, tx, query.New(readFailures, args, query.One(&sources, &more)))
	if err != nil {
		return false, err
	}
	slices.Sort(sources)
	for piece := range slices.Chunk(slices.Compact(sources), mostAtOnce) {
		verdicts, err := s.verdicts.read(ctx, tx, readVerdictsAt, s.verdicts.partition, s.TenantID, piece)
		if err != nil {
			return false, err
		}
		var raws []int64
		for i := range verdicts {
			raws = append(raws, verdicts[i].verdict.RawPosition)
		}
		if err := s.check(ctx, tx, raws, false); err != nil {
			return false, err
		}
		if s.full() {
			break
		}
	}
	return more, nil
}
