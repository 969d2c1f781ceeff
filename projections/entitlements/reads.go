package entitlements

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// Reasons why a check is not allowed.
const (
	ReasonNoSubscription  = "no_active_subscription"
	ReasonFeatureNotFound = "feature_not_found" // in no catalogue
	ReasonNotEntitled     = "not_entitled"
	ReasonQuotaExceeded   = "quota_exceeded"
)

// Check answers whether a tenant may use an amount of a feature. Without a limit,
// Limit and Remaining are nil. Used, Held and Remaining are exact integers.
// ResetAt is nil if the period never resets. Check includes every event of the
// tenant recorded up to AsOf.
//
// As JSON, a BOOLEAN feature has allowed, feature, type and asOfPosition; a feature
// that is not granted has reason in place of type; others have every member, with
// null if unlimited or if the period never resets.
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

// Entitlements lists all grants of a tenant, in the order of the features, each as the
// check of an amount of 1.
type Entitlements struct {
	Data []Check         `json:"data"`
	AsOf events.Position `json:"asOfPosition"`
}

// Check answers one question. Not entitled, unknown feature and no subscription are
// answers, not errors.
func (r *Reads) Check(ctx context.Context, v query.Viewer, tenant uuid.UUID, feature string, amount int64, w query.Wait) (Check, error) {
	checks, err := r.Checks(ctx, v, tenant, []Question{{feature, amount}}, w)
	if err != nil {
		return Check{}, err
	}
	return checks[0], nil
}

// Checks answers several questions from one snapshot, in their order.
func (r *Reads) Checks(ctx context.Context, v query.Viewer, tenant uuid.UUID, questions []Question, w query.Wait) ([]Check, error) {
	now := r.Now().UTC()
	g, asOf, err := r.granted(ctx, v, tenant, w, now)
	if err != nil {
		return nil, err
	}
	checks := make([]Check, len(questions))
	var refused []string
	for i, q := range questions {
		if found := g.find(q.Feature); found != nil {
			checks[i] = g.check(found, q.Amount)
		} else {
			checks[i] = Check{Feature: q.Feature, Reason: ReasonNoSubscription}
			refused = append(refused, q.Feature)
		}
		checks[i].AsOf = asOf
	}
	if len(refused) == 0 || !g.subscribed {
		return checks, nil
	}
	return checks, r.giveReasons(ctx, v, checks, refused)
}

// giveReasons distinguishes features not granted from features in no catalogue.
func (r *Reads) giveReasons(ctx context.Context, v query.Viewer, checks []Check, refused []string) error {
	known, err := r.knownFeatures(ctx, v, refused)
	if err != nil {
		return err
	}
	for i := range checks {
		if checks[i].Type != "" {
			continue
		}
		if checks[i].Reason = ReasonFeatureNotFound; known[checks[i].Feature] {
			checks[i].Reason = ReasonNotEntitled
		}
	}
	return nil
}

// Entitlements lists a tenant's grants.
func (r *Reads) Entitlements(ctx context.Context, v query.Viewer, tenant uuid.UUID, w query.Wait) (Entitlements, error) {
	g, asOf, err := r.granted(ctx, v, tenant, w, r.Now().UTC())
	if err != nil {
		return Entitlements{}, err
	}
	all := Entitlements{Data: make([]Check, len(g.grants)), AsOf: asOf}
	for i := range g.grants {
		all.Data[i] = g.check(&g.grants[i], 1)
		all.Data[i].AsOf = asOf
	}
	return all, nil
}

// Confirm returns once checks include all events folded by now.
func (r *Reads) Confirm(ctx context.Context) error {
	if r.Grants == nil {
		return nil
	}
	return r.Grants.Confirm(ctx)
}

// AwaitGrants returns when checks see every subscription that the log holds now,
// or when the context ends.
func (r *Reads) AwaitGrants(ctx context.Context, tenant uuid.UUID) error {
	target := int64(-1)
	for poll := query.PollFirst; ; poll = min(2*poll, query.PollLast) {
		var s query.Standing
		if err := r.Snapshot(ctx, query.Viewer{Operator: true}, query.ReadStanding(query.EntitlementsSource(), tenant, &s)); err != nil {
			return err
		}
		if target < 0 {
			target = s.Head // fixed, even if more events are recorded
		}
		if s.Folded >= target {
			return r.Confirm(ctx)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(poll):
		}
	}
}

// MarshalJSON writes the members that belong to the kind of answer.
func (c Check) MarshalJSON() ([]byte, error) {
	head := checkHead{c.Allowed, c.Feature, c.Type, c.Reason}
	if c.Type == "" || c.Type == domain.FeatureBoolean {
		return json.Marshal(struct {
			checkHead
			AsOf events.Position `json:"asOfPosition"`
		}{head, c.AsOf})
	}
	return json.Marshal(struct {
		checkHead
		Limit         *int64          `json:"limit"`
		Used          *json.Number    `json:"used"`
		Held          *json.Number    `json:"held"`
		Remaining     *json.Number    `json:"remaining"`
		LimitBehavior string          `json:"limitBehavior"`
		ResetAt       *time.Time      `json:"resetAt"`
		AsOf          events.Position `json:"asOfPosition"`
	}{head, c.Limit, c.Used, c.Held, c.Remaining, c.LimitBehavior, c.ResetAt, c.AsOf})
}

type checkHead struct {
	Allowed bool   `json:"allowed"`
	Feature string `json:"feature"`
	Type    string `json:"type,omitempty"`
	Reason  string `json:"reason,omitempty"`
}
