package audit

import (
	"cmp"
	"context"
	"math"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// EventQuery asks for a tenant's usage events by feature, status and time of
// usage in [From, To); "" and nil are all.
type EventQuery struct {
	TenantID uuid.UUID
	Feature  string
	Status   string
	From, To *time.Time
	Limit    int
	After    string
	Wait     query.Wait
}

// UsageEventRow is a usage event with its status. Amount is the new amount in a correction, and 0 in a retraction. Code and Reason are
// those of the last rejection, if Status is REJECTED by the validator.
type UsageEventRow struct {
	EventID       string          `json:"eventId"`
	Type          string          `json:"type"`
	Feature       string          `json:"feature"`
	Amount        int64           `json:"amount"`
	Timestamp     time.Time       `json:"timestamp"`
	CorrectionRef string          `json:"correctionRef,omitempty"`
	Status        string          `json:"status"`
	Code          string          `json:"code,omitempty"`
	Reason        string          `json:"reason,omitempty"`
	Position      events.Position `json:"position"`
	RecordedAt    time.Time       `json:"recordedAt"`
}

// listFor is how long a request for a page of usage looks for more rows: a rare status
// must not make one request read all of the log.
const listFor = 200 * time.Millisecond

// UsageEvents lists from the log, newest first.
func (r *Reads) UsageEvents(ctx context.Context, v query.Viewer, q EventQuery) (query.Page[UsageEventRow], error) {
	q.Limit = query.PageSize(q.Limit)
	before := int64(math.MaxInt64)
	if q.After != "" {
		var err error
		if before, err = strconv.ParseInt(q.After, 10, 64); err != nil || before < 1 {
			return query.Page[UsageEventRow]{}, query.ErrCursorInvalid
		}
	}
	if err := r.AwaitAll(ctx, v, q.TenantID, q.Wait); err != nil {
		return query.Page[UsageEventRow]{}, err
	}
	page := query.Page[UsageEventRow]{Data: []UsageEventRow{}}
	err := r.For(q.Wait).Heavy().Within(ctx, v, func(ctx context.Context, tx pgx.Tx) error {
		var stands usageStanding
		var aggregates query.Standing
		err := query.RunAll(ctx, tx, usageStandingOf(q.TenantID, &stands), query.ReadStanding(query.AggregatesSource(), q.TenantID,
			&aggregates))
		if err != nil {
			return err
		}
		stands.passed = aggregates.Passed()
		s := usageScan{query: &q, stands: &stands, below: min(before, stands.head+1), until: time.Now().Add(cmp.Or(r.ListFor, listFor))}
		if err := s.open(ctx, tx); err != nil {
			return err
		}
		return s.fill(ctx, tx, &page)
	})
	if err != nil {
		return query.Page[UsageEventRow]{}, err
	}
	return page, nil
}

// cursorBelow continues below a position; "" at the log's beginning.
func cursorBelow(position int64) string {
	if position <= 1 {
		return ""
	}
	return strconv.FormatInt(position, 10)
}
