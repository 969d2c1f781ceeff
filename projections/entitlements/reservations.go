package entitlements

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// Reservation is a reservation as it is listed.
type Reservation struct {
	ReservationID string           `json:"reservationId"`
	Feature       string           `json:"feature"`
	Amount        int64            `json:"amount"`
	State         string           `json:"state"`
	PeriodKey     string           `json:"periodKey"`
	ExpiresAt     time.Time        `json:"expiresAt"`
	EndedAt       *time.Time       `json:"endedAt"`   // nil while it is held
	EventID       *string          `json:"eventId"`   // of the committed usage; nil without any
	Committed     *int64           `json:"committed"` // amount
	ResetAt       *time.Time       `json:"resetAt"`
	Position      events.Position  `json:"position"` // of the event that made it
	EndPosition   *events.Position `json:"endPosition" nullable:"true"`
}

// ReservationQuery asks for reservations of a tenant's feature in the order of their ids, at most Limit after an id. ID and State
// filter, "" means all.
type ReservationQuery struct {
	TenantID           uuid.UUID
	Feature, ID, State string
	After              string
	Limit              int
}

// IsFeature reports whether the catalogue has a feature.
func (r *Reads) IsFeature(ctx context.Context, v query.Viewer, feature string) (bool, error) {
	known, err := r.storedFeatures(ctx, v, []string{feature})
	return known[feature], err
}

const readReservations = `
SELECT r.reservation_id, r.feature, r.amount, r.state, r.period_key, r.expires_at, r.ended_at, r.event_id, r.committed, r.held_position,
r.ended_position
FROM reservations r
WHERE r.tenant_id = $1 AND r.feature = $2 AND ($3 = '' OR r.reservation_id = $3) AND ($4 = '' OR r.state = $4) AND r.reservation_id > $5
ORDER BY r.reservation_id LIMIT $6`

// Reservations returns a page of reservations.
func (r *Reads) Reservations(ctx context.Context, v query.Viewer, q ReservationQuery) (list []Reservation, err error) {
	partition := events.PartitionOf(q.TenantID)
	read := query.New(readReservations, []any{q.TenantID, q.Feature, q.ID, q.State, q.After, q.Limit},
		query.Each(func(rows pgx.Rows) error {
			var one Reservation
			var ended *int64
			one.Position.Partition = partition
			err := rows.Scan(&one.ReservationID, &one.Feature, &one.Amount, &one.State, &one.PeriodKey, &one.ExpiresAt, &one.EndedAt,
				&one.EventID,
				&one.Committed, &one.Position.Number, &ended)
			if ended != nil {
				one.EndPosition = &events.Position{Partition: partition, Number: *ended}
			}
			if _, end, ok := domain.PeriodBounds(one.PeriodKey); ok {
				one.ResetAt = &end
			}
			list = append(list, one)
			return err
		}))
	return list, r.Snapshot(ctx, v, read)
}
