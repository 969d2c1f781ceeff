package series

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/projections/query"
)

// candidate is an entry that a month may have: a group of the query, and the stored groups that add up to it.
type candidate struct {
	group  map[string]*string
	stored []string
}

const (
	// maxListed bounds the groups of a feature that a page of months lists first. One key has at most 1,002; two may
	// have a million, and then each page reads the whole of its months.
	maxListed = 2000
	// leastSummed is how many candidates one statement sums at least: some have no usage in the month.
	leastSummed = 16
)

// months returns the entries after the cursor, as entries does, for a grouped query by month: a month has up to 744
// hours of each group, so it reads those of the page's groups only. It reports false if the feature has too many groups.
func (w *walk) months(ctx context.Context, tx pgx.Tx) (list []Bucket, ok bool, err error) {
	all, ok, err := w.candidates(ctx, tx)
	if err != nil || !ok {
		return nil, ok, err
	}
	list = []Bucket{}
	for len(list) <= w.Limit {
		if more, err := w.skipEmpty(ctx, tx); err != nil || !more {
			return list, true, err
		}
		rest := slices.DeleteFunc(slices.Clone(all), func(c candidate) bool { return w.listed(Bucket{Start: w.start, Group: c.group}) })
		for len(rest) > 0 && len(list) <= w.Limit {
			n := min(len(rest), max(w.Limit+1-len(list), leastSummed))
			found, err := w.sum(ctx, tx, rest[:n])
			if err != nil {
				return nil, true, err
			}
			list, rest = append(list, found...), rest[n:]
		}
		w.start = w.Granularity.Next(w.start)
	}
	return list, true, nil
}

// Each step finds the next group in the index of groups, however many hours the group has. IS NOT DISTINCT FROM keeps the
// server from the primary key: in a generation without statistics it took 200 s there for 744,000 hours.
const readGroups = `
WITH RECURSIVE g AS (
 (SELECT u.group_values FROM usage_series u
   WHERE u.generation IS NOT DISTINCT FROM $1::int AND u.tenant_id = $2 AND u.feature = $3 AND u.group_values <> '{}'
   ORDER BY u.group_values LIMIT 1)
 UNION ALL
 SELECT n.group_values FROM g CROSS JOIN LATERAL (SELECT u.group_values FROM usage_series u
   WHERE u.generation IS NOT DISTINCT FROM $1::int AND u.tenant_id = $2 AND u.feature = $3 AND u.group_values <> '{}'
   AND u.group_values > g.group_values
   ORDER BY u.group_values LIMIT 1) n)
SELECT group_values FROM g LIMIT $4`

// candidates lists the groups of the query in the order of a page, whenever they have usage.
func (w *walk) candidates(ctx context.Context, tx pgx.Tx) (all []candidate, ok bool, err error) {
	found, stored := map[string]int{}, []string{notGrouped}
	err = query.Run(ctx, tx, query.New(readGroups, []any{w.generation, w.TenantID, w.Feature, maxListed + 1}, query.Values(&stored)))
	if err != nil || len(stored) > maxListed+1 {
		return nil, false, err
	}
	for _, text := range stored {
		var values map[string]*string
		if err := json.Unmarshal([]byte(text), &values); err != nil {
			return nil, false, fmt.Errorf("read the group %q: %w", text, err)
		}
		c := candidate{group: make(map[string]*string, len(w.GroupBy))}
		for _, key := range w.GroupBy {
			c.group[key] = values[key]
		}
		name := encodeGroup(c.group)
		at, known := found[name]
		if !known {
			at = len(all)
			found[name], all = at, append(all, c)
		}
		all[at].stored = append(all[at].stored, text)
	}
	slices.SortFunc(all, func(a, b candidate) int { return w.compare(Bucket{Group: a.group}, Bucket{Group: b.group}) })
	return all, true, nil
}

const readNextHour = `SELECT u.hour FROM usage_series u
WHERE u.generation = $1::int AND u.tenant_id = $2 AND u.feature = $3 AND u.hour >= $4 AND u.hour < $5 ORDER BY u.hour LIMIT 1`

// skipEmpty moves the start to the next month with usage; false after the last one.
func (w *walk) skipEmpty(ctx context.Context, tx pgx.Tx) (more bool, err error) {
	err = query.Run(ctx, tx, query.New(readNextHour, []any{w.generation, w.TenantID, w.Feature, w.start, w.To},
		query.Each(func(rows pgx.Rows) error {
			var hour time.Time
			err := rows.Scan(&hour)
			w.start, more = w.Granularity.Floor(hour), true
			return err
		})))
	return more, err
}

// The hours of a group are one range of its index. Usage that is not grouped ($8, -1: no candidate) is not in
// that index: its hours are found one by one in the primary key. OFFSET keeps the server from reading all groups and
// joining them.
const sumGroups = `
SELECT s.number, sum(s.amount)::text, sum(s.event_count)::bigint FROM (
  SELECT g.number, u.amount, u.event_count FROM unnest($4::int[], $5::text[]) AS g (number, group_values)
  CROSS JOIN LATERAL (SELECT u.amount, u.event_count FROM usage_series u
    WHERE u.generation IS NOT DISTINCT FROM $1::int AND u.tenant_id = $2 AND u.feature = $3 AND u.group_values = g.group_values
    AND u.group_values <> '{}'
      AND u.hour >= $6::timestamptz AND u.hour < $7::timestamptz OFFSET 0) u
  UNION ALL
  SELECT $8::int, u.amount, u.event_count FROM generate_series($6::timestamptz, $7::timestamptz - interval '1 hour',
  interval '1 hour') AS h (hour)
  CROSS JOIN LATERAL (SELECT u.amount, u.event_count FROM usage_series u
    WHERE u.generation = $1::int AND u.tenant_id = $2 AND u.feature = $3 AND u.hour = h.hour AND u.group_values = '{}' LIMIT 1) u
  WHERE $8::int >= 0) s
GROUP BY s.number HAVING sum(s.event_count) <> 0 OR sum(s.amount) <> 0 ORDER BY s.number`

// sum returns the entries of candidates that have usage in the month at the start.
func (w *walk) sum(ctx context.Context, tx pgx.Tx, of []candidate) (list []Bucket, err error) {
	var numbers []int
	var groups []string
	none := -1
	for n, c := range of {
		for _, group := range c.stored {
			if group == notGrouped {
				none = n
				continue
			}
			numbers, groups = append(numbers, n), append(groups, group)
		}
	}
	end := w.Granularity.Next(w.start)
	err = query.Run(ctx, tx, query.New(sumGroups, []any{w.generation, w.TenantID, w.Feature, numbers, groups, w.start, end, none},
		query.Each(func(rows pgx.Rows) error {
			var number int
			var amount string
			b := Bucket{Start: w.start, End: end}
			err := rows.Scan(&number, &amount, &b.EventCount)
			b.Amount, b.Group = json.Number(amount), of[number].group
			list = append(list, b)
			return err
		})))
	return list, err
}
