package catalogue

import (
	"context"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands/catalogue"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/projections/periods"
)

type evaluateRequest struct {
	api.Paging
	Body struct {
		PeriodKey string           `json:"periodKey" pattern:"^([0-9]{4}(-[0-9]{2})?|lifetime)$" example:"2026-10"`
		Price     *inlinePrice     `json:"price,omitempty" doc:"A price that is not defined; needs feature."`
		PriceKey  api.CatalogueKey `json:"priceKey,omitempty" doc:"A defined price, instead of price."`
		Version   *int64           `json:"version,omitempty" minimum:"1" nullable:"true" doc:"Its version; left out: the current one."`
		Feature   api.LookupKey    `json:"feature,omitempty"`
		TenantID  string           `json:"tenantId,omitempty" format:"uuid" doc:"Of this tenant only."`
		Position  string           `json:"position,omitempty" doc:"The usage as known at a position of the tenant." example:"17-4711"`
		RebuildID string           `json:"rebuildId,omitempty" format:"uuid" doc:"The figures of a rebuild of usage_aggregates that is READY."`
	} `nameHint:"PriceEvaluation"`
}

// inlinePrice is a price without a key.
type inlinePrice struct {
	Currency    string         `json:"currency" minLength:"3" maxLength:"3" doc:"ISO 4217, in upper case." example:"EUR"`
	Model       string         `json:"model" enum:"flat,per_unit,package,graduated,volume" doc:"The way in which the amount is rated."`
	MicroUnits  *int64         `json:"microUnits,omitempty" minimum:"0" maximum:"9007199254740991" nullable:"true"`
	PackageSize *int64         `json:"packageSize,omitempty" minimum:"1" maximum:"9007199254740991" nullable:"true" doc:"Units in a package."`
	Tiers       []newPriceTier `json:"tiers,omitempty" maxItems:"100" nullable:"false" doc:"Of graduated and volume."`
}

type evaluateAnswer struct {
	Body struct {
		Price      domain.Price             `json:"price" doc:"The price by which the usage is evaluated."`
		Data       []periods.Evaluated      `json:"data" nullable:"false" doc:"By tenant."`
		Totals     *periods.EvaluatedTotals `json:"totals" doc:"Of all pages, on the first one; null on the others, and above 1,000 tenants with usage."`
		NextCursor *string                  `json:"nextCursor" doc:"null on the last page."`
	}
}

func (s *handlers) evaluatePrice(ctx context.Context, in *evaluateRequest) (*evaluateAnswer, error) {
	e, err := s.evaluation(ctx, in)
	if err != nil {
		return nil, err
	}
	l := api.List{"evaluations", e.PeriodKey, e.Version.Key, e.Feature, in.Body.TenantID, in.Body.Position, in.Body.RebuildID}
	_, after, err := l.Open(in.Cursor)
	if err != nil {
		return nil, err
	}
	if after != "" {
		if e.After, err = uuid.Parse(after); err != nil {
			return nil, api.CursorInvalid()
		}
	}
	found, err := s.Reads.Periods.Evaluate(ctx, e)
	if err != nil {
		return nil, err
	}
	answer := new(evaluateAnswer)
	answer.Body.Price, answer.Body.Data, answer.Body.Totals = found.By, found.Data, found.Totals
	if found.Next != uuid.Nil {
		answer.Body.NextCursor = l.Next(0, found.Next.String())
	}
	return answer, nil
}

// evaluation checks a request. A position names events of one tenant.
func (s *handlers) evaluation(ctx context.Context, in *evaluateRequest) (e periods.Evaluation, err error) {
	b := &in.Body
	e = periods.Evaluation{PeriodKey: b.PeriodKey, Feature: string(b.Feature), Limit: in.Limit,
		Version: domain.PriceVersion{Key: string(b.PriceKey)}}
	if refusal := domain.CheckUsagePeriod(b.PeriodKey); refusal != nil {
		return e, refusal
	}
	switch {
	case (b.Price == nil) == (b.PriceKey == ""):
		return e, &domain.Error{Code: "price_invalid", Message: "send price or priceKey, one of them", Pointer: "/price"}
	case b.Price != nil && b.Feature == "":
		return e, &domain.Error{Code: "feature_invalid", Message: "a price that is not defined needs the feature whose usage it charges",
			Pointer: "/feature"}
	case b.Position != "" && b.RebuildID != "":
		return e, &domain.Error{Code: "position_invalid", Message: "send position or rebuildId, not both", Pointer: "/position"}
	case b.Position != "" && b.TenantID == "":
		return e, &domain.Error{Code: "position_invalid", Message: "a position needs a tenantId: each tenant has positions of its own",
			Pointer: "/position"}
	}
	if b.TenantID != "" {
		tenant, err := s.KnownTenant(ctx, b.TenantID)
		if err != nil {
			return e, err
		}
		e.TenantID = tenant.ID
	}
	if b.RebuildID != "" {
		if e.RebuildID, err = api.IDOf(b.RebuildID, "rebuild_not_found"); err != nil {
			return e, err
		}
	}
	if b.Position != "" {
		at, err := events.ParsePosition(b.Position)
		if err != nil || at.Partition != events.PartitionOf(e.TenantID) {
			return e, &domain.Error{Code: "position_invalid", Message: "the position is not in the tenant's log", Pointer: "/position"}
		}
		e.Position = &at
	}
	return e, s.priceOf(ctx, in, &e)
}

// priceOf sets the price of an evaluation.
func (s *handlers) priceOf(ctx context.Context, in *evaluateRequest, e *periods.Evaluation) error {
	if p := in.Body.Price; p != nil {
		inline, err := as[domain.Price](p)
		if err != nil {
			return err
		}
		inline.Key, inline.Name, inline.Version = "inline", "inline", 1
		e.Inline = &inline
		return catalogue.CheckPrice(e.Inline)
	}
	if e.Version.Version = 0; in.Body.Version != nil {
		e.Version.Version = *in.Body.Version
		return nil
	}
	p, err := api.Present(s.Reader.Price(ctx, e.Version.Key))("price_not_found")
	if err == nil {
		e.Version.Version = p.Version
	}
	return err
}
