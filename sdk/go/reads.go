package meterplex

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Query selects the data that a read returns. A member that a read does not know is refused by the service (unknown_parameter), never
// ignored. The parameters format (CSV) and includeTest (of all tenants) of the service are not for this client; it asks for amounts as
// texts by a header.
type Query struct {
	Feature      string
	Period       string    // of Aggregates: 2026-11, 2026 or lifetime
	AsOfPosition string    // of Aggregates: as known at this position
	AsOf         time.Time // of Aggregates: as known at this time
	Status       string    // of Events: PENDING, VALIDATED, AGGREGATED, REJECTED or DEAD_LETTERED
	State        string    // of Reservations: HELD, COMMITTED, RELEASED or EXPIRED
	From, To     time.Time // of Usage and Events: from From on, before To
	Granularity  string    // of Usage: hour, day (default) or month
	GroupBy      []string  // of Usage: one or two times metadata.<key>
	TenantID     string    // with an operator's key
	PageSize     int       // rows in one answer, 1 to 1000; default 100

	// MinPosition asks for an answer that contains the event at this position. The read waits for it up to Wait (at most 30 s; 0: not at
	// all), and then fails with projection_behind.
	MinPosition string
	Wait        time.Duration
}

func (q *Query) values() url.Values {
	v := url.Values{}
	set := func(name, value string) {
		if value != "" {
			v.Set(name, value)
		}
	}
	set("feature", q.Feature)
	set("period", q.Period)
	set("asOfPosition", q.AsOfPosition)
	set("status", q.Status)
	set("state", q.State)
	set("granularity", q.Granularity)
	set("tenantId", q.TenantID)
	set("minPosition", q.MinPosition)
	for name, at := range map[string]time.Time{"asOf": q.AsOf, "from": q.From, "to": q.To} {
		if !at.IsZero() {
			v.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	if len(q.GroupBy) > 0 {
		v["groupBy"] = q.GroupBy
	}
	if q.PageSize != 0 {
		v.Set("limit", strconv.Itoa(q.PageSize))
	}
	return v
}

// list returns the request of a list.
func (q *Query) list(path string) request {
	return request{method: http.MethodGet, path: path, query: q.values(), wait: q.Wait, member: "data"}
}

// page is an answer of a list.
type page struct {
	Data         []json.RawMessage `json:"data"`
	NextCursor   string            `json:"nextCursor"`
	AsOfPosition string            `json:"asOfPosition"`
	CompleteUpTo *time.Time        `json:"completeUpTo"`
}

// row is a row of a list.
type row[T any] interface {
	raw[T]
	at(*page)
}

func (r *Raw) at(*page) {}

// pages returns the rows of all pages of a list. It ends after an error.
func pages[T any, P row[T]](ctx context.Context, c *Client, r request) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			var page page
			err := c.call(ctx, r, &page)
			for _, whole := range page.Data {
				one, err := decode[T, P](whole)
				if err != nil {
					yield(*new(T), err)
					return
				}
				one.at(&page)
				if !yield(*one, nil) {
					return
				}
			}
			if err != nil {
				yield(*new(T), err)
			}
			if err != nil || page.NextCursor == "" {
				return
			}
			r.query.Set("cursor", page.NextCursor)
		}
	}
}

// Aggregate is the billing figure of a feature in a period.
type Aggregate struct {
	TenantID       string     `json:"tenantId"`
	Feature        string     `json:"feature"`
	PeriodKey      string     `json:"periodKey"` // e.g. 2026-11
	SubscriptionID string     `json:"subscriptionId"`
	Amount         int64      `json:"amount,string"`
	EventCount     int64      `json:"eventCount"`
	PeriodStart    *time.Time `json:"periodStart"`
	PeriodEnd      *time.Time `json:"periodEnd"`
	LastEventAt    time.Time  `json:"lastEventAt"`
	AsOfPosition   string     `json:"-"` // of the page: every event up to it is in the figure
	Raw
}

func (a *Aggregate) at(p *page) { a.AsOfPosition = p.AsOfPosition }

// Aggregates returns the billing figures, the newest period first.
func (c *Client) Aggregates(ctx context.Context, q Query) iter.Seq2[Aggregate, error] {
	return pages[Aggregate](ctx, c, q.list("/api/v1/usage/aggregates"))
}

// Bucket is the usage of a feature in an hour, a day or a month.
type Bucket struct {
	Start        time.Time          `json:"start"`
	End          time.Time          `json:"end"`
	Amount       int64              `json:"amount,string"`
	EventCount   int64              `json:"eventCount"`
	Group        map[string]*string `json:"group"` // the values of Query.GroupBy
	AsOfPosition string             `json:"-"`     // of the page
	CompleteUpTo *time.Time         `json:"-"`     // of the page: every event that was recorded before is in the buckets
	Raw
}

func (b *Bucket) at(p *page) { b.AsOfPosition, b.CompleteUpTo = p.AsOfPosition, p.CompleteUpTo }

// Usage returns the usage of Query.Feature by time, for charts. It needs From and To, which are starts of buckets in UTC.
func (c *Client) Usage(ctx context.Context, q Query) iter.Seq2[Bucket, error] {
	return pages[Bucket](ctx, c, q.list("/api/v1/usage"))
}

// UsageEvent is an event as the service has recorded it.
type UsageEvent struct {
	EventID       string    `json:"eventId"`
	Feature       string    `json:"feature"`
	Amount        int64     `json:"amount,string"`
	Timestamp     time.Time `json:"timestamp"`
	RecordedAt    time.Time `json:"recordedAt"`
	Position      string    `json:"position"`
	Status        string    `json:"status"`
	Type          string    `json:"type"`
	CorrectionRef string    `json:"correctionRef"`
	Code          string    `json:"code"` // of a rejection
	Reason        string    `json:"reason"`
	Raw
}

// Events returns the recorded events, the newest first.
func (c *Client) Events(ctx context.Context, q Query) iter.Seq2[UsageEvent, error] {
	return pages[UsageEvent](ctx, c, q.list("/api/v1/usage/events"))
}

// Entitlements returns a Check of each feature of the tenant's subscription.
func (c *Client) Entitlements(ctx context.Context, q Query) iter.Seq2[Check, error] {
	all := pages[Check](ctx, c, q.list("/api/v1/entitlements"))
	return func(yield func(Check, error) bool) {
		for one, err := range all {
			one.Source = SourceService
			if !yield(one, err) {
				return
			}
		}
	}
}

// Reservations returns the reservations of Query.Feature in the order of their ids; ended ones for 7 days.
func (c *Client) Reservations(ctx context.Context, q Query) iter.Seq2[Reservation, error] {
	path := entitlement(q.Feature, "reservations")
	q.Feature = ""
	return pages[Reservation](ctx, c, q.list(path))
}
