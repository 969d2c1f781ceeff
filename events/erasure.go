package events

import "github.com/google/uuid"

// ErasureStep is the payload of ErasureStepped.
type ErasureStep struct {
	ErasureID uuid.UUID `json:"erasureId"`
	Step      string    `json:"step"`             // ErasureRequested or ErasureEnded
	Reason    string    `json:"reason,omitempty"` // of the request
	Rewritten int64     `json:"rewritten"`        // events of the log whose payload was changed
}

// Steps of an erasure.
const (
	ErasureRequested = "requested"
	ErasureEnded     = "erased"
)

// ErasedName is the name of a tenant whose personal data is erased.
const ErasedName = "erased"
