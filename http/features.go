package http

import (
	"context"
	"net/http"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/auth"
)

func (s *catalogueHandlers) featureOperations(t *site) {
	const path, one = prefix + "/features", prefix + "/features/{lookupKey}"
	admins := []string{commands.ScopeAdmin}
	serve(t, operation{method: http.MethodPut, path: one, who: auth.Operator, scopes: admins, also: http.StatusCreated, id: "putFeature", reasoned: true, tag: "Features and plans", summary: "Define a feature or change it",
		description: "201 for a new one, 200 for a changed one. The type stays. New groupBy keys of a feature that existed apply to usage recorded a minute after the change; those of a new feature to all its usage."}, s.putFeature)
	serve(t, operation{method: http.MethodGet, path: path, who: auth.Operator, scopes: admins, id: "listFeatures", tag: "Features and plans", summary: "List features", description: "All features of the catalogue, by lookup key."}, s.listFeatures)
	serve(t, operation{method: http.MethodGet, path: one, who: auth.Operator, scopes: admins, id: "getFeature", tag: "Features and plans", summary: "Read a feature", description: "A feature by its lookup key.",
		problems: []int{http.StatusNotFound}}, s.getFeature)
}

type FeaturePath struct {
	LookupKey lookupKey `path:"lookupKey"`
}

func (s *catalogueHandlers) features() defined[domain.Feature] {
	key := func(f *domain.Feature) string { return f.LookupKey }
	return defined[domain.Feature]{commands.EntityFeature, key, s.Catalogue.PutFeature, s.Reader.Feature, s.Reader.Features}
}

type putFeatureRequest struct {
	FeaturePath
	Idempotent
	Conditional
	Creating
	Body struct {
		Name string `json:"name" minLength:"1" maxLength:"200"`
		Type string `json:"type" enum:"BOOLEAN,QUOTA,METERED" doc:"BOOLEAN (granted or not), QUOTA (used up to a limit) or METERED (billed by use)."`
		Unit string `json:"unit,omitempty" maxLength:"50"`

		GroupBy []string `json:"groupBy,omitempty" nullable:"false" maxItems:"2" doc:"Metadata keys by which GET /usage groups the feature's usage; at most two. Usage recorded before a key was declared is not grouped by it." example:"[\"region\",\"model\"]"`

		BillingEvent string `json:"billingEvent,omitempty" maxLength:"100" doc:"Event name of the meter that counts the feature at the billing provider; not given: the lookup key. Pushes that are stored keep their name." example:"api_calls"`
	} `nameHint:"NewFeature"`
}

func (s *catalogueHandlers) putFeature(ctx context.Context, in *putFeatureRequest) (*definedAnswer[domain.Feature], error) {
	feature, err := as[domain.Feature](in.Body)
	if err != nil {
		return nil, err
	}
	feature.LookupKey = string(in.LookupKey)
	answer, err := s.features().define(ctx, feature)
	if err == nil {
		s.confirm(ctx)
	}
	return answer, err
}

func (s *catalogueHandlers) listFeatures(ctx context.Context, in *struct{ Paging }) (*listed[domain.Feature], error) {
	return s.features().page(ctx, in.Paging)
}

func (s *catalogueHandlers) getFeature(ctx context.Context, in *struct{ FeaturePath }) (*definedAnswer[domain.Feature], error) {
	return s.features().read(ctx, s, string(in.LookupKey), absent("feature_not_found"))
}
