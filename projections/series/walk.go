package series

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// walk reads the entries of a page, bucket by bucket, from the generation of the list.
type walk struct {
	Query
	cursor
	start      time.Time // of the next bucket to read
	generation int
}

// A generation that was detached after a failure, or is being dropped, does not get the newest usage.
const (
	findLive = `SELECT live_generation('usage_series', $1)`
	findKept = `SELECT generation FROM projection_generations WHERE projection = 'usage_series' AND generation = $1 AND dropped_at IS NULL
		AND broken IS NULL
 AND tenant_id IN ($2, '00000000-0000-0000-0000-000000000000')
 AND EXISTS (SELECT FROM consumer_checkpoints c WHERE c.consumer = 'meterplex-usage-series' AND c.generation = $1 AND c.partition = $3
 AND c.joined)`
)

func (w *walk) findGeneration(ctx context.Context, tx pgx.Tx) error {
	sql, args := findLive, []any{w.TenantID}
	if w.given {
		sql, args = findKept, []any{w.cursor.generation, w.TenantID, events.PartitionOf(w.TenantID)}
	}
	found := false
	err := query.Run(ctx, tx, query.New(sql, args, query.Each(func(rows pgx.Rows) error {
		found = true
		return rows.Scan(&w.generation)
	})))
	if err == nil && !found {
		err = query.ErrCursorInvalid
	}
	return err
}

// Bounds of the buckets of one statement of a grouped page: a bucket may have no group, or more than a page.
const (
	firstBuckets = 1
	mostBuckets  = 64
)

// entries returns the entries after the cursor, up to one more than the page has.
func (w *walk) entries(ctx context.Context, tx pgx.Tx) ([]Bucket, error) {
	if len(w.GroupBy) > 0 && w.Granularity == Month {
		if list, ok, err := w.months(ctx, tx); ok || err != nil {
			return list, err
		}
	}
	list := []Bucket{}
	size, most := w.Limit+1, w.Limit+1
	if len(w.GroupBy) > 0 {
		size, most = firstBuckets, mostBuckets
	}
	for ; len(list) <= w.Limit && w.start.Before(w.To); size = min(2*size, most) {
		piece, err := w.piece(ctx, tx, size)
		if err != nil {
			return nil, err
		}
		list = append(list, piece...)
	}
	return list, nil
}

// The hours of each bucket are one range of the primary key.
const readBuckets = `
SELECT b.number, s.first_value, s.second_value, s.amount::text, s.event_count
FROM unnest($4::int[], $5::timestamptz[], $6::timestamptz[]) AS b (number, start, stop)
CROSS JOIN LATERAL (
  SELECT u.group_values::json ->> $7 AS first_value, u.group_values::json ->> $8 AS second_value, sum(u.amount) AS amount,
  sum(u.event_count)::bigint AS event_count
  FROM usage_series u
  WHERE u.generation = $1::int AND u.tenant_id = $2 AND u.feature = $3 AND u.hour >= b.start AND u.hour < b.stop
  GROUP BY 1, 2) s
WHERE s.event_count <> 0 OR s.amount <> 0
ORDER BY b.number, s.first_value COLLATE "C" NULLS LAST, s.second_value COLLATE "C" NULLS LAST LIMIT $9`

// piece reads the next buckets, and no more of their groups than the page can have. Of the cursor's bucket, which a
// grouped page reads alone, it reads all groups: those up to the cursor are left out here.
func (w *walk) piece(ctx context.Context, tx pgx.Tx, size int) ([]Bucket, error) {
	var numbers []int
	var starts, ends []time.Time
	for ; len(numbers) < size && w.start.Before(w.To); w.start = w.Granularity.Next(w.start) {
		numbers, starts, ends = append(numbers, len(numbers)), append(starts, w.start), append(ends, w.Granularity.Next(w.start))
	}
	var most *int
	if !w.given || !starts[0].Equal(w.cursor.start) {
		most = new(w.Limit + 1)
	}
	keys := append(slices.Clone(w.GroupBy), "", "")
	found := make([][]Bucket, len(numbers))
	err := query.Run(ctx, tx, query.New(readBuckets, []any{w.generation, w.TenantID, w.Feature, numbers, starts, ends, keys[0], keys[1],
		most}, query.Each(func(rows pgx.Rows) error {
		var number int
		var b Bucket
		var amount string
		values := make([]*string, 2)
		err := rows.Scan(&number, &values[0], &values[1], &amount, &b.EventCount)
		b.Start, b.End, b.Amount = starts[number], ends[number], json.Number(amount)
		for i, key := range w.GroupBy {
			if b.Group == nil {
				b.Group = make(map[string]*string, len(w.GroupBy))
			}
			b.Group[key] = values[i]
		}
		found[number] = append(found[number], b)
		return err
	})))
	if err != nil {
		return nil, err
	}
	var list []Bucket
	for number, groups := range found {
		if len(groups) == 0 && len(w.GroupBy) == 0 {
			groups = []Bucket{{Start: starts[number], End: ends[number], Amount: "0"}}
		}
		list = append(list, slices.DeleteFunc(groups, w.listed)...)
	}
	return list, nil
}

// compare orders the groups of a bucket as readBuckets does: by their values, in the order of the query's keys; null comes
// last.
func (w *walk) compare(a, b Bucket) int {
	for _, key := range w.GroupBy {
		x, y := a.Group[key], b.Group[key]
		switch {
		case x == nil && y == nil:
			continue
		case x == nil:
			return 1
		case y == nil:
			return -1
		}
		if order := cmp.Compare(*x, *y); order != 0 {
			return order
		}
	}
	return 0
}

// listed reports whether an entry was on an earlier page.
func (w *walk) listed(b Bucket) bool {
	return w.given && b.Start.Equal(w.cursor.start) && w.compare(b, Bucket{Group: w.cursor.group}) <= 0
}

// cursor is the cursor of a page: its last entry.
type cursor struct {
	given      bool
	generation int
	start      time.Time
	group      map[string]*string
}

// next cuts a page to its limit, and returns the cursor of the next one.
func (w *walk) next(p *Page) string {
	if len(p.Data) <= w.Limit {
		return ""
	}
	p.Data = p.Data[:w.Limit]
	last := &p.Data[w.Limit-1]
	return strings.Join([]string{strconv.Itoa(w.generation), last.Start.Format(time.RFC3339), encodeGroup(last.Group)}, "|")
}

// ParseCursor parses the text of a cursor.
func ParseCursor(s string) (cursor, error) {
	if s == "" {
		return cursor{}, nil
	}
	parts := strings.SplitN(s, "|", 3)
	if len(parts) != 3 || !query.Storable(s) {
		return cursor{}, query.ErrCursorInvalid
	}
	p := cursor{given: true}
	generation, err := strconv.ParseInt(parts[0], 10, 32)
	if err == nil {
		p.generation = int(generation)
		p.start, err = time.Parse(time.RFC3339, parts[1])
	}
	if err == nil {
		err = json.Unmarshal([]byte(parts[2]), &p.group)
	}
	if err != nil {
		return cursor{}, query.ErrCursorInvalid
	}
	return p, nil
}
