package meterplex

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Receipt is what happened to an event, step by step. A step that has not happened is nil.
type Receipt struct {
	TenantID         string `json:"tenantId"`
	EventID          string `json:"eventId"`
	Status           string `json:"status"` // PENDING, VALIDATED, AGGREGATED, REJECTED or DEAD_LETTERED
	Payload          Event  `json:"payload"`
	PayloadHash      string `json:"payloadHash"`
	CanonicalVersion int64  `json:"canonicalVersion"`
	EffectiveAmount  *int64 `json:"effectiveAmount,string"` // after corrections
	Recorded         struct {
		Position      string    `json:"position"`
		At            time.Time `json:"at"`
		LogEventID    string    `json:"logEventId"`
		CorrelationID string    `json:"correlationId"`
	} `json:"recorded"`
	Published *struct {
		Topic     string     `json:"topic"`
		Partition int64      `json:"partition"`
		Offset    *int64     `json:"offset"`
		At        *time.Time `json:"at"`
		Expired   bool       `json:"expired"`
	} `json:"published"`
	Validated *struct {
		Position       string    `json:"position"`
		At             time.Time `json:"at"`
		Amount         int64     `json:"amount,string"`
		FeatureType    string    `json:"featureType"`
		PeriodKey      string    `json:"periodKey"`
		SubscriptionID string    `json:"subscriptionId"`
	} `json:"validated"`
	Rejected   *ReceiptRejection `json:"rejected"`
	Aggregated *struct {
		Feature        string    `json:"feature"`
		PeriodKey      string    `json:"periodKey"`
		SubscriptionID string    `json:"subscriptionId"`
		NoLaterThan    time.Time `json:"noLaterThan"`
	} `json:"aggregated"`
	Frozen       *ReceiptPeriod      `json:"frozen"` // the closed period that contains it
	Late         *ReceiptPeriod      `json:"late"`   // if it came after its period was closed
	Corrects     *ReceiptCorrection  `json:"corrects"`
	Corrections  []ReceiptCorrection `json:"corrections"`
	Conflicts    []ReceiptConflict   `json:"conflicts"`
	DeadLetters  []ReceiptFailure    `json:"deadLetters"`
	Retries      []ReceiptRejection  `json:"retries"`
	Adjustments  []ReceiptAdjustment `json:"adjustments"`
	AsOfPosition string              `json:"asOfPosition"`
	Raw
}

// ReceiptRejection is a rejection, or a retry after one.
type ReceiptRejection struct {
	Position     string    `json:"position"`
	At           time.Time `json:"at"`
	Code         string    `json:"code"`
	Reason       string    `json:"reason"`
	DeadLetterID string    `json:"deadLetterId"`
	Attempt      int64     `json:"attempt"`
}

// ReceiptPeriod is the closing of a period.
type ReceiptPeriod struct {
	PeriodKey string `json:"periodKey"`
	Snapshot  int64  `json:"snapshot"`
	Kind      string `json:"kind"`
}

// ReceiptCorrection is a change of an amount by a correction or a retraction.
type ReceiptCorrection struct {
	EventID         string    `json:"eventId"`
	Kind            string    `json:"kind"`
	Status          string    `json:"status"`
	Before          *int64    `json:"before,string"`
	After           *int64    `json:"after,string"`
	Delta           *int64    `json:"delta,string"`
	Position        string    `json:"position"`
	VerdictPosition string    `json:"verdictPosition"`
	At              time.Time `json:"at"`
}

// ReceiptConflict is another payload that came with the same eventId, and was not counted.
type ReceiptConflict struct {
	EventID       string    `json:"eventId"`
	FirstHash     string    `json:"firstHash"`
	ConflictHash  string    `json:"conflictHash"`
	FirstPosition string    `json:"firstPosition"`
	Position      string    `json:"position"`
	At            time.Time `json:"at"`
}

// ReceiptFailure is a dead letter of the event.
type ReceiptFailure struct {
	ID     string    `json:"id"`
	Stage  string    `json:"stage"`
	Status string    `json:"status"`
	Code   string    `json:"code"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// ReceiptAdjustment is an amount that came after its period was closed.
type ReceiptAdjustment struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"`
	State  string `json:"state"`
	Amount int64  `json:"amount,string"`
}

// Receipt returns the receipt of an event. Of the query it takes MinPosition, Wait and TenantID.
func (c *Client) Receipt(ctx context.Context, eventID string, q Query) (*Receipt, error) {
	return get[Receipt](ctx, c, request{method: http.MethodGet, path: "/api/v1/usage/events/" + url.PathEscape(eventID), query: q.values(),
		wait: q.Wait, member: "eventId"})
}
