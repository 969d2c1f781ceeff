package catalogue

import (
	"context"
	"regexp"
	"slices"
	"strconv"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
)

// maxUnit bounds the name of a unit, in characters.
const maxUnit = 50

// PutFeature defines a feature or changes its name, unit and grouping. Its type is fixed from
// the start, because plans and verdicts may depend on it.
func (c *Commands) PutFeature(ctx context.Context, req commands.Request, f domain.Feature) (domain.Feature, bool, error) {
	if err := checkFeature(&f); err != nil {
		return f, false, err
	}
	return define(ctx, c, req, events.FeatureDefined, func(tx Tx) (*domain.Feature, error) { return tx.Feature(f.LookupKey) },
		func(tx Tx, old *domain.Feature) (domain.Feature, any, error) {
			defined := events.DefinedFeature{Feature: f}
			switch {
			case old == nil:
			case old.Type != f.Type:
				return f, nil, domain.Refuse("feature_type_fixed", "/type", "the feature is %s and stays so; define another one", old.Type)
			case same(f, *old):
				return f, nil, nil
			case !slices.Equal(old.GroupBy, f.GroupBy):
				since, err := tx.GroupingSince(f.LookupKey, c.now().Add(domain.GroupingDelay))
				if err != nil {
					return f, nil, err
				}
				defined.GroupBySince = &since
			}
			return f, defined, nil
		})
}

func checkFeature(f *domain.Feature) error {
	if !domain.IsLookupKey(f.LookupKey) {
		return domain.Refuse("lookup_key_invalid", "/lookupKey", "a lookup key matches %s", domain.LookupKeyForm)
	}
	if err := checkName(f.Name); err != nil {
		return err
	}
	if !isText(f.Unit, maxUnit) {
		return domain.Refuse("unit_invalid", "/unit", "unit must be at most %d characters of text without control characters", maxUnit)
	}
	if err := commands.OneOf(f.Type, "type_invalid", "/type", domain.FeatureBoolean, domain.FeatureQuota,
		domain.FeatureMetered); err != nil {
		return err
	}
	if f.BillingEvent != "" && !billingEventForm.MatchString(f.BillingEvent) {
		return domain.Refuse("billing_event_invalid", "/billingEvent",
			"billingEvent must be 1 to %d printable ASCII characters without space", maxBillingEvent)
	}
	if f.BillingEvent != "" && f.Type == domain.FeatureBoolean {
		return domain.Refuse("billing_event_invalid", "/billingEvent", "a BOOLEAN feature has no usage to bill")
	}
	return checkGroupBy(f)
}

// maxBillingEvent bounds the name of a meter event, as Stripe does.
const maxBillingEvent = 100

var billingEventForm = regexp.MustCompile(`^[!-~]{1,100}$`)

// groupKeyForm is the form of a metadata key by which usage is grouped.
var groupKeyForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)

func checkGroupBy(f *domain.Feature) error {
	const code = "group_by_invalid"
	if len(f.GroupBy) > domain.MaxGroupKeys {
		return domain.Refuse(code, "/groupBy", "groupBy has %d keys: at most %d are possible", len(f.GroupBy), domain.MaxGroupKeys)
	}
	if len(f.GroupBy) > 0 && f.Type == domain.FeatureBoolean {
		return domain.Refuse(code, "/groupBy", "a BOOLEAN feature has no usage to group")
	}
	for i, key := range f.GroupBy {
		at := "/groupBy/" + strconv.Itoa(i)
		if !groupKeyForm.MatchString(key) {
			return domain.Refuse(code, at, "a metadata key to group by matches %s", groupKeyForm)
		}
		if slices.Contains(f.GroupBy[:i], key) {
			return domain.Refuse(code, at, "the metadata key %s is listed twice", key)
		}
	}
	return nil
}
