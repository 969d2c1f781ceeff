package usage

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/projections/query"
	"github.com/meterplex/meterplex/projections/usage"
)

// KnownAt requests figures as they were known at a moment.
type KnownAt struct {
	AsOfPosition string `query:"asOfPosition" example:"17-4711"`
	AsOf         string `query:"asOf" format:"date-time" doc:"As known at the last position that was recorded at or before this time."`
}

// Read returns the moment, or nil if absent. A read at a moment waits for that
// moment, not for minPosition.
func (k KnownAt) Read(fresh api.Freshness) (*usage.AsOf, query.Wait, error) {
	if k.AsOfPosition == "" && k.AsOf == "" {
		wait, err := fresh.Wait()
		return nil, wait, err
	}
	wait := query.Wait{For: api.PreferredWait(fresh.Prefer)}
	if k.AsOfPosition != "" && k.AsOf != "" || fresh.MinPosition != "" {
		return nil, wait, problem.New("parameter_invalid", "asOfPosition, asOf and minPosition are different questions; ask one of them")
	}
	if k.AsOfPosition == "" {
		at, err := api.TimeParameter("asOf", k.AsOf)
		if err != nil {
			return nil, wait, err
		}
		return &usage.AsOf{Time: *at}, wait, nil
	}
	position, err := events.ParsePosition(k.AsOfPosition)
	if err != nil {
		return nil, wait, &domain.Error{Code: "position_invalid", Message: "asOfPosition: " + err.Error()}
	}
	return &usage.AsOf{Position: &position}, wait, nil
}

type explainRequest struct {
	api.OfTenant
	api.Paging
	api.Freshness
	KnownAt
	Feature        string `query:"feature" required:"true"`
	Period         string `query:"period" doc:"2026-05, 2026 or lifetime; it is required, under this name or the next." example:"2026-05"`
	PeriodKey      string `query:"periodKey" doc:"The same as period, as the figure's own member is called." example:"2026-05"`
	SubscriptionID string `query:"subscriptionId" format:"uuid" doc:"Of one subscription; of all together without it."`
	Include        string `query:"include" enum:"rejected"`
}

type explainAnswer struct {
	Body struct {
		Total      json.Number            `json:"total" doc:"The figure."`
		EventCount int64                  `json:"eventCount"`
		Adds       bool                   `json:"adds"`
		AsOf       events.Position        `json:"asOfPosition" doc:"Every event recorded up to here is in the figure."`
		Data       []usage.ExplainedUsage `json:"data" nullable:"false"`
		NextCursor *string                `json:"nextCursor" doc:"null on the last page."`
		Rejected   []usage.LeftOutUsage   `json:"rejected,omitzero" nullable:"false"`
		More       bool                   `json:"rejectedMore,omitempty"`
	} `nameHint:"Explanation"`
}

func (s *handlers) explain(ctx context.Context, in *explainRequest) (*explainAnswer, error) {
	viewer, tenant, err := s.Subject(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	q, err := in.query(tenant)
	if err != nil {
		return nil, err
	}
	l := api.List{"explain", tenant.String(), q.Feature, q.PeriodKey, in.SubscriptionID, in.AsOfPosition, in.AsOf}
	if _, q.After, err = l.Open(in.Cursor); err != nil {
		return nil, err
	}
	found, err := s.Reads.Usage.Explain(ctx, viewer, q)
	answer := &explainAnswer{}
	b := &answer.Body
	b.Total, b.EventCount, b.Adds, b.AsOf, b.Rejected, b.More = found.Total, found.EventCount, found.Adds, found.AsOf, found.LeftOut,
		found.LeftOutMore
	figures := api.ListedFrom(l, found.Page)
	b.Data, b.NextCursor = figures.Data, figures.NextCursor
	return answer, err
}

func (in *explainRequest) query(tenant uuid.UUID) (usage.ExplainQuery, error) {
	q := usage.ExplainQuery{TenantID: tenant, Feature: in.Feature, PeriodKey: cmp.Or(in.Period, in.PeriodKey), Rejected: in.Include != "",
		Limit: in.Limit}
	switch {
	case q.Feature == "" || q.PeriodKey == "":
		return q, problem.New("parameter_missing", "A figure is named by feature and period")
	case in.Period != "" && in.PeriodKey != "" && in.Period != in.PeriodKey:
		return q, problem.New("parameter_invalid", "period and periodKey are one parameter; give one of them")
	case !api.IsPeriod(q.PeriodKey):
		return q, api.PeriodInvalid("period")
	}
	if in.SubscriptionID != "" {
		id, err := uuid.Parse(in.SubscriptionID)
		if err != nil || id.String() != in.SubscriptionID {
			return q, problem.New("parameter_invalid", "subscriptionId is no UUID")
		}
		q.SubscriptionID = id
	}
	var err error
	q.AsOf, q.Wait, err = in.KnownAt.Read(in.Freshness)
	return q, err
}

// aggregatesAt answers with figures as known at a moment.
func (s *handlers) aggregatesAt(ctx context.Context, viewer query.Viewer, q usage.AggregateQuery, at *usage.AsOf) (usage.Aggregates,
	error) {
	if at == nil {
		return s.Reads.Usage.Aggregates(ctx, viewer, q)
	}
	return s.Reads.Usage.AggregatesAsOf(ctx, viewer, q, *at)
}
