package events

import (
	"time"

	"github.com/google/uuid"
)

// CloseRequested is the payload of PeriodCloseRequested. Its position is the cut of the snapshot: an event of the period behind it is late.
type CloseRequested struct {
	PeriodKey string   `json:"periodKey"`
	Snapshot  int      `json:"snapshot"` // from 1, one more after each reopening
	Early     bool     `json:"early"`    // before the period's end
	Despite   []string `json:"despite"`  // conditions that the close does not wait for
	Reason    string   `json:"reason"`
	Scheduled bool     `json:"scheduled"` // by the tenant's policy
}

// FrozenLine is a figure of a closed period.
type FrozenLine struct {
	Feature        string    `json:"feature"`
	SubscriptionID uuid.UUID `json:"subscriptionId"`
	Amount         string    `json:"amount"` // an integer of any size
	EventCount     int64     `json:"eventCount"`
	LastEventAt    time.Time `json:"lastEventAt"`
}

// FrozenCharge is a line of the charges of a closed period. Price, its version, Currency and MicroUnits are left out of a line without a
// price.
type FrozenCharge struct {
	Feature        string     `json:"feature"`
	SubscriptionID uuid.UUID  `json:"subscriptionId"`
	Grant          int64      `json:"grant"`  // number of the change of the subscription that made it; -1: usage before the first subscription
	Status         string     `json:"status"` // BEFORE, ACTIVE or TRIALING
	From           *time.Time `json:"from,omitempty"`
	To             *time.Time `json:"to,omitempty"`
	Amount         string     `json:"amount"` // an integer of any size
	EventCount     int64      `json:"eventCount"`
	Price          string     `json:"price,omitempty"`
	PriceVersion   int64      `json:"priceVersion,omitempty"`
	Currency       string     `json:"currency,omitempty"`
	MicroUnits     string     `json:"microUnits,omitempty"` // an integer of any size
}

// MaxFrozenLines bounds the lines of one PeriodFrozen.
const MaxFrozenLines = 500

// Frozen is the payload of PeriodFrozen: a part of the figures of a snapshot, in the order of feature and subscription.
type Frozen struct {
	PeriodKey string       `json:"periodKey"`
	Snapshot  int          `json:"snapshot"`
	Part      int          `json:"part"` // from 1
	Parts     int          `json:"parts"`
	Lines     []FrozenLine `json:"lines"`
	// Charges are a part of the charges, in the order of feature, start and number of the grant.
	Charges []FrozenCharge `json:"charges,omitempty"`
}

// ClosedPeriod is the payload of PeriodClosed: the figures of the snapshot are final.
type ClosedPeriod struct {
	PeriodKey   string   `json:"periodKey"`
	Snapshot    int      `json:"snapshot"`
	Cut         Position `json:"cut"`   // of the request to close
	Logic       string   `json:"logic"` // version of the fold, e.g. usage_aggregates/v1
	LogicHash   string   `json:"logicHash"`
	FiguresHash string   `json:"figuresHash"` // hex SHA-256 of the figures in the form of RFC 8785
	Lines       int      `json:"lines"`
	Despite     []string `json:"despite"`
	// ChargesHash is the hex SHA-256 of the charges in the form of RFC 8785, Charges their number.
	ChargesHash string `json:"chargesHash"`
	Charges     int    `json:"charges"`
}

// ReopenedPeriod is the payload of PeriodReopened. The snapshot is kept.
type ReopenedPeriod struct {
	PeriodKey string `json:"periodKey"`
	Snapshot  int    `json:"snapshot"`
	Reason    string `json:"reason"`
	Voided    int64  `json:"voided"` // adjustments that were pending
}

// Kinds of adjustments.
const (
	AdjustmentLateUsage  = "LATE_USAGE"  // usage that was recorded after the cut
	AdjustmentLateCommit = "LATE_COMMIT" // the commit of a reservation after the cut
	AdjustmentRetry      = "RETRY"       // usage that counts by a retry after the cut
	AdjustmentCorrection = "CORRECTION"
	AdjustmentRetraction = "RETRACTION"
	AdjustmentRebuild    = "REBUILD" // a rebuild counts the period in another way
)

// Policies for late usage: it is refused, or becomes an adjustment.
const (
	LateUsageReject = "REJECT"
	LateUsageAdjust = "ADJUST"
)

// AdjustmentKinds lists the kinds of adjustments.
func AdjustmentKinds() []string {
	return []string{AdjustmentLateUsage, AdjustmentLateCommit, AdjustmentRetry, AdjustmentCorrection, AdjustmentRetraction,
		AdjustmentRebuild}
}

// States of an adjustment. No decision changes the last three; a discard of its dead letter voids it.
const (
	AdjustmentPending  = "PENDING"
	AdjustmentApproved = "APPROVED"
	AdjustmentWaived   = "WAIVED"
	AdjustmentVoid     = "VOID" // its period was reopened, or its verdict discarded
)

// ProposedAdjustment is the payload of AdjustmentProposed: the difference of a frozen figure after a flip of generations.
type ProposedAdjustment struct {
	AdjustmentID   uuid.UUID  `json:"adjustmentId"` // the event's own id
	PeriodKey      string     `json:"periodKey"`
	Snapshot       int        `json:"snapshot"`
	Feature        string     `json:"feature"`
	SubscriptionID uuid.UUID  `json:"subscriptionId"`
	Kind           string     `json:"kind"`   // AdjustmentRebuild
	Amount         string     `json:"amount"` // an integer of any size
	EventCount     int64      `json:"eventCount"`
	Flip           int        `json:"flip"`
	RebuildID      *uuid.UUID `json:"rebuildId,omitempty"`
}

// DecidedAdjustments is the payload of AdjustmentDecided: IDs, or Scope, name the adjustments, which were all pending.
type DecidedAdjustments struct {
	IDs      []uuid.UUID      `json:"ids,omitempty"`
	Scope    *AdjustmentScope `json:"scope,omitempty"`
	Decision string           `json:"decision"` // AdjustmentApproved or AdjustmentWaived
	Reason   string           `json:"reason"`
	Count    int64            `json:"count"`
	Amount   string           `json:"amount"` // the sum, an integer of any size
}

// AdjustmentScope selects the pending adjustments of the present snapshot of a closed period.
type AdjustmentScope struct {
	PeriodKey string   `json:"periodKey"`
	Feature   string   `json:"feature,omitempty"`
	Kind      string   `json:"kind,omitempty"`
	UpTo      Position `json:"upTo"` // adjustments at later positions are not decided
}

// Late marks a verdict on an event behind the cut of its period.
type Late struct {
	Snapshot int    `json:"snapshot"`
	Kind     string `json:"kind"` // of the adjustment
}
