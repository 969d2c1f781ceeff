package events

import "github.com/google/uuid"

// Push is the payload of PushDelivered: an amount due that a billing provider counts. An operator or the provider's totals resolve a push
// whose answer is unknown.
type Push struct {
	PushID     uuid.UUID `json:"pushId"`
	Provider   string    `json:"provider"`
	Key        string    `json:"key"`        // the idempotency key
	Identifier string    `json:"identifier"` // of the provider's event, derived from the key
	Feature    string    `json:"feature"`
	PeriodKey  string    `json:"periodKey"`
	Snapshot   int       `json:"snapshot"`
	Amount     string    `json:"amount"`               // an integer of any size, negative if less is due than was delivered
	Attempt    int       `json:"attempt"`              // the number of times that it was sent
	Resolution string    `json:"resolution,omitempty"` // ResolvedByTotals or ResolvedByOperator; "": by the provider's answer
	Reason     string    `json:"reason,omitempty"`     // an operator's
}

// Resolutions of a push whose answer is unknown.
const (
	ResolvedByTotals   = "TOTALS"
	ResolvedByOperator = "OPERATOR"
)

// FailedPush is the payload of PushFailed: the push is not sent again without an operator's request.
type FailedPush struct {
	PushID     uuid.UUID `json:"pushId"`
	Provider   string    `json:"provider"`
	Key        string    `json:"key"`
	Identifier string    `json:"identifier"`
	Feature    string    `json:"feature"`
	PeriodKey  string    `json:"periodKey"`
	Snapshot   int       `json:"snapshot"`
	Amount     string    `json:"amount"`
	Attempt    int       `json:"attempt"`
	Code       string    `json:"code"`   // the provider's, or one of the service
	Reason     string    `json:"reason"` // in the provider's words
}

// ComparedPushes is the payload of PushCompared: the provider's total of a customer's meter in a period differs from the delivered amounts.
type ComparedPushes struct {
	Provider   string `json:"provider"`
	Customer   string `json:"customer"`
	Feature    string `json:"feature"`
	PeriodKey  string `json:"periodKey"`
	Total      string `json:"total"` // the provider's
	Delivered  string `json:"delivered"`
	Difference string `json:"difference"` // total less delivered
}
