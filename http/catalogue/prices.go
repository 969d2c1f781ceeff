package catalogue

import (
	"context"
	"net/http"
	"strconv"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
)

func (s *handlers) priceOperations(t *api.Site) {
	const path, one = api.Prefix + "/prices", api.Prefix + "/prices/{priceKey}"
	admins := []string{commands.ScopeAdmin}
	api.Serve(t, api.Operation{Method: http.MethodPut, Path: one, Who: auth.Operator, Scopes: admins, Also: http.StatusCreated,
		ID: "putPrice", Reasoned: true, Tag: "Features and plans", Summary: "Define a price or change it",
		Description: "201 for a new one, 200 for a changed one. Entitlements of plans name prices. A change makes the next version; the " +
			"same members make no version. Versions never change: subscriptions keep the version that was current when their plan was applied."},
		s.putPrice)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Operator, Scopes: admins, ID: "listPrices",
		Tag: "Features and plans", Summary: "List prices", Description: "All prices, by key."}, s.listPrices)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: path + "/evaluate", Who: auth.Operator,
		Scopes: []string{commands.ScopeBilling, commands.ScopeAudit}, ID: "evaluatePrice", Tag: "Features and plans",
		Summary: "Evaluate a price over recorded usage",
		Description: "The cost of a period's usage for each tenant by an inline price, or by another version, and the difference to " +
			"the present charge: over an open or closed period, as of a position, or over a rebuild. Nothing is stored. Each page is " +
			"one snapshot.",
		Problems: []int{http.StatusNotFound, http.StatusConflict}}, s.evaluatePrice)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one + "/versions", Who: auth.Operator, Scopes: admins, ID: "listPriceVersions",
		Tag: "Features and plans", Summary: "List the versions of a price", Description: "All versions of a price, the first one first.",
		Problems: []int{http.StatusNotFound}}, s.listPriceVersions)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one, Who: auth.Operator, Scopes: admins, ID: "getPrice",
		Tag: "Features and plans", Summary: "Read a price", Description: "A price by its key.",
		Problems: []int{http.StatusNotFound}}, s.getPrice)
}

// PricePath names a price.
type PricePath struct {
	PriceKey api.CatalogueKey `path:"priceKey" doc:"The key of the price."`
}

func (s *handlers) prices() defined[domain.Price] {
	key := func(p *domain.Price) *string { return &p.Key }
	return defined[domain.Price]{commands.EntityPrice, key, s.Catalogue.PutPrice, s.Reader.Price, s.Reader.Prices}
}

type newPriceTier struct {
	UpTo           *int64 `json:"upTo,omitempty" minimum:"1" maximum:"9007199254740991" nullable:"true"`
	MicroUnits     int64  `json:"microUnits" minimum:"0" maximum:"9007199254740991" doc:"Of each unit: millionths of the currency's unit."`
	FlatMicroUnits int64  `json:"flatMicroUnits,omitempty" minimum:"0" maximum:"9007199254740991" doc:"Of the tier, once a unit lies in it."`
}

type putPriceRequest struct {
	PricePath
	api.Idempotent
	api.Conditional
	api.Creating
	Body struct {
		Name        string         `json:"name" minLength:"1" maxLength:"200" doc:"The name of the price."`
		Currency    string         `json:"currency" minLength:"3" maxLength:"3" doc:"ISO 4217, in upper case." example:"EUR"`
		Model       string         `json:"model" enum:"flat,per_unit,package,graduated,volume" doc:"The way in which the amount is rated."`
		MicroUnits  *int64         `json:"microUnits,omitempty" minimum:"0" maximum:"9007199254740991" nullable:"true"`
		PackageSize *int64         `json:"packageSize,omitempty" minimum:"1" maximum:"9007199254740991" nullable:"true"`
		Tiers       []newPriceTier `json:"tiers,omitempty" maxItems:"100" nullable:"false"`
	} `nameHint:"NewPrice"`
}

func (s *handlers) putPrice(ctx context.Context, in *putPriceRequest) (*definedAnswer[domain.Price], error) {
	return s.prices().define(ctx, string(in.PriceKey), in.Body)
}

func (s *handlers) listPrices(ctx context.Context, in *struct{ api.Paging }) (*api.Listed[domain.Price], error) {
	return s.prices().page(ctx, in.Paging)
}

func (s *handlers) listPriceVersions(ctx context.Context, in *struct {
	PricePath
	api.Paging
}) (*api.Listed[domain.Price], error) {
	key := string(in.PriceKey)
	if _, err := api.Present(s.Reader.Price(ctx, key))("price_not_found"); err != nil {
		return nil, err
	}
	return api.ListCatalogue(api.List{"price versions", key}, in.Paging, func(p commands.Page) ([]domain.Price, error) {
		after, err := versionOf(p.After)
		if err != nil {
			return nil, err
		}
		return s.Reader.PriceVersions(ctx, key, after, p.Limit)
	}, func(p *domain.Price) string { return strconv.FormatInt(p.Version, 10) })
}

// versionOf returns the version that a cursor names, 0 for the first page.
func versionOf(after string) (int64, error) {
	if after == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(after, 10, 64)
	if err != nil {
		return 0, api.CursorInvalid()
	}
	return n, nil
}

func (s *handlers) getPrice(ctx context.Context, in *struct{ PricePath }) (*definedAnswer[domain.Price], error) {
	return s.prices().read(ctx, s, string(in.PriceKey), api.Absent("price_not_found"))
}
