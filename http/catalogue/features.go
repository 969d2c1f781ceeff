// Package catalogue answers the operations of features, plans and prices.
package catalogue

import (
	"context"
	"net/http"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
)

func (s *handlers) featureOperations(t *api.Site) {
	const path, one = api.Prefix + "/features", api.Prefix + "/features/{lookupKey}"
	admins := []string{commands.ScopeAdmin}
	api.Serve(t, api.Operation{Method: http.MethodPut, Path: one, Who: auth.Operator, Scopes: admins, Also: http.StatusCreated,
		ID: "putFeature", Reasoned: true, Tag: "Features and plans", Summary: "Define a feature or change it",
		Description: "201 for a new one, 200 for a changed one. The type stays. New groupBy keys of a feature that existed apply to " +
			"usage recorded a minute after the change; those of a new feature to all its usage."}, s.putFeature)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Operator, Scopes: admins, ID: "listFeatures",
		Tag: "Features and plans", Summary: "List features", Description: "All features of the catalogue, by lookup key."}, s.listFeatures)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one, Who: auth.Operator, Scopes: admins, ID: "getFeature",
		Tag: "Features and plans", Summary: "Read a feature", Description: "A feature by its lookup key.",
		Problems: []int{http.StatusNotFound}}, s.getFeature)
}

type FeaturePath struct {
	LookupKey api.LookupKey `path:"lookupKey"`
}

func (s *handlers) features() defined[domain.Feature] {
	key := func(f *domain.Feature) *string { return &f.LookupKey }
	return defined[domain.Feature]{commands.EntityFeature, key, s.Catalogue.PutFeature, s.Reader.Feature, s.Reader.Features}
}

type putFeatureRequest struct {
	FeaturePath
	api.Idempotent
	api.Conditional
	api.Creating
	Body struct {
		Name string `json:"name" minLength:"1" maxLength:"200"`
		Type string `json:"type" enum:"BOOLEAN,QUOTA,METERED" doc:"BOOLEAN (granted or not), QUOTA (used up to a limit) or METERED (billed by use)."`
		Unit string `json:"unit,omitempty" maxLength:"50"`

		GroupBy []string `json:"groupBy,omitempty" nullable:"false" maxItems:"2" doc:"Metadata keys by which GET /usage groups the feature's usage; at most two. Usage recorded before a key was declared is not grouped by it." example:"[\"region\",\"model\"]"`

		BillingEvent string `json:"billingEvent,omitempty" maxLength:"100" doc:"Event name of the meter that counts the feature at the billing provider; not given: the lookup key. Stripe deliveries that are stored keep their name." example:"api_calls"`
	} `nameHint:"NewFeature"`
}

func (s *handlers) putFeature(ctx context.Context, in *putFeatureRequest) (*definedAnswer[domain.Feature], error) {
	answer, err := s.features().define(ctx, string(in.LookupKey), in.Body)
	if err == nil {
		s.Confirm(ctx)
	}
	return answer, err
}

func (s *handlers) listFeatures(ctx context.Context, in *struct{ api.Paging }) (*api.Listed[domain.Feature], error) {
	return s.features().page(ctx, in.Paging)
}

func (s *handlers) getFeature(ctx context.Context, in *struct{ FeaturePath }) (*definedAnswer[domain.Feature], error) {
	return s.features().read(ctx, s, string(in.LookupKey), api.Absent("feature_not_found"))
}
