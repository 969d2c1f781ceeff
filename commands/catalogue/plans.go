package catalogue

import (
	"context"
	"fmt"
	"slices"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

const (
	// maxLimit is the greatest integer that every JSON implementation keeps exactly.
	maxLimit = 1<<53 - 1
	// maxEntitlements keeps a snapshot small enough for the history of each verdict.
	maxEntitlements = 200
)

// PutPlan defines or changes a plan. Existing subscriptions keep their snapshots.
func (c *Commands) PutPlan(ctx context.Context, req commands.Request, p domain.Plan) (domain.Plan, bool, error) {
	if !domain.IsKey(p.Key) {
		return p, false, domain.Refuse("plan_key_invalid", "/key", "a plan's key matches %s", domain.KeyForm)
	}
	if err := checkName(p.Name); err != nil {
		return p, false, err
	}
	if len(p.Entitlements) > maxEntitlements {
		return p, false, domain.Refuse("entitlements_invalid", "/entitlements", "a plan holds at most %d entitlements", maxEntitlements)
	}
	return define(ctx, c, req, events.PlanDefined, func(tx Tx) (*domain.Plan, error) { return tx.Plan(p.Key) },
		func(tx Tx, _ *domain.Plan) (domain.Plan, any, error) {
			return p, p, checkEntitlements(tx, p.Entitlements)
		})
}

// checkEntitlements checks entitlements and sets the defaults: SOFT, MONTHLY, record.
func checkEntitlements(tx Tx, list []domain.Entitlement) error {
	var seen []string
	for i := range list {
		e := &list[i]
		at := fmt.Sprintf("/entitlements/%d", i)
		f, err := tx.Feature(e.Feature)
		if err != nil {
			return err
		}
		if f == nil || slices.Contains(seen, e.Feature) {
			return domain.Refuse("entitlements_invalid", at+"/feature", "each entitlement names a feature that is defined, once")
		}
		seen = append(seen, e.Feature)
		if err := checkEntitlement(e, f, at); err != nil {
			return err
		}
		if err := checkPriceOf(tx, e, f, at); err != nil {
			return err
		}
	}
	return nil
}

// checkPriceOf requires that the price which an entitlement names is defined, and that the feature counts an amount.
func checkPriceOf(tx Tx, e *domain.Entitlement, f *domain.Feature, at string) error {
	switch {
	case e.Price == "" && e.ChargeTrial:
		return domain.Refuse("charge_trial_invalid", at+"/chargeTrial", "chargeTrial needs a price")
	case e.Price == "":
		return nil
	case !domain.IsKey(e.Price):
		return domain.Refuse("price_invalid", at+"/price", "the key of a price matches %s", domain.KeyForm)
	case f.Type == domain.FeatureBoolean:
		return domain.Refuse("price_invalid", at+"/price", "a BOOLEAN feature counts no amount: it has no price")
	}
	known, err := tx.Price(e.Price)
	if err == nil && known == nil {
		err = domain.Refuse("price_not_found", at+"/price", "no such price; define it with PUT /prices/{key}")
	}
	return err
}

// checkEntitlement accepts the same members for each type of feature. For a BOOLEAN
// feature they have no meaning: they are stored as sent, without defaults.
func checkEntitlement(e *domain.Entitlement, f *domain.Feature, at string) error {
	if f.Type == domain.FeatureBoolean && e.Limit != nil {
		return domain.Refuse("entitlements_invalid", at+"/limit", "a BOOLEAN feature is granted or not: its limit is null, or left out")
	}
	if e.Limit != nil && (*e.Limit < 0 || *e.Limit > maxLimit) {
		return domain.Refuse("limit_invalid", at+"/limit", "limit must be null or 0 to %d", int64(maxLimit))
	}
	whole := *e
	byDefault(&whole.LimitBehavior, domain.LimitSoft)
	byDefault(&whole.ResetPeriod, domain.ResetMonthly)
	byDefault(&whole.OnIngest, domain.OnIngestRecord)
	if f.Type != domain.FeatureBoolean {
		*e = whole
	}
	if err := commands.OneOf(whole.LimitBehavior, "entitlements_invalid", at+"/limitBehavior", domain.LimitHard,
		domain.LimitSoft); err != nil {
		return err
	}
	if err := commands.OneOf(whole.ResetPeriod, "entitlements_invalid", at+"/resetPeriod", domain.ResetMonthly, domain.ResetAnnually,
		domain.ResetNever); err != nil {
		return err
	}
	if whole.OnIngest == domain.OnIngestEnforce && (f.Type != domain.FeatureQuota || whole.LimitBehavior != domain.LimitHard ||
		whole.Limit == nil) {
		return domain.Refuse("entitlements_invalid", at+"/onIngest",
			"enforce needs a QUOTA feature with a limit and limitBehavior HARD; record counts usage above a limit, too")
	}
	return commands.OneOf(whole.OnIngest, "entitlements_invalid", at+"/onIngest", domain.OnIngestRecord, domain.OnIngestEnforce)
}

func byDefault(field *string, value string) {
	if *field == "" {
		*field = value
	}
}
