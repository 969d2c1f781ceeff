// Package billing answers the operations of periods, their adjustments and pushes.
package billing

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/projections/periods"
)

func (s *handlers) periodOperations(t *api.Site) {
	const path, one = api.Prefix + "/tenants/{tenantId}/periods", api.Prefix + "/tenants/{tenantId}/periods/{periodKey}"
	gone := []int{http.StatusNotFound}
	readers, deciders := []string{commands.ScopeBilling, commands.ScopeAudit}, []string{commands.ScopeBilling}
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Operator, Scopes: readers, ID: "listPeriods", Tag: "Periods",
		Summary:     "List the periods of a tenant",
		Description: "Periods with usage, and all that were ever closed. Newest first, a year after its months, lifetime last.",
		Problems:    gone}, s.listPeriods)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: one + "/close", Who: auth.Operator, Scopes: deciders, ID: "closePeriod",
		Tag: "Periods", Status: http.StatusAccepted, Also: http.StatusOK,
		Summary: "Close a period",
		Description: "The position of the request is the cut: usage of the period recorded after it is late. A background process waits until " +
			"all usage up to the cut is counted, usually for seconds, then freezes the figures. " +
			"200 if the period is CLOSING or CLOSED already.", Problems: gone}, s.closePeriod)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one, Who: auth.Operator, Scopes: readers, ID: "getPeriod", Tag: "Periods",
		Summary: "Read a period with its frozen figures",
		Description: "For each line: net = frozen + adjustments + unreconciled, where net is the live figure; billable = frozen + " +
			"approved. All of one snapshot of the database. " +
			"figuresHash is the SHA-256 of the frozen figures, which docs/how-to/prove-an-invoice-line.md computes from the answer.",
		Problems: gone}, s.getPeriod)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: one + "/reopen", Who: auth.Operator, Scopes: deciders, ID: "reopenPeriod",
		Tag:         "Periods",
		Summary:     "Reopen a closed period",
		Description: "The snapshot is kept. Pending adjustments become VOID: the next snapshot includes their amounts.", Problems: gone},
		s.reopenPeriod)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one + "/adjustments", Who: auth.Operator, Scopes: readers,
		ID: "listPeriodAdjustments", Tag: "Periods",
		Summary: "List the adjustments of a period", Description: "Of all its snapshots, by snapshot and position.", Problems: gone},
		s.listPeriodAdjustments)
	api.ServeWriter(t, api.Operation{Method: http.MethodGet, Path: one + "/export", Who: auth.Operator, Scopes: readers, ID: "exportPeriod",
		Tag:     "Periods",
		Summary: "Export the lines and adjustments of a period",
		Description: "All in one answer, of one snapshot of the database: JSON, or the lines as CSV. The export of a frozen snapshot " +
			"without pending adjustments holds no live figures, and has the same bytes each time.", Problems: gone},
		describePeriodExport, s.exportPeriod)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one + "/charges", Who: auth.Operator, Scopes: readers, ID: "chargePeriod",
		Tag:     "Periods",
		Summary: "Read the charges of a period",
		Description: "The cost of the usage of a period, in exact micro-units, by the price of the " +
			"grant that was in force at its time: of a closed period by its billable amounts, of any other by its live figures. " +
			"Lines of the status BEFORE or TRIALING cost 0, unless the plan charges trials. No invoice, and no tax.", Problems: gone},
		s.chargePeriod)
}

// PeriodPath names a period of a tenant.
type PeriodPath struct {
	api.TenantPath
	PeriodKey string `path:"periodKey" doc:"A month such as 2026-05, a year such as 2026, or lifetime." example:"2026-05"`
}

// find returns the tenant of the path, and refuses a text that is no period key.
func (p *PeriodPath) find(ctx context.Context, s *handlers) (uuid.UUID, error) {
	tenant, err := s.KnownTenant(ctx, p.TenantID)
	if err != nil {
		return uuid.Nil, err
	}
	if p.PeriodKey == domain.PeriodLifetime {
		return tenant.ID, nil
	}
	if refusal := domain.CheckPeriodKey(p.PeriodKey); refusal != nil {
		return uuid.Nil, refusal
	}
	return tenant.ID, nil
}

// PeriodRead is a read of a period of a tenant.
type PeriodRead struct {
	PeriodPath
	api.Freshness
}

// find returns the tenant of the path, as PeriodPath.find does, once the live figures are as recent as requested.
func (p *PeriodRead) find(ctx context.Context, s *handlers) (uuid.UUID, error) {
	tenant, err := p.PeriodPath.find(ctx, s)
	if err == nil {
		err = s.AwaitFigures(ctx, tenant, p.Freshness)
	}
	return tenant, err
}

type periodsRequest struct {
	api.TenantPath
	api.Freshness
	api.Paging
}

func (s *handlers) listPeriods(ctx context.Context, in *periodsRequest) (*api.Listed[periods.Period], error) {
	tenant, err := s.KnownTenant(ctx, in.TenantID)
	if err == nil {
		err = s.AwaitFigures(ctx, tenant.ID, in.Freshness)
	}
	if err != nil {
		return nil, err
	}
	return api.ListCatalogue(api.List{"periods", in.TenantID}, in.Paging, func(p commands.Page) ([]periods.Period, error) {
		return s.Reads.Periods.Periods(ctx, tenant.ID, p.After, p.Limit)
	}, func(p *periods.Period) string { return p.PeriodKey })
}

// ref names the period of a tenant.
func (p *PeriodPath) ref(tenant uuid.UUID) commands.Ref {
	return commands.Ref{Of: commands.EntityPeriod, ID: tenant.String(), Key: p.PeriodKey}
}

type closeRequest struct {
	PeriodPath
	api.Idempotent
	api.Conditional
	Body struct {
		Reason  string   `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, recorded in the log."`
		Early   bool     `json:"early,omitempty" doc:"Close the period before its end."`
		Despite []string `json:"despite,omitempty" maxItems:"10" nullable:"false" example:"[\"dead_letters\"]"`
	} `nameHint:"PeriodClose"`
}

type closeAnswer struct {
	Status   int
	Location string `header:"Location" doc:"The period, with its state."`
	Body     billing.RequestedClose
}

func (s *handlers) closePeriod(ctx context.Context, in *closeRequest) (*closeAnswer, error) {
	tenant, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	req, err := api.ChangeOf(ctx, in.ref(tenant))
	if err != nil {
		return nil, err
	}
	closed, err := s.Periods.Close(ctx, req, billing.ClosePeriod{TenantID: tenant, PeriodKey: in.PeriodKey,
		Reason: in.Body.Reason, Early: in.Body.Early, Despite: in.Body.Despite})
	if err != nil {
		return nil, err
	}
	answer := &closeAnswer{http.StatusAccepted, api.Prefix + "/tenants/" + tenant.String() + "/periods/" + in.PeriodKey, closed}
	if closed.Known {
		answer.Status = http.StatusOK
	}
	return answer, nil
}

type periodRequest struct {
	PeriodRead
	Snapshot int `query:"snapshot" minimum:"0" maximum:"2147483647" doc:"An earlier snapshot; 0, the default: of the last close." example:"1"`
	api.Paging
}

// PeriodBody is a period with lines in its wire format.
type PeriodBody struct {
	periods.Period
	Lines      []periods.PeriodLine `json:"lines" nullable:"false" doc:"By feature and subscription; empty before the figures are frozen."`
	AsOf       events.Position      `json:"asOfPosition" doc:"Every event recorded up to here is in net."`
	NextCursor *string              `json:"nextCursor" doc:"null on the last page of lines."`
}

type periodAnswer struct {
	ETag string `header:"ETag" doc:"The tag of the period's state and of its adjustments, for If-Match. Live figures are not in it."`
	Body PeriodBody
}

func (s *handlers) getPeriod(ctx context.Context, in *periodRequest) (*periodAnswer, error) {
	l := api.List{"lines of a period", in.TenantID, in.PeriodKey}
	snapshot, after, err := l.Open(in.Cursor)
	if err != nil {
		return nil, err
	}
	tenant, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	if in.Cursor == "" {
		snapshot = in.Snapshot
	} else if in.Snapshot != 0 && in.Snapshot != snapshot {
		return nil, api.CursorInvalid()
	}
	tag, err := s.TagOf(ctx, in.ref(tenant))
	if err != nil {
		return nil, err
	}
	found, err := s.Reads.Periods.Period(ctx, periods.Query{TenantID: tenant, PeriodKey: in.PeriodKey, Snapshot: snapshot,
		Limit: in.Limit, After: after})
	if err != nil {
		return nil, err
	}
	answer := &periodAnswer{tag, periodBody(found)}
	if found.Next != "" { // pages stay with the snapshot that they began in
		answer.Body.NextCursor = l.Next(*found.Snapshot, found.Next)
	}
	return answer, nil
}

func periodBody(d periods.Detail) PeriodBody {
	return PeriodBody{Period: d.Period, Lines: d.Lines, AsOf: d.AsOf}
}

type reopenRequest struct {
	PeriodPath
	api.Idempotent
	api.Conditional
	Body struct {
		Reason string `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, recorded in the log."`
	} `nameHint:"PeriodReopening"`
}

func (s *handlers) reopenPeriod(ctx context.Context, in *reopenRequest) (*api.Answer[billing.ReopenedPeriod], error) {
	tenant, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	req, err := api.ChangeOf(ctx, in.ref(tenant))
	if err != nil {
		return nil, err
	}
	return api.AnswerOf(s.Periods.Reopen(ctx, req, tenant, in.PeriodKey, in.Body.Reason))
}
