package http

import (
	"context"
	"net/http"
	"strconv"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/auth"
)

func (s *catalogueHandlers) priceOperations(t *site) {
	const path, one = prefix + "/prices", prefix + "/prices/{priceKey}"
	admins := []string{commands.ScopeAdmin}
	serve(t, operation{method: http.MethodPut, path: one, who: auth.Operator, scopes: admins, also: http.StatusCreated, id: "putPrice", reasoned: true, tag: "Features and plans", summary: "Define a price or change it",
		description: "201 for a new one, 200 for a changed one. Entitlements of plans name prices. A change makes the next version; the same members make none. Versions never change: subscriptions keep the version that was current when their plan was applied."}, s.putPrice)
	serve(t, operation{method: http.MethodGet, path: path, who: auth.Operator, scopes: admins, id: "listPrices", tag: "Features and plans", summary: "List prices", description: "All prices, by key."}, s.listPrices)
	serve(t, operation{method: http.MethodPost, path: path + "/evaluate", who: auth.Operator, scopes: []string{commands.ScopeBilling, commands.ScopeAudit}, id: "evaluatePrice", tag: "Features and plans", summary: "Evaluate a price over recorded usage",
		description: "What the usage of a period costs each tenant by an inline price, or by another version, and the difference to what is charged: over an open or closed period, as of a position, or over a rebuild. Nothing is stored. Each page is one snapshot.",
		problems:    []int{http.StatusNotFound, http.StatusConflict}}, s.evaluatePrice)
	serve(t, operation{method: http.MethodGet, path: one + "/versions", who: auth.Operator, scopes: admins, id: "listPriceVersions", tag: "Features and plans", summary: "List the versions of a price", description: "All versions of a price, the first one first.",
		problems: []int{http.StatusNotFound}}, s.listPriceVersions)
	serve(t, operation{method: http.MethodGet, path: one, who: auth.Operator, scopes: admins, id: "getPrice", tag: "Features and plans", summary: "Read a price", description: "A price by its key.",
		problems: []int{http.StatusNotFound}}, s.getPrice)
}

// PricePath names a price.
type PricePath struct {
	PriceKey catalogueKey `path:"priceKey" doc:"The key of the price."`
}

func (s *catalogueHandlers) prices() defined[domain.Price] {
	key := func(p *domain.Price) string { return p.Key }
	return defined[domain.Price]{commands.EntityPrice, key, s.Catalogue.PutPrice, s.Reader.Price, s.Reader.Prices}
}

type newPriceTier struct {
	UpTo           *int64 `json:"upTo,omitempty" minimum:"1" maximum:"9007199254740991" nullable:"true" doc:"The last unit of the tier; null in the last tier."`
	MicroUnits     int64  `json:"microUnits" minimum:"0" maximum:"9007199254740991" doc:"Of each unit: millionths of the currency's unit."`
	FlatMicroUnits int64  `json:"flatMicroUnits,omitempty" minimum:"0" maximum:"9007199254740991" doc:"Of the tier, once a unit lies in it."`
}

type putPriceRequest struct {
	PricePath
	Idempotent
	Conditional
	Creating
	Body struct {
		Name        string         `json:"name" minLength:"1" maxLength:"200" doc:"The name of the price."`
		Currency    string         `json:"currency" minLength:"3" maxLength:"3" doc:"ISO 4217, in upper case." example:"EUR"`
		Model       string         `json:"model" enum:"flat,per_unit,package,graduated,volume" doc:"The way in which the amount is rated."`
		MicroUnits  *int64         `json:"microUnits,omitempty" minimum:"0" maximum:"9007199254740991" nullable:"true" doc:"Of flat, of a unit, or of a package: millionths of the currency's unit."`
		PackageSize *int64         `json:"packageSize,omitempty" minimum:"1" maximum:"9007199254740991" nullable:"true" doc:"Units in a package; a package that is begun is charged."`
		Tiers       []newPriceTier `json:"tiers,omitempty" maxItems:"100" nullable:"false" doc:"Of graduated and volume: upTo rises, and the last tier has none."`
	} `nameHint:"NewPrice"`
}

func (s *catalogueHandlers) putPrice(ctx context.Context, in *putPriceRequest) (*definedAnswer[domain.Price], error) {
	price, err := as[domain.Price](in.Body)
	if err != nil {
		return nil, err
	}
	price.Key = string(in.PriceKey)
	return s.prices().define(ctx, price)
}

func (s *catalogueHandlers) listPrices(ctx context.Context, in *struct{ Paging }) (*listed[domain.Price], error) {
	return s.prices().page(ctx, in.Paging)
}

func (s *catalogueHandlers) listPriceVersions(ctx context.Context, in *struct {
	PricePath
	Paging
}) (*listed[domain.Price], error) {
	key := string(in.PriceKey)
	if _, err := present(s.Reader.Price(ctx, key))("price_not_found"); err != nil {
		return nil, err
	}
	return listCatalogue(list{"price versions", key}, in.Paging, func(p commands.Page) ([]domain.Price, error) {
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
		return 0, cursorInvalid()
	}
	return n, nil
}

func (s *catalogueHandlers) getPrice(ctx context.Context, in *struct{ PricePath }) (*definedAnswer[domain.Price], error) {
	return s.prices().read(ctx, s, string(in.PriceKey), absent("price_not_found"))
}
