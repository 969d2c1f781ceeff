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
	ID          uuid.UUID  `json:"id"`
	TenantID    uuid.UUID  `json:"tenantId"`
	SagaID      uuid.UUID  `json:"sagaId" doc:"GET /sagas/{id} shows its step and the conditions that it waits for."`
	State       string     `json:"state" enum:"RUNNING,ERASED"`
	Reason      string     `json:"reason" doc:"Of the request, recorded in the log."`
	Actor       string     `json:"actor" doc:"The key of the request, as api_key/id."`
	RequestedAt time.Time  `json:"requestedAt" doc:"The time of the request."`
	UpTo        int64      `json:"-"` // the events up to this number are erased: later ones have no personal data
	Cursor      int64      `json:"-"` // the log is rewritten up to this number
	Place       string     `json:"-"` // in the read models: their erasure continues after this cursor
	Rewritten   int64      `json:"rewrittenEvents" doc:"Events of the log that were changed so far."`
	EndedAt     *time.Time `json:"endedAt" doc:"null: it has not ended."`
}
