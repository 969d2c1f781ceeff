package domain

import (
	"math/big"
	"time"

	"github.com/google/uuid"
)

// Push is an amount due that a billing provider shall count: the difference between what is billable and what was pushed before. Customer, Event, Amount
// and Timestamp are stored with the push, so that each attempt has the same body.
type Push struct {
	ID         uuid.UUID
	TenantID   uuid.UUID
	Feature    string
	PeriodKey  string
	Snapshot   int
	N          int // 0: of the snapshot; k: of its k-th group of adjustments
	Amount     *big.Int
	Key        string // the idempotency key
	Identifier string // of the provider's event, derived from the key
	Customer   string // the provider's
	Event      string // the name of the provider's event
	Timestamp  time.Time

	State          string
	Attempts       int
	StoredAt       time.Time
	FirstAttemptAt *time.Time
	NextAt         *time.Time
	LastError      string
}

// PushOutcome is what one attempt to send a push showed.
type PushOutcome string

// Outcomes of an attempt.
const (
	PushDelivered PushOutcome = "DELIVERED" // the provider counts it
	PushRefused   PushOutcome = "REFUSED"   // the provider did not count it, and would refuse it again
	PushLater     PushOutcome = "LATER"     // the provider did not count this attempt
	PushUnknown   PushOutcome = "UNKNOWN"   // the provider may have counted it
)

// PushResult is the result of one attempt.
type PushResult struct {
	Outcome    PushOutcome
	Code       string        // the provider's, or one of the service
	Reason     string        // in the provider's words
	RetryAfter time.Duration // 0: the provider named none
}
