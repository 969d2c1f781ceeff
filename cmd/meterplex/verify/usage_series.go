package verify

import (
	"context"
	"fmt"
	"math/big"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
)

// hourSums sums the verdicts by hour. The period of their figures is the start of the hour.
type hourSums struct {
	upTo      int64 // checkpoint of the series
	sums      map[figure]*sum
	uncounted map[int64]bool // verdicts that the aggregator could not fold or did not receive, by dead letters up to the checkpoint
	failed    map[int64]bool // verdicts that the series could not fold
}

func newHourSums(upTo int64) hourSums {
	return hourSums{upTo, map[figure]*sum{}, map[int64]bool{}, map[int64]bool{}}
}

func (h *hourSums) addLetter(x *pass, r *row, s *content) {
	switch {
	case r.subject == publishFailed, r.subject == aggregationFailed && x.services[r.origin] == events.GroupAggregator:
		if r.position <= h.upTo {
			h.uncounted[s.SourcePosition] = true
		}
	case r.subject == aggregationFailed && x.services[r.origin] == events.GroupSeries:
		h.failed[s.SourcePosition] = true
	}
}

// count adds a verdict to its hour; a sign of -1 subtracts it for each reason for which it does not count. The
// amount has the sign already.
func (h *hourSums) count(position int64, tenant uuid.UUID, s *content, amount *big.Int, sign int64) {
	if position > h.upTo {
		return
	}
	key := figure{tenant: tenant, feature: s.Feature, period: hourText(s.Timestamp)}
	if sign > 0 {
		add(h.sums, key, amount, s.Count)
		return
	}
	for _, set := range []map[int64]bool{h.uncounted, h.failed} {
		if set[position] {
			add(h.sums, key, amount, -s.Count)
		}
	}
}

func hourText(at time.Time) string { return at.UTC().Format("2006-01-02T15") }

// hoursSQL adds the groups of an hour up: which groups there are depends on the catalogue.
const hoursSQL = `SELECT tenant_id, feature, to_char(hour AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24'), sum(amount)::text, sum(event_count)::bigint
 FROM usage_series WHERE generation = $1 AND partition = $2 GROUP BY tenant_id, feature, hour`

func (x *pass) compareHours(ctx context.Context, tx pgx.Tx) error {
	all, err := x.candidates(ctx, tx, x.usageSeries, "usage_series", events.GroupSeries)
	if err != nil {
		return fmt.Errorf("read generations: %w", err)
	}
	for _, g := range all {
		var f figure
		var amount string
		var n int64
		err := each(ctx, tx, hoursSQL, []any{g.number, x.p}, []any{&f.tenant, &f.feature, &f.period, &amount, &n}, func() error {
			x.usageSeries.n++
			x.compareFigure(x.usageSeries, x.figures.hours.sums, &g, f, amount, n)
			return nil
		})
		if err != nil {
			return fmt.Errorf("read usage_series: %w", err)
		}
		x.missing(x.usageSeries, x.figures.hours.sums, &g)
	}
	return nil
}
