package events

import (
	"time"

	"github.com/google/uuid"
)

// Threshold is a used amount at which a tenant gets an event, in each period: a percentage of the limit, or an amount. Its events, its row
// and the answers of the API have it.
type Threshold struct {
	ID        uuid.UUID `json:"id" format:"uuid"`
	TenantID  uuid.UUID `json:"tenantId" format:"uuid"`
	Feature   *string   `json:"feature" doc:"Key of the feature; null: each feature."`
	Percent   *int64    `json:"percent" doc:"Of the limit in force; null: it is an amount."`
	Amount    *int64    `json:"amount" doc:"The used amount; null: it is a percentage."`
	CreatedAt time.Time `json:"createdAt"`
}

// ChangedThreshold is the payload of ThresholdChanged.
type ChangedThreshold struct {
	Threshold
	Removed bool `json:"removed,omitempty"`
}

// Reasons of crossings that no rise of a used amount explains alone.
const (
	CrossedByLimit      = "limit_changed"     // the limit changed; before = after
	CrossedByDefinition = "threshold_defined" // the used amount was there when the threshold was defined; before = after
	CrossedOfZero       = "limit_zero"        // the first unit above a limit of 0
)

// CrossedThreshold is the payload of ThresholdCrossed: before < threshold ≤ after, or before = after by a reason.
type CrossedThreshold struct {
	ThresholdID uuid.UUID `json:"thresholdId"`
	Feature     string    `json:"feature"`
	PeriodKey   string    `json:"periodKey"`
	Percent     int64     `json:"percent,omitempty"`
	Amount      int64     `json:"amount,omitempty"` // the amount that was reached; with Percent it is computed from the limit
	Limit       *int64    `json:"limit"`            // in force then; nil: none
	Before      string    `json:"before"`           // the used amounts, integers of any size
	After       string    `json:"after"`
	Reason      string    `json:"reason,omitempty"`
}

// Webhook is an endpoint of a tenant, as its events, its row and the answers of the API have it. It holds no secret and no hash of one.
type Webhook struct {
	ID        uuid.UUID `json:"id" format:"uuid"`
	TenantID  uuid.UUID `json:"tenantId" format:"uuid"`
	URL       string    `json:"url" doc:"Receives the requests."`
	Events    []string  `json:"events" nullable:"false" doc:"Types of events that are sent."`
	Status    string    `json:"status" enum:"ENABLED,DISABLED"`
	Secrets   int       `json:"secrets" doc:"Number of valid secrets; 2 or more while a rotation overlaps."`
	CreatedAt time.Time `json:"createdAt"`
}

// ChangedWebhook is the payload of WebhookChanged.
type ChangedWebhook struct {
	Webhook
	// Operators says that an operator set the URL, which may lead to the networks that are allowed.
	Operators bool `json:"operators,omitempty"`
	// DisabledFor is the reason for which the service disabled the webhook; nil: it did not.
	DisabledFor *string `json:"disabledFor,omitempty"`
}

// States of a webhook.
const (
	WebhookEnabled  = "ENABLED"
	WebhookDisabled = "DISABLED"
	WebhookRemoved  = "REMOVED"
)
