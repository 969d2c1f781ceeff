package repair

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// ReservationDrift is a reservation that differs from the log: was in the table, is in the log; null: not there, or in the log not held.
type ReservationDrift struct {
	ReservationID string           `json:"reservationId"`
	Feature       string           `json:"feature"`
	Was           *HeldReservation `json:"was"`
	Is            *HeldReservation `json:"is"`
}

// HeldReservation has the members of a reservation that a decision depends on.
type HeldReservation struct {
	State     string    `json:"state"`
	PeriodKey string    `json:"periodKey"`
	Amount    int64     `json:"amount"`
	ExpiresAt time.Time `json:"expiresAt"`
}

// reservationDrift compares the reservations that the log holds with those of the table, by their ids.
func reservationDrift(tx AccountTx, tenant uuid.UUID, held map[string]*events.ReservationState) ([]ReservationDrift, error) {
	rows, err := tx.ReservationRows(tenant, slices.Sorted(maps.Keys(held)))
	if err != nil {
		return nil, err
	}
	list := []ReservationDrift{}
	for id, is := range held {
		was := rows[id]
		if was == nil || was.State != is.State || was.Feature != is.Feature || was.PeriodKey != is.PeriodKey || was.Amount != is.Amount ||
			!was.ExpiresAt.Equal(is.ExpiresAt) {
			list = append(list, ReservationDrift{id, is.Feature, heldReservation(was), heldReservation(is)})
		}
	}
	for id, was := range rows {
		if held[id] == nil {
			list = append(list, ReservationDrift{id, was.Feature, heldReservation(was), nil})
		}
	}
	slices.SortFunc(list, func(a, b ReservationDrift) int { return strings.Compare(a.ReservationID, b.ReservationID) })
	return list, nil
}

func heldReservation(s *events.ReservationState) *HeldReservation {
	if s == nil {
		return nil
	}
	return &HeldReservation{s.State, s.PeriodKey, s.Amount, s.ExpiresAt.UTC()}
}
