package periods

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// Adjustment is a difference of a closed period: a late verdict, or a proposal after a flip of generations.
type Adjustment struct {
	ID             uuid.UUID        `json:"id"`
	TenantID       uuid.UUID        `json:"tenantId"`
	PeriodKey      string           `json:"periodKey"`
	Snapshot       int              `json:"snapshot"`
	Feature        string           `json:"feature"`
	SubscriptionID uuid.UUID        `json:"subscriptionId"`
	Kind           string           `json:"kind" enum:"LATE_USAGE,LATE_COMMIT,RETRY,CORRECTION,RETRACTION,REBUILD"`
	Amount         json.Number      `json:"amount"`
	EventCount     int64            `json:"eventCount"`
	Position       events.Position  `json:"position"`
	SourceEventID  *string          `json:"sourceEventId"`
	RebuildID      *uuid.UUID       `json:"rebuildId" nullable:"true"`
	State          string           `json:"state" enum:"PENDING,APPROVED,WAIVED,VOID"`
	Reason         *string          `json:"reason"`
	DecidedAt      *events.Position `json:"decidedPosition" nullable:"true"`
}

// AdjustmentQuery selects adjustments, at most Limit after the cursor After. "" and nil mean all.
type AdjustmentQuery struct {
	TenantID                        *uuid.UUID
	PeriodKey, State, Kind, Feature string
	Limit                           int
	After                           string
}

const adjustmentColumns = `
SELECT a.id, a.tenant_id, a.period_key, a.snapshot, a.feature, a.subscription_id, a.kind, a.amount::text, a.event_count, a.position,
  a.source_event_id, a.rebuild_id, a.state, a.reason, a.decided
FROM adjustments a
WHERE ($1 = '' OR a.period_key = $1) AND ($2 = '' OR a.state = $2) AND ($3 = '' OR a.kind = $3) AND ($4 = '' OR a.feature = $4)`

// Those of a tenant are in the order of the index adjustments_list; those of all tenants in the order of their ids, which begin with a
// time: those in one state by the index adjustments_states, so that a rare state is found at once.
const (
	readTenantAdjustments = adjustmentColumns +
		` AND a.tenant_id = $6 AND (a.period_key, a.snapshot, a.position) > ($7::text, $8::int, $9::bigint)
ORDER BY a.period_key, a.snapshot, a.position LIMIT $5`

	readAllAdjustments = adjustmentColumns + ` AND a.id > $6::uuid ORDER BY a.id LIMIT $5`

	readAdjustmentsInState = adjustmentColumns + ` AND a.state = $2 AND a.id > $6::uuid ORDER BY a.id LIMIT $5`
)

// Adjustments lists adjustments: of one tenant by period, snapshot and position, of all tenants by id.
func (r *Reads) Adjustments(ctx context.Context, q AdjustmentQuery) (query.Page[Adjustment], error) {
	sql, args := readAllAdjustments, []any{q.PeriodKey, q.State, q.Kind, q.Feature, q.Limit + 1}
	cursor, err := parseAdjustmentCursor(q.TenantID != nil, q.After)
	if err != nil {
		return query.Page[Adjustment]{}, err
	}
	if q.State != "" {
		sql = readAdjustmentsInState
	}
	if q.TenantID != nil {
		sql, args = readTenantAdjustments, append(args, *q.TenantID, cursor.period, cursor.snapshot, cursor.position)
	} else {
		args = append(args, cursor.id)
	}
	page := query.Page[Adjustment]{Data: []Adjustment{}}
	err = r.Snapshot(ctx, query.Viewer{Operator: true}, query.New(sql, args, query.Into(&page.Data, scanAdjustment)))
	if err == nil && len(page.Data) > q.Limit {
		page.Data = page.Data[:q.Limit]
		last := &page.Data[q.Limit-1]
		if page.Next = last.ID.String(); q.TenantID != nil {
			page.Next = last.PeriodKey + "/" + strconv.Itoa(last.Snapshot) + "/" + strconv.FormatInt(last.Position.Number, 10)
		}
	}
	return page, err
}

func scanAdjustment(rows pgx.Rows) (a Adjustment, err error) {
	var amount string
	var position int64
	var decided *int64
	err = rows.Scan(&a.ID, &a.TenantID, &a.PeriodKey, &a.Snapshot, &a.Feature, &a.SubscriptionID, &a.Kind, &amount, &a.EventCount,
		&position,
		&a.SourceEventID, &a.RebuildID, &a.State, &a.Reason, &decided)
	a.Amount, a.Position = json.Number(amount), events.Position{Partition: events.PartitionOf(a.TenantID), Number: position}
	if decided != nil {
		a.DecidedAt = &events.Position{Partition: a.Position.Partition, Number: *decided}
	}
	return a, err
}

// adjustmentCursor is the cursor of a page: its last adjustment.
type adjustmentCursor struct {
	id       uuid.UUID
	period   string
	snapshot int
	position int64
}

func parseAdjustmentCursor(ofTenant bool, after string) (p adjustmentCursor, err error) {
	switch parts := strings.Split(after, "/"); {
	case after == "":
	case ofTenant && len(parts) == 3:
		p.period = parts[0]
		if p.snapshot, err = strconv.Atoi(parts[1]); err == nil {
			p.position, err = strconv.ParseInt(parts[2], 10, 64)
		}
	case !ofTenant && len(parts) == 1:
		p.id, err = uuid.Parse(after)
	default:
		err = query.ErrCursorInvalid
	}
	if err != nil {
		return adjustmentCursor{}, query.ErrCursorInvalid
	}
	return p, nil
}
