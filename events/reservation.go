package events

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// States of a reservation. It is held at first, and ends once.
const (
	StateHeld      = "HELD"
	StateCommitted = "COMMITTED"
	StateReleased  = "RELEASED"
	StateExpired   = "EXPIRED"
)

// Reservation is the payload of ReservationHeld, ReservationExtended, ReservationReleased and ReservationExpired: the reservation,
// and the account after the event. A commit is the event UsageAdmitted.
type Reservation struct {
	ReservationID  string       `json:"reservationId"`
	Feature        string       `json:"feature"`
	PeriodKey      string       `json:"periodKey"`
	SubscriptionID uuid.UUID    `json:"subscriptionId"`
	FeatureType    string       `json:"featureType"`
	Amount         int64        `json:"amount"`
	ExpiresAt      time.Time    `json:"expiresAt"`
	Limit          *int64       `json:"limit"` // nil: no limit
	Used           *json.Number `json:"used"`  // of the account after the event, an integer; nil without an account (METERED)
	Held           *json.Number `json:"held"`
}

// ReservationState is the state of a reservation after an event.
type ReservationState struct {
	ID             string
	Feature        string
	PeriodKey      string
	SubscriptionID uuid.UUID
	FeatureType    string
	Amount         int64
	Limit          *int64 // of the grant by which it is held; nil: none
	State          string
	ExpiresAt      time.Time
	HeldAt         int64  // number of the event that made it; 0: it is not appended yet
	EndedAt        int64  // number of the event that ended it; 0: none
	EventID        string // the producer's id of the committed usage; "": not committed
	Committed      int64  // amount
}

// SetPosition sets the number of the event that made or ended the reservation.
func (s *ReservationState) SetPosition(number int64) {
	if s.HeldAt == 0 {
		s.HeldAt = number
	}
	if s.State != StateHeld {
		s.EndedAt = number
	}
}

// ReconciledAccount is the payload of AccountReconciled.
type ReconciledAccount struct {
	Feature   string       `json:"feature"`
	PeriodKey string       `json:"periodKey"`
	Used      CorrectedSum `json:"used"`
	Held      CorrectedSum `json:"held"`
	Reason    string       `json:"reason"`
}

// CorrectedSum is a sum of an account before and after, integers.
type CorrectedSum struct {
	Was json.Number `json:"was"`
	Is  json.Number `json:"is"`
}
