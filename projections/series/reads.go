package series

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// Reads answers queries for series.
type Reads struct{ query.DB }

// Query asks for the usage of a feature in the buckets of [From, To), at most Limit entries after the cursor
// After. From and To are starts of buckets. GroupBy are at most two declared metadata keys.
type Query struct {
	TenantID    uuid.UUID
	Feature     string
	From, To    time.Time
	Granularity Granularity
	GroupBy     []string
	Limit       int
	After       string
	Wait        query.Wait
}

// Bucket is the usage of a feature in [Start, End), of one group if the query groups. Amount is an exact integer of
// any size. Group has a value for each key of the query; null is usage without the key, or recorded before
// the feature declared it.
type Bucket struct {
	Start      time.Time          `json:"start"`
	End        time.Time          `json:"end"`
	Amount     json.Number        `json:"amount"`
	EventCount int64              `json:"eventCount"`
	Group      map[string]*string `json:"group,omitempty"`
}

// Page is a page of a series. Next is the cursor of the next one, "" on the last. Every event of the tenant that was
// recorded up to AsOf, and so every one that was recorded before CompleteUpTo, is in the buckets. CompleteUpTo is
// nil if the log partition of the tenant has no event up to AsOf.
type Page struct {
	query.Page[Bucket]
	CompleteUpTo *time.Time
	AsOf         *events.Position
}

// Read returns a page of a series, by time, within a bucket by group. Without groups each bucket of the range has
// an entry, if need be with zeros; with groups an entry is a group with usage in the bucket. A cursor stays
// with the generation that its list began in; ErrCursorInvalid once that is gone.
//
// It reads the hours of the buckets of the page.
func (r *Reads) Read(ctx context.Context, v query.Viewer, q Query) (Page, error) {
	after, err := ParseCursor(q.After)
	if err != nil {
		return Page{}, err
	}
	if err := r.AwaitPassed(ctx, v, query.SeriesSource(), q.TenantID, q.Wait); err != nil {
		return Page{}, err
	}
	page := Page{Page: query.Page[Bucket]{Data: []Bucket{}}}
	q.Limit = query.PageSize(q.Limit)
	err = r.For(q.Wait).Within(ctx, v, func(ctx context.Context, tx pgx.Tx) error {
		if err := checkKeys(ctx, tx, &q); err != nil {
			return err
		}
		w := &walk{Query: q, cursor: after, start: q.From}
		if after.given {
			w.start = after.start
			if w.start.Before(q.From) || !w.start.Before(q.To) || !w.start.Equal(q.Granularity.Floor(w.start)) {
				return query.ErrCursorInvalid
			}
			if len(q.GroupBy) == 0 {
				w.start = q.Granularity.Next(w.start) // its bucket has one entry
			}
		}
		if err := w.findGeneration(ctx, tx); err != nil {
			return err
		}
		if err := page.readStanding(ctx, tx, &q); err != nil {
			return err
		}
		page.Data, err = w.entries(ctx, tx)
		page.Next = w.next(&page)
		return err
	})
	return page, err
}

// errFeatureNotFound is the answer for a feature that the catalogue does not have: a series of zeros would hide a
// misspelt name.
var errFeatureNotFound = &domain.Error{Code: "feature_not_found", Message: "Not found"}

const readKeys = `
SELECT (SELECT coalesce(array_agg(DISTINCT k.key ORDER BY k.key), '{}') FROM feature_groupings g, unnest(g.keys) AS k (key)
WHERE g.feature = f.lookup_key)
FROM features f WHERE f.lookup_key = $1`

// checkKeys refuses an unknown feature, and keys that the feature has never declared.
func checkKeys(ctx context.Context, tx pgx.Tx, q *Query) error {
	known := false
	var declared []string
	err := query.Run(ctx, tx, query.New(readKeys, []any{q.Feature}, query.Each(func(rows pgx.Rows) error {
		known = true
		return rows.Scan(&declared)
	})))
	if err != nil {
		return err
	}
	if !known {
		return errFeatureNotFound
	}
	for _, key := range q.GroupBy {
		if !slices.Contains(declared, key) {
			return &domain.Error{Code: "parameter_invalid",
				Message: fmt.Sprintf("groupBy=metadata.%s: the feature %s has %s. Declare the key in groupBy of PUT /features/%s", key,
					q.Feature, declaredKeys(declared), q.Feature)}
		}
	}
	return nil
}

func declaredKeys(declared []string) string {
	if len(declared) == 0 {
		return "declared no metadata keys"
	}
	return "declared only " + strings.Join(declared, ", ")
}

const readCompleteUpTo = `SELECT recorded_time($1, $2)`

// readStanding reads up to which event all are in the buckets, in the snapshot of the buckets.
func (p *Page) readStanding(ctx context.Context, tx pgx.Tx, q *Query) error {
	var standing query.Standing
	if err := query.Run(ctx, tx, query.ReadStanding(query.SeriesSource(), q.TenantID, &standing)); err != nil {
		return err
	}
	asOf := standing.AsOf(q.TenantID, q.Wait)
	p.AsOf = &asOf
	return query.Run(ctx, tx, query.New(readCompleteUpTo, []any{asOf.Partition, asOf.Number}, query.One(&p.CompleteUpTo)))
}
