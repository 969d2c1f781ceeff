package tables

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres"
	"github.com/meterplex/meterplex/infra/postgres/eventlog/server"
)

// writeReservationsSQL writes the states of reservations after their last events.
const writeReservationsSQL = `INSERT INTO reservations AS r (tenant_id, reservation_id, feature, period_key, subscription_id, feature_type,
  amount, granted_limit, state, expires_at, held_position, ended_position, ended_at, event_id, committed)
 SELECT tenant, id, feature, period, subscription, type, amount, granted, state, expires, held, nullif(ended, 0),
  CASE WHEN ended > 0 THEN at END, nullif(event, ''), CASE WHEN event <> '' THEN committed END
 FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::text[], $7::bigint[], $8::bigint[], $9::text[],
  $10::timestamptz[], $11::bigint[], $12::bigint[], $13::timestamptz[], $14::text[], $15::bigint[])
  AS u (tenant, id, feature, period, subscription, type, amount, granted, state, expires, held, ended, at, event, committed)
 ON CONFLICT (tenant_id, feature, reservation_id) DO UPDATE SET state = excluded.state, expires_at = excluded.expires_at,
  ended_position = excluded.ended_position, ended_at = excluded.ended_at, event_id = excluded.event_id, committed = excluded.committed`

const reservationColumns = `r.reservation_id, r.feature, r.period_key, r.subscription_id, r.feature_type, r.amount, r.granted_limit,
 r.state, r.expires_at, r.held_position, coalesce(r.ended_position, 0), coalesce(r.event_id, ''), coalesce(r.committed, 0)`

// readReservationsSQL reads reservations by their keys, each with its account.
const readReservationsSQL = `SELECT k.tenant_id, ` + reservationColumns + `, coalesce(a.used, 0)::text, coalesce(a.held, 0)::text
 FROM unnest($1::uuid[], $2::text[], $3::text[]) AS k (tenant_id, feature, reservation_id)
 CROSS JOIN LATERAL (SELECT * FROM reservations q
  WHERE q.tenant_id = k.tenant_id AND q.feature = k.feature AND q.reservation_id = k.reservation_id LIMIT 1) r
 LEFT JOIN LATERAL (SELECT q.used, q.held FROM quota_accounts q
  WHERE q.tenant_id = k.tenant_id AND q.feature = r.feature AND q.period_key = r.period_key LIMIT 1) a ON true`

// dueReservationsSQL reads the reservations of an account whose time is over, those that end first first.
const dueReservationsSQL = `SELECT r.tenant_id, ` + reservationColumns + `, '0', '0' FROM reservations r
 WHERE r.tenant_id = $1 AND r.feature = $2 AND r.period_key = $3 AND r.state = 'HELD' AND r.expires_at <= $4
  AND (r.expires_at, r.reservation_id) > ($5, $6) ORDER BY r.expires_at, r.reservation_id LIMIT $7`

// ReadReservations returns the statement whose rows ScanReservations reads, by the columns of their keys.
func ReadReservations(tenants []uuid.UUID, features, ids []string) server.Statement {
	return server.Statement{SQL: readReservationsSQL, Args: []any{tenants, features, ids}}
}

// ScanReservations loads reservations into a ledger, each with its account unless the ledger has it.
func ScanReservations(rows pgx.Rows, into *domain.Ledger) error {
	return scanReservations(rows, func(tenant uuid.UUID, s *events.ReservationState, used, held string) error {
		into.LoadReservation(tenant, s)
		if key, ok := domain.AccountOf(tenant, s); ok && !into.Has(key) {
			return loadAccount(into, key, used, held)
		}
		return nil
	})
}

// DueReservations reads the reservations of an account whose time is over at a moment, those that end first first: at most limit
// after that of an id which ended at a time.
func DueReservations(ctx context.Context, q postgres.Queryer, of domain.AccountKey, at, ended time.Time, id string,
	limit int) ([]*events.ReservationState, error) {
	var due []*events.ReservationState
	rows, err := q.Query(ctx, dueReservationsSQL, of.TenantID, of.Feature, of.PeriodKey, at, ended, id, limit)
	if err != nil {
		return nil, fmt.Errorf("reading reservations whose time is over: %w", err)
	}
	err = scanReservations(rows, func(_ uuid.UUID, s *events.ReservationState, _, _ string) error {
		due = append(due, s)
		return nil
	})
	return due, err
}

func scanReservations(rows pgx.Rows, use func(tenant uuid.UUID, s *events.ReservationState, used, held string) error) error {
	var tenant uuid.UUID
	var r events.ReservationState
	var used, held string
	_, err := pgx.ForEachRow(rows, append(append([]any{&tenant}, reservationFields(&r)...), &used, &held), func() error {
		s := r
		return use(tenant, &s, used, held)
	})
	if err != nil {
		return fmt.Errorf("reading reservations: %w", err)
	}
	return nil
}

func reservationFields(r *events.ReservationState) []any {
	return []any{&r.ID, &r.Feature, &r.PeriodKey, &r.SubscriptionID, &r.FeatureType, &r.Amount, &r.Limit, &r.State,
		&r.ExpiresAt, &r.HeldAt, &r.EndedAt, &r.EventID, &r.Committed}
}

// reservationChanges returns the statement that writes the states of the reservations of rows, each after its last
// event; not ok without any.
func reservationChanges(rows []server.Row) (server.Statement, bool) {
	var last map[domain.ReservationKey]int
	for i := range rows {
		if s := rows[i].Reservation; s != nil {
			if last == nil {
				last = map[domain.ReservationKey]int{}
			}
			last[domain.ReservationKey{TenantID: rows[i].TenantID, ID: s.ID}] = i
		}
	}
	if last == nil {
		return server.Statement{}, false
	}
	var (
		tenants, subscriptions                            []uuid.UUID
		ids, features, periods, types, states, eventIDs   []string
		amounts, heldPositions, endedPositions, committed []int64
		limits                                            []*int64
		expiries, recorded                                []time.Time
	)
	for i := range rows {
		s := rows[i].Reservation
		if s == nil || last[domain.ReservationKey{TenantID: rows[i].TenantID, ID: s.ID}] != i {
			continue
		}
		tenants, subscriptions = append(tenants, rows[i].TenantID), append(subscriptions, s.SubscriptionID)
		ids, features, periods, types = append(ids, s.ID), append(features, s.Feature), append(periods, s.PeriodKey),
			append(types, s.FeatureType)
		states, eventIDs = append(states, s.State), append(eventIDs, s.EventID)
		amounts, limits, committed = append(amounts, s.Amount), append(limits, s.Limit), append(committed, s.Committed)
		heldPositions, endedPositions = append(heldPositions, s.HeldAt), append(endedPositions, s.EndedAt)
		expiries, recorded = append(expiries, s.ExpiresAt), append(recorded, rows[i].Recorded)
	}
	return server.Statement{SQL: writeReservationsSQL, Args: []any{tenants, ids, features, periods, subscriptions, types, amounts, limits,
		states,
		expiries, heldPositions, endedPositions, recorded, eventIDs, committed}}, true
}
