package events

import "github.com/google/uuid"

// Rebuild is the payload of RebuildRequested. The event's own id is the rebuild's.
type Rebuild struct {
	Projection  string     `json:"projection"`
	Generation  int        `json:"generation"`
	FoldVersion string     `json:"foldVersion"`
	Purpose     string     `json:"purpose"`             // rebuild or verify
	Repair      bool       `json:"repair,omitempty"`    // for a verify: promote it if the live rows differ
	TenantID    *uuid.UUID `json:"tenantId,omitempty"`  // limits it to one tenant
	PeriodKey   string     `json:"periodKey,omitempty"` // limits it to one period
	Reason      string     `json:"reason"`
}

// Purposes of a rebuild.
const (
	PurposeRebuild = "rebuild"
	PurposeVerify  = "verify"
)

// RebuildStep is the payload of the changes of a rebuild's state: RebuildReady,
// RebuildPromoted, RebuildRolledBack, RebuildAbandoned and RebuildFailed.
type RebuildStep struct {
	RebuildID  uuid.UUID `json:"rebuildId"`
	Projection string    `json:"projection"`
	Generation int       `json:"generation"`
	Flip       int       `json:"flip,omitempty"` // number of this change of the visible generation
	Reason     string    `json:"reason"`         // given with the decision; for a failure, why an event could not be folded
}

// Verified is the payload of ProjectionVerified. Differs counts the keys whose live
// rows disagree with the log; it is 0 unless there is a fault.
type Verified struct {
	RebuildID  uuid.UUID `json:"rebuildId"`
	Projection string    `json:"projection"`
	Generation int       `json:"generation"` // folded for the comparison
	Differs    int64     `json:"differs"`
	Repaired   bool      `json:"repaired"`
}
