package usage

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

type aggregatesRequest struct {
	api.Paging
	api.Freshness
	KnownAt
	TenantID string `query:"tenantId" format:"uuid" doc:"A tenant's key names it already. Without it operator keys get all tenants of a period."`
	Feature  string `query:"feature" doc:"One feature; all without it."`
	Period   string `query:"period" doc:"2026-05, 2026 or lifetime; all without it. Required for all tenants." example:"2026-05"`
	IncludeTest
	Format string `query:"format" enum:"json,csv" doc:"csv: all figures in one answer, without limit and cursor. The default follows Accept."`
}

// IncludeTest is the parameter of a list of all tenants.
type IncludeTest struct {
	IncludeTest string `query:"includeTest" enum:"true,false"`
}

type aggregatesAnswer struct {
	Applied string `header:"Preference-Applied"`
	Body    func(huma.Context)
}

// Aggregates is a page of figures in its wire format.
type Aggregates struct {
	Data       []usage.Aggregate `json:"data" nullable:"false"`
	NextCursor *string           `json:"nextCursor" doc:"null on the last page."`
	AsOf       *events.Position  `json:"asOfPosition" nullable:"true"`
}

func describeAggregates(op *huma.Operation, types api.Schemas) {
	op.Responses["200"] = &huma.Response{
		Description: "The figures.",
		Content: map[string]*huma.MediaType{
			api.MediaJSON: {Schema: types.Of(Aggregates{})}, "text/csv": {Schema: &huma.Schema{Type: huma.TypeString}}},
	}
}

// figures is a list of figures. read returns its page after a cursor.
type figures struct {
	list api.List
	read func(ctx context.Context, limit int, after string) (usage.Aggregates, error)
}

func (s *handlers) aggregates(ctx context.Context, in *aggregatesRequest) (*aggregatesAnswer, error) {
	if in.Period != "" && !api.IsPeriod(in.Period) {
		return nil, api.PeriodInvalid("period")
	}
	f, err := s.figuresAsked(ctx, in)
	if err != nil {
		return nil, err
	}
	answer := &aggregatesAnswer{Applied: in.Applied()}
	asCSV, err := api.RequestsCSV(ctx, in.Format)
	if err != nil {
		return nil, err
	}
	if asCSV {
		answer.Body, err = api.AnswerCSV(ctx, s.Service, f.csv())
		return answer, err
	}
	_, after, err := f.list.Open(in.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := f.read(ctx, in.Limit, after)
	if err != nil {
		return nil, err
	}
	shown := api.ListedFrom(f.list, found.Page)
	answer.Body, err = api.AnswerJSON(Aggregates{shown.Data, shown.NextCursor, found.AsOf})
	return answer, err
}

// figuresAsked returns the requested list: of one tenant, or of all if an operator names no tenant.
func (s *handlers) figuresAsked(ctx context.Context, in *aggregatesRequest) (figures, error) {
	if present := in.AsOf == "" && in.AsOfPosition == ""; present &&
		!slices.ContainsFunc(readersOfUsage(), edge.ExchangeOf(ctx).Caller.Has) {
		return figures{}, problem.New("forbidden", "For the present figures the key needs one of the scopes: "+
			strings.Join(readersOfUsage(), ", "))
	}
	if edge.ExchangeOf(ctx).Tenant == nil && in.TenantID == "" {
		return s.figuresOfPeriod(in)
	}
	viewer, tenant, err := s.Subject(ctx, in.TenantID)
	if err != nil {
		return figures{}, err
	}
	asOf, wait, err := in.KnownAt.Read(in.Freshness)
	return figures{
		list: api.List{"aggregates", tenant.String(), in.Feature, in.Period, in.AsOfPosition, in.AsOf},
		read: func(ctx context.Context, limit int, after string) (usage.Aggregates, error) {
			return s.aggregatesAt(ctx, viewer, usage.AggregateQuery{TenantID: tenant, Feature: in.Feature, PeriodKey: in.Period,
				Limit: limit, After: after, Wait: wait}, asOf)
		},
	}, err
}

func (s *handlers) figuresOfPeriod(in *aggregatesRequest) (figures, error) {
	switch {
	case in.Period == "":
		return figures{}, problem.New("parameter_missing", "Name a tenant by tenantId, or a period for the figures of all tenants")
	case in.MinPosition != "" || in.AsOfPosition != "" || in.AsOf != "":
		return figures{}, problem.New("parameter_invalid",
			"minPosition, asOfPosition and asOf need a tenantId: each tenant has positions of its own")
	}
	return figures{
		list: api.List{"aggregates of all tenants", in.Feature, in.Period, in.IncludeTest.IncludeTest},
		read: func(ctx context.Context, limit int, after string) (usage.Aggregates, error) {
			return s.Reads.Usage.OfPeriod(ctx, query.Viewer{Operator: true}, usage.PeriodQuery{PeriodKey: in.Period, Feature: in.Feature,
				Test: in.IncludeTest.IncludeTest == "true", Limit: limit, After: after})
		},
	}, nil
}

// csv returns the list for an answer as CSV.
func (f *figures) csv() api.CSVList[usage.Aggregate] {
	return api.CSVList[usage.Aggregate]{
		Columns: []string{"tenantId", "feature", "periodKey", "subscriptionId", "amount", "eventCount", "periodStart", "periodEnd",
			"lastEventAt"},
		Read: func(ctx context.Context, limit int, after string) ([]usage.Aggregate, string, error) {
			page, err := f.read(ctx, limit, after)
			return page.Data, page.Next, err
		},
		Cells: figureCells,
	}
}

func figureCells(a *usage.Aggregate) []string {
	at := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return t.Format(time.RFC3339Nano)
	}
	return []string{a.TenantID.String(), a.Feature, a.PeriodKey, a.SubscriptionID.String(), a.Amount.String(),
		strconv.FormatInt(a.EventCount, 10),
		at(a.PeriodStart), at(a.PeriodEnd), at(&a.LastEventAt)}
}
