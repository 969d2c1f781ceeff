package verify

import (
	"context"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// hourSums sums the verdicts by hour and group. The period of their figures is the start of the hour.
type hourSums struct {
	upTo      int64 // checkpoint of the series
	groups    seriesGroups
	sums      map[groupedHour]*sum
	uncounted map[int64]bool // verdicts that the aggregator could not fold or did not receive, by dead letters up to the checkpoint
	failed    map[int64]bool // verdicts that the series could not fold
}

type groupedHour struct {
	figure
	group int32
}

func newHourSums(upTo int64) hourSums {
	return hourSums{upTo, newSeriesGroups(), map[groupedHour]*sum{}, map[int64]bool{}, map[int64]bool{}}
}

func (h *hourSums) addLetter(x *pass, r *row, s *content) {
	switch {
	case r.subject == publishFailed, r.subject == aggregationFailed && x.services[r.origin] == aggregator:
		if r.position <= h.upTo {
			h.uncounted[s.SourcePosition] = true
		}
	case r.subject == aggregationFailed && x.services[r.origin] == series:
		h.failed[s.SourcePosition] = true
	}
}

// count adds a verdict to its hour; a sign of -1 subtracts it for each reason for which it does not count. The
// amount has the sign already.
func (h *hourSums) count(position int64, tenant uuid.UUID, s *content, amount *big.Int, sign int64) {
	if position > h.upTo {
		return
	}
	described := s.RawPosition
	if s.Kind != "" { // a correction counts in the group of its target
		described = s.TargetPosition
	}
	key := groupedHour{figure{tenant: tenant, feature: s.Feature, period: hourText(s.Timestamp)}, h.groups.at(described)}
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

// of returns the sums as the rows of a generation have them.
func (h *hourSums) of(generation int) map[figure]*sum {
	rows := make(map[figure]*sum, len(h.sums))
	for key, s := range h.sums {
		f := key.figure
		f.period = hourOf(f.period, h.groups.text(f, key.group, generation))
		add(rows, f, &s.amount, s.events)
	}
	return rows
}

// hourOf is the period of a row.
func hourOf(hour, group string) string {
	if group == "{}" {
		return hour
	}
	return hour + " " + group
}

// rareValues reports values without a group of their own, although their key has room for them.
func (x *pass) rareValues(h *hourSums, g *candidate) {
	for key, s := range h.sums {
		if x.erased.runs(key.tenant) {
			continue
		}
		group := &h.groups.list[key.group]
		for i, name := range group.keys {
			of := seriesKey{key.tenant, key.feature, name}
			rare := group.rare[i]
			if value := group.values[i]; value != nil && *value != otherValue {
				rare = !slices.Contains(h.groups.values[of][*value], g.number)
			}
			if rare && s.events != 0 && g.has(key.figure) && g.replacedBy(key.figure) == 0 && h.groups.room(of, g.number) {
				x.usageSeries.fault("generation %d counts a value of %.60q as %q for %s, and has room for it", g.number, name, otherValue,
					key.figure)
			}
		}
	}
}

const hoursSQL = `SELECT tenant_id, feature, to_char(hour AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24'), group_values, amount::text, event_count
 FROM usage_series WHERE generation = $1 AND partition = $2`

func (x *pass) compareHours(ctx context.Context, tx pgx.Tx) error {
	all, err := x.candidates(ctx, tx, x.usageSeries, "usage_series", series)
	if err != nil {
		return fmt.Errorf("read generations: %w", err)
	}
	h := &x.figures.hours
	for _, g := range all {
		sums := h.of(g.number)
		maps.DeleteFunc(sums, func(f figure, _ *sum) bool { return x.erased.runs(f.tenant) })
		var f figure
		var amount, group string
		var n int64
		err := each(ctx, tx, hoursSQL, []any{g.number, x.p}, []any{&f.tenant, &f.feature, &f.period, &group, &amount, &n}, func() error {
			if x.erased.runs(f.tenant) {
				return nil
			}
			x.usageSeries.n++
			f.period = hourOf(f.period, group)
			x.compareFigure(x.usageSeries, sums, &g, f, amount, n)
			return nil
		})
		if err != nil {
			return fmt.Errorf("read usage_series: %w", err)
		}
		x.missing(x.usageSeries, sums, &g)
		x.rareValues(h, &g)
	}
	return nil
}
