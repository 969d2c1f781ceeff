package projections

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/events"
)

// Reasons why a check is not allowed.
const (
	ReasonNoSubscription  = "no_active_subscription"
	ReasonFeatureNotFound = "feature_not_found" // in no catalogue
	ReasonNotEntitled     = "not_entitled"
	ReasonQuotaExceeded   = "quota_exceeded"
)

// Check answers whether a tenant may use an amount of a feature. A limit of nil
// is none; then Remaining is nil too. Used, Held and Remaining are exact
// integers. ResetAt is nil where the period never resets. AsOf: every event of
// the tenant recorded up to there is in it.
//
// As JSON, a BOOLEAN feature has allowed, feature, type and asOfPosition; what is
// not granted has reason in place of type; all else has every member, with null
// for no limit and for what never resets.
type Check struct {
	Allowed       bool
	Feature       string
	Type          string
	Reason        string
	Limit         *int64
	Used          *json.Number
	Held          *json.Number
	Remaining     *json.Number
	LimitBehavior string
	ResetAt       *time.Time
	AsOf          events.Position
}

// Question asks for an amount of a feature.
type Question struct {
	Feature string
	Amount  int64
}

// Entitlements is all that a tenant is granted, in the order of the features,
// each as the check of an amount of 1.
type Entitlements struct {
	Data []Check         `json:"data"`
	AsOf events.Position `json:"asOfPosition"`
}

// Check answers one question. Not entitled, no such feature and no subscription
// are answers, no errors.
func (r *Reads) Check(ctx context.Context, v Viewer, tenant uuid.UUID, feature string, amount int64, w Wait) (Check, error) {
	return Check{}, errUnwritten
}

// Checks answers several questions from one snapshot, in their order.
func (r *Reads) Checks(ctx context.Context, v Viewer, tenant uuid.UUID, questions []Question, w Wait) ([]Check, error) {
	return nil, errUnwritten
}

// Entitlements lists what a tenant is granted.
func (r *Reads) Entitlements(ctx context.Context, v Viewer, tenant uuid.UUID, w Wait) (Entitlements, error) {
	return Entitlements{}, errUnwritten
}
