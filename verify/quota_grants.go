package verify

import (
	"encoding/json"
	"math/big"
	"time"

	"github.com/google/uuid"
)

// grantKey names the grant of a feature in a subscription.
type grantKey struct {
	subscription uuid.UUID
	feature      string
}

// entitlement is a grant in the snapshot of a subscription.
type entitlement struct {
	Feature       string `json:"feature"`
	Type          string `json:"type"`
	Limit         *int64 `json:"limit"`
	LimitBehavior string `json:"limitBehavior"`
	ResetPeriod   string `json:"resetPeriod"`
	OnIngest      string `json:"onIngest"`
}

// admission has the members of a grant that the check reads. Those of a reservation have the same names.
type admission struct {
	By                     string
	SubscriptionID         uuid.UUID
	FeatureType, PeriodKey string
	Limit                  *int64
	Used, Held             *json.Number
	// The members below are of commits.
	ReservationID string
	HeldAmount    int64
	Overage       string
}

const byCommit, byEnforce, byHold = "commit", "enforce", "hold"

func admissionOf(s *content) (a admission, err error) {
	err = json.Unmarshal(s.Admitted, &a)
	return a, err
}

// addGrant checks admitted usage against its account. Usage of a reservation is decided by the reservation, and may be above
// the limit; other usage is compared with the limit in the snapshot of its subscription.
func (x *pass) addGrant(r *row, s *content) {
	x.quotaGrants.n++
	g, err := admissionOf(s)
	if err != nil {
		x.quotaGrants.fault("%s has no readable admission: %v", x.at(r.position), err)
		return
	}
	of := figure{tenant: r.tenant, feature: s.Feature, period: g.PeriodKey}
	if g.By == byCommit {
		x.commit(r, s, &g)
		if g.FeatureType == "QUOTA" {
			x.accounts.addHeld(of, -g.HeldAmount)
		}
	}
	if g.FeatureType == "QUOTA" {
		x.accounts.addUsed(of, s.Amount.String(), 1)
	}
	if x.recordsAccount(r, of, &g) && g.By != byCommit {
		x.checkLimit(r, of, &g)
	} else if g.By != byCommit {
		x.checkGranted(r, of, &g)
	}
}

// recordsAccount checks that an event records the account after it.
func (x *pass) recordsAccount(r *row, of figure, g *admission) bool {
	if g.FeatureType != "QUOTA" {
		x.quotaGrants.expect(g.Used == nil && g.Held == nil, "%s names an account of a %s feature", x.at(r.position), g.FeatureType)
		return false
	}
	sum := x.accounts.sum(of)
	if g.Used == nil || g.Held == nil || g.Used.String() != sum.used.String() || g.Held.String() != sum.held.String() {
		x.quotaGrants.fault("%s records %s used and %s held of %s, the log has %s and %s", x.at(r.position), numberOf(g.Used),
			numberOf(g.Held), of, &sum.used, &sum.held)
		return false
	}
	return true
}

func numberOf(n *json.Number) string {
	if n == nil {
		return "nothing"
	}
	return n.String()
}

// checkGranted checks that an amount is granted by a snapshot in the log, which it returns.
func (x *pass) checkGranted(r *row, f figure, g *admission) (of entitlement, ok bool) {
	of, ok = x.accounts.granting(r.tenant, f.feature, g)
	x.quotaGrants.expect(ok, "%s is granted by a snapshot that the log does not have: subscription %s, limit %s", x.at(r.position),
		g.SubscriptionID, limitOf(g.Limit))
	return of, ok
}

// checkLimit checks that an amount was granted by a limit that allowed it.
func (x *pass) checkLimit(r *row, f figure, g *admission) {
	of, ok := x.checkGranted(r, f, g)
	if !ok || of.LimitBehavior != "HARD" || of.Limit == nil || g.By == byEnforce && of.OnIngest != "enforce" {
		return
	}
	sum := x.accounts.sum(f)
	all := new(big.Int).Add(&sum.used, &sum.held)
	x.quotaGrants.expect(all.Cmp(big.NewInt(*of.Limit)) <= 0, "%s is granted beyond the limit %d: %s are used and %s held",
		x.at(r.position), *of.Limit, &sum.used, &sum.held)
}

func limitOf(limit *int64) string {
	if limit == nil {
		return "none"
	}
	return big.NewInt(*limit).String()
}

// snapshot is a subscription with its entitlements by feature.
type snapshot struct {
	subscription uuid.UUID
	of           map[string]entitlement
}

// addSnapshot notes the entitlements of a subscription, and whether it is the tenant's present one.
func (a *accounts) addSnapshot(tenant uuid.UUID, s *content) {
	var list []entitlement
	if json.Unmarshal(s.Entitlements, &list) != nil {
		return
	}
	now := snapshot{s.ID, map[string]entitlement{}}
	for i := len(list) - 1; i >= 0; i-- { // of two the first one counts
		now.of[list[i].Feature] = list[i]
	}
	for feature, e := range now.of {
		key := grantKey{s.ID, feature}
		a.grants[key] = append(a.grants[key], e)
	}
	switch {
	case s.Status == "ACTIVE" || s.Status == "TRIALING":
		a.present[tenant] = now
	case a.present[tenant].subscription == s.ID:
		delete(a.present, tenant)
	}
}

// granting returns the entitlement that granted an amount: that of the present subscription, which every consumption and hold names.
// Enforced usage may name an earlier one: without a present limit of its account, any snapshot of that one granted it, if possible one that
// enforces no limit.
func (a *accounts) granting(tenant uuid.UUID, feature string, g *admission) (of entitlement, ok bool) {
	now, own := a.present[tenant], a.grants[grantKey{g.SubscriptionID, feature}]
	if g.By != byEnforce && now.subscription != g.SubscriptionID || len(own) == 0 {
		return of, false
	}
	if of, ok = now.of[feature]; ok && of.resets(g.PeriodKey) {
		return of, of.grants(g)
	}
	of, ok = entitlement{}, false
	for _, e := range own {
		if g.By == byEnforce && e.resets(g.PeriodKey) && e.grants(g) && (!ok || of.OnIngest == "enforce") {
			of, ok = e, true
		}
	}
	return of, ok
}

// limitInForce returns the limit that an event about a reservation records: the present one of its account, or that of its grant if
// no present grant has this account.
func (a *accounts) limitInForce(tenant uuid.UUID, now *reservation, granted *int64) *int64 {
	if of, ok := a.present[tenant].of[now.feature]; ok && of.Type != "BOOLEAN" && of.resets(now.period) {
		return of.Limit
	}
	return granted
}

func (e *entitlement) grants(g *admission) bool {
	return e.Type == g.FeatureType && sameLimit(e.Limit, g.Limit)
}

// resets reports whether a period is one of the entitlement's reset period.
func (e *entitlement) resets(period string) bool {
	switch e.ResetPeriod {
	case "MONTHLY":
		return len(period) == len("2026-05")
	case "ANNUALLY":
		return len(period) == len("2026")
	}
	return period == "lifetime"
}

// periodAt returns the period of the entitlement at a time.
func (e *entitlement) periodAt(at time.Time) string {
	switch e.ResetPeriod {
	case "MONTHLY":
		return at.Format("2006-01")
	case "ANNUALLY":
		return at.Format("2006")
	}
	return "lifetime"
}

func sameLimit(a, b *int64) bool { return a == b || a != nil && b != nil && *a == *b }
