package entitlements

import (
	"context"
	"encoding/json"
	"math"
	"math/big"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/projections/query"
)

// $2 and $3 name the month and the year of now: the period of each grant that
// resets. A tenant without grants gets one row without a feature.
const readGranted = `
SELECT EXISTS (SELECT FROM subscriptions s WHERE s.tenant_id = $1 AND s.status IN ('ACTIVE', 'TRIALING')),
       g.feature, g.type, g."limit", g.limit_behavior, g.reset_period, coalesce(u.used, 0)::text, coalesce(u.held, 0)::text
FROM (SELECT p.generation FROM projection_pointers p
      WHERE p.live AND p.projection = 'entitlement_reads' AND p.tenant_id IN ($1, '00000000-0000-0000-0000-000000000000')
      ORDER BY p.tenant_id DESC LIMIT 1) live
LEFT JOIN entitlement_grants g ON g.generation = live.generation AND g.tenant_id = $1
LEFT JOIN LATERAL (
  SELECT u.used, u.held FROM entitlement_usage u
  WHERE u.generation = live.generation AND u.tenant_id = $1 AND u.feature = g.feature
    AND u.period_key = CASE g.reset_period WHEN 'MONTHLY' THEN $2::text WHEN 'ANNUALLY' THEN $3::text ELSE 'lifetime' END
  LIMIT 1) u ON true
ORDER BY g.feature`

// granted holds a tenant's grants and their usage, from one snapshot. It is immutable.
type granted struct {
	tenant            uuid.UUID
	stands            query.Standing
	asOf              events.Position
	from, month, year time.Time // it holds in [from, month); the year ends at year
	subscribed        bool
	grants            []grant // by feature

	// For cached entries: whether it was used; when the feed found it outdated.
	asked     atomic.Bool
	overtaken atomicTime
}

// grant is the state of a feature. Left is the remainder of a HARD limit, capped to
// 64 bits.
type grant struct {
	feature, kind, behavior, reset string
	limit                          *int64 // nil: unlimited
	used, held, remaining          json.Number
	left                           int64
}

// granted returns a tenant's grants and the position at which they are true.
func (r *Reads) granted(ctx context.Context, v query.Viewer, tenant uuid.UUID, w query.Wait, now time.Time) (*granted, events.Position,
	error) {
	if r.Grants != nil && (v.Operator || v.TenantID == tenant) {
		return r.cachedGrants(ctx, v, tenant, w, now)
	}
	if err := r.AwaitPassed(ctx, v, query.EntitlementsSource(), tenant, w); err != nil {
		return nil, events.Position{}, err
	}
	g, err := r.readGranted(ctx, v, tenant, now)
	if err != nil {
		return nil, events.Position{}, err
	}
	return g, g.stands.AsOf(tenant, w), nil
}

func (r *Reads) readGranted(ctx context.Context, v query.Viewer, tenant uuid.UUID, now time.Time) (*granted, error) {
	month, year := domain.PeriodKey(domain.ResetMonthly, now), domain.PeriodKey(domain.ResetAnnually, now)
	g := &granted{tenant: tenant}
	g.from, g.month, _ = domain.PeriodBounds(month)
	_, g.year, _ = domain.PeriodBounds(year)
	read := query.New(readGranted, []any{tenant, month, year}, query.Each(func(rows pgx.Rows) error {
		var feature, kind, behavior, reset *string
		var limit *int64
		var used, held string
		if err := rows.Scan(&g.subscribed, &feature, &kind, &limit, &behavior, &reset, &used, &held); err != nil || feature == nil {
			return err
		}
		g.grants = append(g.grants, newGrant(grant{feature: *feature, kind: *kind, behavior: *behavior, reset: *reset, limit: limit}, used,
			held))
		return nil
	}))
	if err := r.Snapshot(ctx, v, query.ReadStanding(query.EntitlementsSource(), tenant, &g.stands), read); err != nil {
		return nil, err
	}
	g.asOf = g.stands.AsOf(tenant, query.Wait{})
	g.grants = slices.Clip(g.grants)
	return g, nil
}

// newGrant completes a grant by the used and the held amount, exact integers.
func newGrant(g grant, usedText, heldText string) grant {
	g.kind, g.behavior, g.reset = word(g.kind), word(g.behavior), word(g.reset)
	g.used, g.held = json.Number(usedText), json.Number(heldText)
	if g.limit == nil {
		return g
	}
	used, ok := new(big.Int).SetString(usedText, 10)
	held, too := new(big.Int).SetString(heldText, 10)
	if !ok || !too {
		panic("projections: the database gave no integer for a sum of integers: " + usedText + ", " + heldText)
	}
	remaining := used.Sub(big.NewInt(*g.limit), used)
	remaining.Sub(remaining, held)
	switch {
	case remaining.IsInt64():
		g.left = remaining.Int64()
	case remaining.Sign() < 0:
		g.left = math.MinInt64
	default:
		g.left = math.MaxInt64
	}
	if remaining.Sign() < 0 { // recorded usage may exceed the limit, e.g. a lowered one
		remaining.SetInt64(0)
	}
	g.remaining = json.Number(remaining.String())
	return g
}

// word returns the constant equal to a word of the catalogue, so that cached grants do
// not each hold a copy of it.
func word(w string) string {
	for _, known := range [...]string{domain.FeatureBoolean, domain.FeatureQuota, domain.FeatureMetered,
		domain.LimitHard, domain.LimitSoft, domain.ResetMonthly, domain.ResetAnnually, domain.ResetNever} {
		if w == known {
			return known
		}
	}
	return w
}

// holds reports whether the usage is of the current periods.
func (g *granted) holds(now time.Time) bool { return !now.Before(g.from) && now.Before(g.month) }

func (g *granted) find(feature string) *grant {
	i, found := slices.BinarySearchFunc(g.grants, feature, func(g grant, f string) int { return strings.Compare(g.feature, f) })
	if !found {
		return nil
	}
	return &g.grants[i]
}

// check answers whether an amount may be used now: only a HARD limit of a QUOTA feature denies, as in domain.Ledger. Its result points into
// immutable data.
func (g *granted) check(of *grant, amount int64) Check {
	c := Check{Allowed: true, Feature: of.feature, Type: of.kind}
	if c.Type == domain.FeatureBoolean {
		return c
	}
	c.LimitBehavior, c.Limit, c.Used, c.Held = of.behavior, of.limit, &of.used, &of.held
	switch of.reset {
	case domain.ResetMonthly:
		c.ResetAt = &g.month
	case domain.ResetAnnually:
		c.ResetAt = &g.year
	}
	if of.limit == nil {
		return c
	}
	c.Remaining = &of.remaining
	if c.Type == domain.FeatureQuota && c.LimitBehavior == domain.LimitHard && of.left < amount {
		c.Allowed, c.Reason = false, ReasonQuotaExceeded
	}
	return c
}

const readKnown = `SELECT lookup_key FROM features WHERE lookup_key = ANY ($1::text[])`

// knownFeatures returns the features of the catalogue; those of the cache, if there is one, as its feed has last confirmed.
func (r *Reads) knownFeatures(ctx context.Context, v query.Viewer, features []string) (map[string]bool, error) {
	if r.Grants != nil {
		return r.Grants.knownFeatures(ctx)
	}
	return r.storedFeatures(ctx, v, features)
}

// storedFeatures returns those of the features that the catalogue has now.
func (r *Reads) storedFeatures(ctx context.Context, v query.Viewer, features []string) (map[string]bool, error) {
	asked := make([]string, 0, len(features))
	for _, f := range features {
		if query.Storable(f) {
			asked = append(asked, f)
		}
	}
	known := make(map[string]bool)
	err := r.Snapshot(ctx, v, query.New(readKnown, []any{asked}, query.Each(func(rows pgx.Rows) error {
		var key string
		err := rows.Scan(&key)
		known[key] = true
		return err
	})))
	return known, err
}
