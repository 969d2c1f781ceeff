package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
)

const reservationSQL = `SELECT reservation_id AS id, feature, period_key, subscription_id, feature_type, amount, granted_limit AS "limit",
 state, expires_at, held_position AS held_at, coalesce(ended_position, 0) AS ended_at, coalesce(event_id, '') AS event_id,
 coalesce(committed, 0) AS committed
 FROM reservations WHERE tenant_id = $1 AND feature = $2 AND reservation_id = $3`

// Reservation implements metering.ReservationTable.
func (s *Store) Reservation(ctx context.Context, tenant uuid.UUID, feature, id string) (*events.ReservationState, error) {
	return Find(ctx, s.pool, pgx.RowToStructByName[events.ReservationState], reservationSQL, tenant, feature, id)
}

const dueSQL = `SELECT r.tenant_id, coalesce((SELECT t.data_residency FROM tenants t WHERE t.id = r.tenant_id), ''), r.reservation_id,
	r.feature
 FROM reservations r WHERE r.state = 'HELD' AND r.expires_at <= $1 AND r.tenant_id <> ALL (coalesce($2::uuid[], '{}')) ORDER BY r.expires_at
 LIMIT $3`

// Due implements metering.ReservationTable.
func (s *Store) Due(ctx context.Context, now time.Time, without []uuid.UUID, limit int) ([]metering.DueReservation, error) {
	return FindAll(ctx, s.pool, "reading reservations whose time is over", pgx.RowToStructByPos[metering.DueReservation], dueSQL, now,
		without, limit)
}

// NextDue implements metering.ReservationTable.
func (s *Store) NextDue(ctx context.Context) (at time.Time, held bool, err error) {
	var first *time.Time
	if err := s.pool.QueryRow(ctx, `SELECT min(expires_at) FROM reservations WHERE state = 'HELD'`).Scan(&first); err != nil {
		return time.Time{}, false, fmt.Errorf("reading when the next reservation is due: %w", err)
	}
	if first == nil {
		return time.Time{}, false, nil
	}
	return *first, true, nil
}
