package projections

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

var errUnwritten = errors.New("not written yet")

// AggregateQuery asks for a tenant's aggregates, at most Limit of them after the
// cursor After. Feature and PeriodKey choose, "" is all.
type AggregateQuery struct {
	TenantID  uuid.UUID
	Feature   string
	PeriodKey string
	Limit     int
	After     string
	Wait      Wait
}

// Aggregate is a billing figure: what a tenant used of a feature in a period
// under a subscription. Amount is an exact integer of any size. The period is
// [PeriodStart, PeriodEnd) in UTC, nil for lifetime; LastEventAt is the greatest
// time of usage in it.
type Aggregate struct {
	TenantID       uuid.UUID   `json:"tenantId"`
	Feature        string      `json:"feature"`
	PeriodKey      string      `json:"periodKey"`
	SubscriptionID uuid.UUID   `json:"subscriptionId"`
	Amount         json.Number `json:"amount"`
	EventCount     int64       `json:"eventCount"`
	PeriodStart    *time.Time  `json:"periodStart"`
	PeriodEnd      *time.Time  `json:"periodEnd"`
	LastEventAt    time.Time   `json:"lastEventAt"`
}

// Aggregates is a page. Next is the cursor of the next one, "" on the last. Every
// event of the tenant recorded up to AsOf is in the figures.
type Aggregates struct {
	Data []Aggregate
	Next string
	AsOf *events.Position
}

// Aggregates lists a tenant's figures, newest period first, lifetime last, within
// a period by feature. A cursor stays with the generation that its list began in.
func (r *Reads) Aggregates(ctx context.Context, v Viewer, q AggregateQuery) (Aggregates, error) {
	return Aggregates{}, errUnwritten
}
