package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/metering"
	"github.com/meterplex/meterplex/events"
)

const reservationSQL = `SELECT reservation_id, feature, period_key, subscription_id, feature_type, amount, granted_limit, state, expires_at,
 held_position, coalesce(ended_position, 0), coalesce(event_id, ''), coalesce(committed, 0)
 FROM reservations WHERE tenant_id = $1 AND feature = $2 AND reservation_id = $3`

// Reservation implements metering.ReservationTable.
func (s *Store) Reservation(ctx context.Context, tenant uuid.UUID, feature, id string) (*events.ReservationState, error) {
	var r events.ReservationState
	err := s.pool.QueryRow(ctx, reservationSQL, tenant, feature, id).Scan(&r.ID, &r.Feature, &r.PeriodKey, &r.SubscriptionID,
		&r.FeatureType, &r.Amount,
		&r.Limit, &r.State, &r.ExpiresAt, &r.HeldAt, &r.EndedAt, &r.EventID, &r.Committed)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading a reservation: %w", err)
	}
	return &r, nil
}

const dueSQL = `SELECT r.tenant_id, coalesce((SELECT t.data_residency FROM tenants t WHERE t.id = r.tenant_id), ''), r.reservation_id,
	r.feature
 FROM reservations r WHERE r.state = 'HELD' AND r.expires_at <= $1 AND r.tenant_id <> ALL (coalesce($2::uuid[], '{}')) ORDER BY r.expires_at
 LIMIT $3`

// Due implements metering.ReservationTable.
func (s *Store) Due(ctx context.Context, now time.Time, without []uuid.UUID, limit int) ([]metering.DueReservation, error) {
	rows, err := s.pool.Query(ctx, dueSQL, now, without, limit)
	if err != nil {
		return nil, fmt.Errorf("reading reservations whose time is over: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[metering.DueReservation])
	if err != nil {
		return nil, fmt.Errorf("reading reservations whose time is over: %w", err)
	}
	return list, nil
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
