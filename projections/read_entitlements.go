package projections

import (
	"context"
	"encoding/json"
	"math/big"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
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

// $3 and $4 name the month and the year of now: the period of each grant that
// resets. The catalogue and the subscription are asked for only to give a reason.
// LIMIT 1 has each row looked up by its whole key, not among all of the tenant's.
const readChecks = `
SELECT q.feature, g.type, g."limit", g.limit_behavior, g.reset_period, coalesce(u.used, 0)::text,
       EXISTS (SELECT FROM features f WHERE f.lookup_key = q.feature),
       EXISTS (SELECT FROM subscriptions s WHERE s.tenant_id = $1 AND s.status IN ('ACTIVE', 'TRIALING'))
FROM (SELECT p.generation FROM projection_pointers p
      WHERE p.live AND p.projection = 'entitlement_reads' AND p.tenant_id IN ($1, '00000000-0000-0000-0000-000000000000')
      ORDER BY p.tenant_id DESC LIMIT 1) live
CROSS JOIN unnest($2::text[]) WITH ORDINALITY AS q (feature, place)
LEFT JOIN LATERAL (
  SELECT * FROM entitlement_grants g
  WHERE g.generation = live.generation AND g.tenant_id = $1 AND g.feature = q.feature
  LIMIT 1) g ON true
LEFT JOIN LATERAL (
  SELECT u.used FROM entitlement_usage u
  WHERE u.generation = live.generation AND u.tenant_id = $1 AND u.feature = q.feature
    AND u.period_key = CASE g.reset_period WHEN 'MONTHLY' THEN $3::text WHEN 'ANNUALLY' THEN $4::text ELSE 'lifetime' END
  LIMIT 1) u ON true
ORDER BY q.place`

const readEntitlements = `
SELECT g.feature, g.type, g."limit", g.limit_behavior, g.reset_period, coalesce(u.used, 0)::text, true, true
FROM (SELECT p.generation FROM projection_pointers p
      WHERE p.live AND p.projection = 'entitlement_reads' AND p.tenant_id IN ($1, '00000000-0000-0000-0000-000000000000')
      ORDER BY p.tenant_id DESC LIMIT 1) live
JOIN entitlement_grants g ON g.generation = live.generation AND g.tenant_id = $1
LEFT JOIN LATERAL (
  SELECT u.used FROM entitlement_usage u
  WHERE u.generation = live.generation AND u.tenant_id = $1 AND u.feature = g.feature
    AND u.period_key = CASE g.reset_period WHEN 'MONTHLY' THEN $2::text WHEN 'ANNUALLY' THEN $3::text ELSE 'lifetime' END
  LIMIT 1) u ON true
ORDER BY g.feature`

// Check answers one question. Not entitled, no such feature and no subscription
// are answers, no errors.
func (r *Reads) Check(ctx context.Context, v Viewer, tenant uuid.UUID, feature string, amount int64, w Wait) (Check, error) {
	checks, err := r.Checks(ctx, v, tenant, []Question{{feature, amount}}, w)
	if err != nil {
		return Check{}, err
	}
	return checks[0], nil
}

// Checks answers several questions from one snapshot, in their order.
func (r *Reads) Checks(ctx context.Context, v Viewer, tenant uuid.UUID, questions []Question, w Wait) ([]Check, error) {
	features := make([]string, len(questions))
	for i, q := range questions {
		features[i] = strings.ReplaceAll(strings.ToValidUTF8(q.Feature, "\uFFFD"), "\x00", "\uFFFD")
	}
	now := r.Now().UTC()
	found, asOf, err := r.grants(ctx, v, tenant, w, readChecks, tenant, features, monthOf(now), yearOf(now))
	if err != nil {
		return nil, err
	}
	checks := make([]Check, len(questions))
	for i := range found {
		checks[i] = found[i].check(questions[i].Amount, now)
		checks[i].Feature, checks[i].AsOf = questions[i].Feature, asOf
	}
	return checks, nil
}

// Entitlements lists what a tenant is granted.
func (r *Reads) Entitlements(ctx context.Context, v Viewer, tenant uuid.UUID, w Wait) (Entitlements, error) {
	now := r.Now().UTC()
	found, asOf, err := r.grants(ctx, v, tenant, w, readEntitlements, tenant, monthOf(now), yearOf(now))
	if err != nil {
		return Entitlements{}, err
	}
	all := Entitlements{Data: make([]Check, len(found)), AsOf: asOf}
	for i := range found {
		all.Data[i] = found[i].check(1, now)
		all.Data[i].AsOf = asOf
	}
	return all, nil
}

func monthOf(t time.Time) string { return domain.PeriodKey(domain.ResetMonthly, t) }
func yearOf(t time.Time) string  { return domain.PeriodKey(domain.ResetAnnually, t) }

// grant is what stands of a feature for a tenant; kind is nil where nothing is granted.
type grant struct {
	feature               string
	kind, behavior, reset *string
	limit                 *int64
	used                  string // an exact integer
	known                 bool   // the feature is in the catalogue
	subscribed            bool
}

func (r *Reads) grants(ctx context.Context, v Viewer, tenant uuid.UUID, w Wait, sql string, args ...any) ([]grant, events.Position, error) {
	if err := r.await(ctx, v, entitlementsSource(), tenant, w); err != nil {
		return nil, events.Position{}, err
	}
	var found []grant
	var stands standing
	err := r.snapshot(ctx, v, standingOf(entitlementsSource(), tenant, &stands), query{sql, args, each(func(rows pgx.Rows) error {
		var g grant
		err := rows.Scan(&g.feature, &g.kind, &g.limit, &g.behavior, &g.reset, &g.used, &g.known, &g.subscribed)
		found = append(found, g)
		return err
	})})
	if err != nil {
		return nil, events.Position{}, err
	}
	return found, stands.asOf(tenant, w), nil
}

// AwaitGrants returns when checks see every subscription that the log holds now,
// or when the context ends.
func (r *Reads) AwaitGrants(ctx context.Context, tenant uuid.UUID) error {
	target := int64(-1)
	for poll := pollFirst; ; poll = min(2*poll, pollLast) {
		var s standing
		if err := r.snapshot(ctx, Viewer{Operator: true}, standingOf(entitlementsSource(), tenant, &s)); err != nil {
			return err
		}
		if target < 0 {
			target = s.head // stands still, also where more is recorded meanwhile
		}
		if s.folded >= target {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(poll):
		}
	}
}

// check answers whether an amount may be used now.
func (g *grant) check(amount int64, now time.Time) Check {
	c := Check{Feature: g.feature, Reason: g.refusal()}
	if c.Reason != "" {
		return c
	}
	c.Allowed, c.Type = true, *g.kind
	if c.Type == domain.FeatureBoolean {
		return c
	}
	c.LimitBehavior, c.Limit = *g.behavior, g.limit
	used, held := integer(g.used), new(big.Int)
	c.Used, c.Held = number(used), number(held)
	if _, end, ok := domain.PeriodBounds(domain.PeriodKey(*g.reset, now)); ok {
		c.ResetAt = &end
	}
	if g.limit == nil {
		return c
	}
	remaining := new(big.Int).Sub(big.NewInt(*g.limit), used)
	remaining.Sub(remaining, held)
	if c.LimitBehavior == domain.LimitHard && remaining.Cmp(big.NewInt(amount)) < 0 {
		c.Allowed, c.Reason = false, ReasonQuotaExceeded
	}
	if remaining.Sign() < 0 { // recorded usage and a lowered limit may stand above it
		remaining.SetInt64(0)
	}
	c.Remaining = number(remaining)
	return c
}

func (g *grant) refusal() string {
	switch {
	case g.kind != nil:
		return ""
	case !g.subscribed:
		return ReasonNoSubscription
	case !g.known:
		return ReasonFeatureNotFound
	default:
		return ReasonNotEntitled
	}
}

func integer(text string) *big.Int {
	n, ok := new(big.Int).SetString(text, 10)
	if !ok {
		panic("projections: the database gave no integer for a sum of integers: " + text)
	}
	return n
}

func number(n *big.Int) *json.Number {
	text := json.Number(n.String())
	return &text
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
