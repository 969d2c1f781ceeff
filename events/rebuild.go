package events

import "github.com/google/uuid"

// Rebuild is the payload of RebuildRequested. The event's own id is the rebuild's.
type Rebuild struct {
	Projection  string     `json:"projection"`
	Generation  int        `json:"generation"`
	FoldVersion string     `json:"foldVersion"`
	Purpose     string     `json:"purpose"`             // rebuild or verify
	Repair      bool       `json:"repair,omitempty"`    // of a verify: promote it where the live rows differ
	TenantID    *uuid.UUID `json:"tenantId,omitempty"`  // of one tenant only
	PeriodKey   string     `json:"periodKey,omitempty"` // of one period only
	Reason      string     `json:"reason"`
}

// Purposes of a rebuild.
const (
	PurposeRebuild = "rebuild"
	PurposeVerify  = "verify"
)

// RebuildStep is the payload of what becomes of a rebuild: RebuildReady,
// RebuildPromoted, RebuildRolledBack, RebuildAbandoned and RebuildFailed.
type RebuildStep struct {
	RebuildID  uuid.UUID `json:"rebuildId"`
	Projection string    `json:"projection"`
	Generation int       `json:"generation"`
	Flip       int       `json:"flip,omitempty"` // number of the change of what readers see
	Reason     string    `json:"reason"`         // of whoever decided; of a failure, what could not be folded
}

// Verified is the payload of ProjectionVerified. Differs is how many keys of the
// live rows were not as the log says: 0, or something is wrong.
type Verified struct {
	RebuildID  uuid.UUID `json:"rebuildId"`
	Projection string    `json:"projection"`
	Generation int       `json:"generation"` // that was folded to compare with
	Differs    int64     `json:"differs"`
	Repaired   bool      `json:"repaired"`
}
