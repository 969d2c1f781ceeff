package events

import "github.com/google/uuid"

// OffboardingStep is the payload of OffboardingStepped.
type OffboardingStep struct {
	OffboardingID uuid.UUID `json:"offboardingId"`
	Step          string    `json:"step"`
	Outcome       string    `json:"outcome"` // OffboardingDone or OffboardingPartial
	Detail        string    `json:"detail,omitempty"`
}

// Steps of an offboarding, in their order. The last two end one that was cancelled.
const (
	OffboardingRequested = "requested"
	OffboardingSuspended = "suspended"
	OffboardingDrained   = "drained"
	OffboardingClosed    = "closed"
	OffboardingPushed    = "pushed"
	OffboardingExported  = "exported"
	OffboardingArchived  = "archived"
	OffboardingCancelled = "cancelled"
	OffboardingReverted  = "reverted"
)

// Outcomes of a step.
const (
	OffboardingDone    = "done"
	OffboardingPartial = "partial" // it ended without some of its effects, which the detail names
)
