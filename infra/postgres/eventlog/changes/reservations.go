package changes

import (
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
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
		ids, features, periods, types = append(ids, s.ID), append(features, s.Feature), append(periods, s.PeriodKey), append(types, s.FeatureType)
		states, eventIDs = append(states, s.State), append(eventIDs, s.EventID)
		amounts, limits, committed = append(amounts, s.Amount), append(limits, s.Limit), append(committed, s.Committed)
		heldPositions, endedPositions = append(heldPositions, s.HeldAt), append(endedPositions, s.EndedAt)
		expiries, recorded = append(expiries, s.ExpiresAt), append(recorded, rows[i].Recorded)
	}
	return server.Statement{SQL: writeReservationsSQL, Args: []any{tenants, ids, features, periods, subscriptions, types, amounts, limits, states,
		expiries, heldPositions, endedPositions, recorded, eventIDs, committed}}, true
}
