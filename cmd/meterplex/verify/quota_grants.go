package verify

import (
	"encoding/json"
	"math/big"

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
}

// admission has the members of a grant that the check reads.
type admission struct {
	By                     string
	SubscriptionID         uuid.UUID
	FeatureType, PeriodKey string
	Limit                  *int64
	Used, Held             *json.Number
}

func admissionOf(s *content) (a admission, err error) {
	err = json.Unmarshal(s.Admitted, &a)
	return a, err
}

// addGrant checks a grant against its account and the snapshot of its subscription.
func (x *pass) addGrant(r *row, s *content) {
	x.quotaGrants.n++
	g, err := admissionOf(s)
	if err != nil {
		x.quotaGrants.fault("%s has no readable admission: %v", x.at(r.position), err)
		return
	}
	of, known := x.accounts.granting(r.tenant, s.Feature, &g)
	x.quotaGrants.expect(known, "%s is granted by a snapshot that the log does not have: %s", x.at(r.position), s.Admitted)
	if g.FeatureType != "QUOTA" {
		x.quotaGrants.expect(g.Used == nil && g.Held == nil, "%s names an account of a %s feature", x.at(r.position), g.FeatureType)
		return
	}
	used := x.accounts.add(figure{tenant: r.tenant, feature: s.Feature, period: g.PeriodKey}, s.Amount.String(), 1)
	if g.Used == nil || g.Held == nil || g.Used.String() != used.String() || g.Held.String() != "0" {
		x.quotaGrants.fault("%s records %s as its account, the log has %s used", x.at(r.position), s.Admitted, used)
		return
	}
	if known && of.LimitBehavior == "HARD" && of.Limit != nil {
		x.quotaGrants.expect(used.Cmp(big.NewInt(*of.Limit)) <= 0, "%s is granted beyond the limit %d: %s are used", x.at(r.position), *of.Limit, used)
	}
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

// granting returns the entitlement that granted usage: that of the present subscription, which every consumption names. Enforced
// usage may name an earlier one: without a present limit of its account, any snapshot of that one granted it.
func (a *accounts) granting(tenant uuid.UUID, feature string, g *admission) (of entitlement, ok bool) {
	now, own := a.present[tenant], a.grants[grantKey{g.SubscriptionID, feature}]
	if g.By == "consume" && now.subscription != g.SubscriptionID || len(own) == 0 {
		return of, false
	}
	if of, ok = now.of[feature]; ok && of.resets(g.PeriodKey) {
		return of, of.grants(g)
	}
	for _, of := range own {
		if g.By != "consume" && of.resets(g.PeriodKey) && of.grants(g) {
			return of, true
		}
	}
	return entitlement{}, false
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

func sameLimit(a, b *int64) bool { return a == b || a != nil && b != nil && *a == *b }
