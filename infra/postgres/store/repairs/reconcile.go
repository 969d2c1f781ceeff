package repairs

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/commands/repair"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/infra/postgres/store"
)

// foldReservationsSQL reads what the events of a tenant after one position up to another change of its reservations.
var foldReservationsSQL = events.SQL(`SELECT l.subject, coalesce(l.payload ->> 'reservationId',
	l.payload -> 'admitted' ->> 'reservationId'), l.payload ->> 'feature',
  coalesce(l.payload ->> 'periodKey', ''), (l.payload ->> 'amount')::bigint, coalesce((l.payload ->> 'expiresAt')::timestamptz,
  l.occurred_at)
 FROM event_log_rows l
 WHERE l.partition = $1 AND l.tenant_id = $2 AND l.position > $3 AND l.position <= $4
  AND (l.subject IN ({entitlements.reservation.held}, {entitlements.reservation.extended}, {entitlements.reservation.released},
  {entitlements.reservation.expired})
   OR l.subject = {usage.event.admitted} AND l.payload -> 'admitted' ->> 'reservationId' IS NOT NULL)
 ORDER BY l.position`)

// addHeld applies the events of a tenant after a position to the reservations that are held, by their ids.
func addHeld(ctx context.Context, from store.Querier, tenant uuid.UUID, after events.Position,
	held map[string]*events.ReservationState) (repair.FoldedTo, error) {
	head, err := store.ReadHead(ctx, from, after.Partition)
	if err != nil {
		return head, err
	}
	for at := after.Number; at < head.Number; at += foldSpan {
		rows, err := from.Query(ctx, foldReservationsSQL, after.Partition, tenant, at, min(at+foldSpan, head.Number))
		var subject events.Subject
		s := events.ReservationState{State: events.StateHeld}
		if err == nil {
			_, err = pgx.ForEachRow(rows, []any{&subject, &s.ID, &s.Feature, &s.PeriodKey, &s.Amount, &s.ExpiresAt}, func() error {
				switch subject {
				case events.ReservationHeld, events.ReservationExtended:
					now := s
					held[s.ID] = &now
				default:
					delete(held, s.ID)
				}
				return nil
			})
		}
		if err != nil {
			return head, fmt.Errorf("folding reservations: %w", err)
		}
	}
	return head, nil
}

// HeldReservations implements repair.AccountStore.
func (s *Accounts) HeldReservations(ctx context.Context, tenant uuid.UUID) (map[string]*events.ReservationState, repair.FoldedTo, error) {
	held := map[string]*events.ReservationState{}
	upTo, err := s.fold(ctx, tenant, func(from store.Querier, after events.Position) (repair.FoldedTo, error) {
		return addHeld(ctx, from, tenant, after, held)
	})
	return held, upTo, err
}

// AddHeldReservations implements repair.AccountTx.
func (t accountTx) AddHeldReservations(tenant uuid.UUID, after events.Position, held map[string]*events.ReservationState) error {
	_, err := addHeld(t.Context(), t.DB(), tenant, after, held)
	return err
}

// reservationRowsSQL reads the rows that are held, and those with ids.
const reservationRowsSQL = `SELECT reservation_id AS id, feature, period_key, amount, state, expires_at FROM reservations
 WHERE tenant_id = $1 AND (state = 'HELD' OR reservation_id = ANY ($2::text[]))`

// ReservationRows implements repair.AccountTx.
func (t accountTx) ReservationRows(tenant uuid.UUID, ids []string) (map[string]*events.ReservationState, error) {
	list, err := store.FindAll(t.Context(), t.DB(), "reading reservations", pgx.RowToAddrOfStructByNameLax[events.ReservationState],
		reservationRowsSQL, tenant, ids)
	byID := make(map[string]*events.ReservationState, len(list))
	for _, s := range list {
		byID[s.ID] = s
	}
	return byID, err
}
