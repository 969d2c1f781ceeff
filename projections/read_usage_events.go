package projections

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// scannedRows bounds how much of the log one page of usage events looks at, so
// that a rare status cannot make a request read it all.
const scannedRows = 20_000

// EventQuery asks for a tenant's usage events by feature, status and time of
// usage in [From, To); "" and nil are all.
type EventQuery struct {
	TenantID uuid.UUID
	Feature  string
	Status   string
	From, To *time.Time
	Limit    int
	After    string
}

// UsageEventRow is a usage event with what became of it. Code and Reason are of
// the last rejection, where Status is REJECTED by the validator.
type UsageEventRow struct {
	EventID    string          `json:"eventId"`
	Type       string          `json:"type"`
	Feature    string          `json:"feature"`
	Amount     int64           `json:"amount"`
	Timestamp  time.Time       `json:"timestamp"`
	Status     string          `json:"status"`
	Code       string          `json:"code,omitempty"`
	Reason     string          `json:"reason,omitempty"`
	Position   events.Position `json:"position"`
	RecordedAt time.Time       `json:"recordedAt"`
}

// UsageEventPage is a page. It can hold fewer rows than asked for, even none, and
// still have a Next: one page looks at a bounded part of the log.
type UsageEventPage struct {
	Data []UsageEventRow
	Next string
}

// UsageEvents lists from the log, newest first.
func (r *Reads) UsageEvents(ctx context.Context, v Viewer, q EventQuery) (UsageEventPage, error) {
	return UsageEventPage{}, errUnwritten
}
