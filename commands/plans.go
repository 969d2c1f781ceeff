package commands

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"unicode/utf8"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

var (
	// A lookup key is the name of a feature in events.
	lookupKeyForm = regexp.MustCompile(`^[a-z][a-z0-9_.-]{0,63}$`)
	planKeyForm   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
)

const (
	// maxLimit is the greatest integer that every JSON implementation keeps exactly.
	maxLimit = 1<<53 - 1
	// maxEntitlements keeps a snapshot small enough for the history of each verdict.
	maxEntitlements = 200
	maxUnit         = 50
)

// PutFeature defines a feature or changes its name and unit. Its type is fixed from
// the start, because plans and verdicts may depend on it.
func (c *Catalogue) PutFeature(ctx context.Context, by Caller, f domain.Feature) (domain.Feature, bool, error) {
	if err := checkFeature(&f); err != nil {
		return f, false, err
	}
	created := false
	f, err := changeOne(ctx, c.Store, events.Platform, by, Once{}, func(tx Tx) (domain.Feature, error) {
		old, err := tx.Feature(f.LookupKey)
		if err != nil {
			return f, err
		}
		if created = old == nil; !created {
			if old.Type != f.Type {
				return f, refuse("feature_type_fixed", "/type", "the feature is %s and stays so; define another one", old.Type)
			}
			if *old == f {
				return f, nil
			}
		}
		if err := tx.SaveFeature(f); err != nil {
			return f, err
		}
		_, err = c.record(tx, by, Once{}, events.Platform, events.FeatureDefined, events.Feature(f))
		return f, err
	})
	return f, created, err
}

func checkFeature(f *domain.Feature) error {
	if !lookupKeyForm.MatchString(f.LookupKey) {
		return refuse("lookup_key_invalid", "/lookupKey", "a lookup key matches %s", lookupKeyForm)
	}
	if err := checkName(f.Name); err != nil {
		return err
	}
	if utf8.RuneCountInString(f.Unit) > maxUnit {
		return refuse("unit_invalid", "/unit", "unit must be at most %d characters", maxUnit)
	}
	return oneOf(f.Type, "type_invalid", "/type", domain.FeatureBoolean, domain.FeatureQuota, domain.FeatureMetered)
}

// PutPlan defines or changes a plan. Existing subscriptions keep their snapshots.
func (c *Catalogue) PutPlan(ctx context.Context, by Caller, p domain.Plan) (domain.Plan, bool, error) {
	if !planKeyForm.MatchString(p.Key) {
		return p, false, refuse("plan_key_invalid", "/key", "a plan's key matches %s", planKeyForm)
	}
	if err := checkName(p.Name); err != nil {
		return p, false, err
	}
	if len(p.Entitlements) > maxEntitlements {
		return p, false, refuse("entitlements_invalid", "/entitlements", "a plan holds at most %d entitlements", maxEntitlements)
	}
	created := false
	p, err := changeOne(ctx, c.Store, events.Platform, by, Once{}, func(tx Tx) (domain.Plan, error) {
		old, err := tx.Plan(p.Key)
		if err != nil {
			return p, err
		}
		created = old == nil
		if err := checkEntitlements(tx, p.Entitlements); err != nil {
			return p, err
		}
		if err := tx.SavePlan(p); err != nil {
			return p, err
		}
		_, err = c.record(tx, by, Once{}, events.Platform, events.PlanDefined, p.Payload())
		return p, err
	})
	return p, created, err
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
			return refuse("entitlements_invalid", at+"/feature", "each entitlement names a feature that is defined, once")
		}
		seen = append(seen, e.Feature)
		if err := checkEntitlement(e, f, at); err != nil {
			return err
		}
	}
	return nil
}

// checkEntitlement accepts the same members for each type of feature. For a BOOLEAN
// feature they have no meaning: they are stored as sent, without defaults.
func checkEntitlement(e *domain.Entitlement, f *domain.Feature, at string) error {
	if f.Type == domain.FeatureBoolean && e.Limit != nil {
		return refuse("entitlements_invalid", at+"/limit", "a BOOLEAN feature is granted or not: its limit is null, or left out")
	}
	if e.Limit != nil && (*e.Limit < 0 || *e.Limit > maxLimit) {
		return refuse("limit_invalid", at+"/limit", "limit must be null or 0 to %d", int64(maxLimit))
	}
	whole := *e
	byDefault(&whole.LimitBehavior, domain.LimitSoft)
	byDefault(&whole.ResetPeriod, domain.ResetMonthly)
	byDefault(&whole.OnIngest, domain.OnIngestRecord)
	if f.Type != domain.FeatureBoolean {
		*e = whole
	}
	if err := oneOf(whole.LimitBehavior, "entitlements_invalid", at+"/limitBehavior", domain.LimitHard, domain.LimitSoft); err != nil {
		return err
	}
	if err := oneOf(whole.ResetPeriod, "entitlements_invalid", at+"/resetPeriod", domain.ResetMonthly, domain.ResetAnnually, domain.ResetNever); err != nil {
		return err
	}
	if whole.OnIngest == domain.OnIngestEnforce {
		return refuse("entitlements_invalid", at+"/onIngest", "enforce is not taken yet; record is, which counts usage above a limit, too")
	}
	return oneOf(whole.OnIngest, "entitlements_invalid", at+"/onIngest", domain.OnIngestRecord)
}

func byDefault(field *string, value string) {
	if *field == "" {
		*field = value
	}
}
