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
	of, known := x.accounts.grants[grantKey{g.SubscriptionID, s.Feature}]
	x.quotaGrants.expect(known && of.Type == g.FeatureType && sameLimit(of.Limit, g.Limit), "%s is granted by a snapshot that the log does not have: %s", x.at(r.position), s.Admitted)
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

func sameLimit(a, b *int64) bool { return a == b || a != nil && b != nil && *a == *b }
