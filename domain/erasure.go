package domain

import (
	"time"

	"github.com/google/uuid"
)

// States of an erasure.
const (
	ErasureRunning = "RUNNING"
	ErasureErased  = "ERASED" // ended
)

// ErasureDeadline is the time after which an erasure that still runs is partial.
const ErasureDeadline = 24 * time.Hour

// Erasure is the erasure of the personal data of an archived tenant. Its times are of the database's clock.
type Erasure struct {
	ID          uuid.UUID
	TenantID    uuid.UUID
	SagaID      uuid.UUID
	State       string
	Reason      string
	Actor       string
	RequestedAt time.Time
	UpTo        int64  // the events up to this number are erased: later ones have no personal data
	Cursor      int64  // the log is rewritten up to this number
	Place       string // in the read models: the place after which their erasure continues
	Rewritten   int64  // events of the log that were changed
	EndedAt     *time.Time
}
