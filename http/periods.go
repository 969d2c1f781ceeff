package http

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/projections/periods"
)

func (s *billingHandlers) periodOperations(t *site) {
	const path, one = prefix + "/tenants/{tenantId}/periods", prefix + "/tenants/{tenantId}/periods/{periodKey}"
	gone := []int{http.StatusNotFound}
	readers, deciders := []string{commands.ScopeBilling, commands.ScopeAudit}, []string{commands.ScopeBilling}
	serve(t, operation{method: http.MethodGet, path: path, who: auth.Operator, scopes: readers, id: "listPeriods", tag: "Periods", summary: "List the periods of a tenant",
		description: "Periods with usage, and all that were ever closed. Newest first, a year behind its months, lifetime last.", problems: gone}, s.listPeriods)
	serve(t, operation{method: http.MethodPost, path: one + "/close", who: auth.Operator, scopes: deciders, id: "closePeriod", tag: "Periods", status: http.StatusAccepted, also: http.StatusOK,
		summary: "Close a period",
		description: "The position of the request is the cut: usage of the period recorded behind it is late. A saga waits until all usage up to the cut is counted, usually for seconds, then freezes the figures. " +
			"200 if the period is CLOSING or CLOSED already.", problems: gone}, s.closePeriod)
	serve(t, operation{method: http.MethodGet, path: one, who: auth.Operator, scopes: readers, id: "getPeriod", tag: "Periods", summary: "Read a period with its frozen figures",
		description: "For each line: net = frozen + adjustments + unreconciled, where net is the live figure; billable = frozen + approved. All of one snapshot of the database. " +
			"figuresHash is the SHA-256 of the frozen figures, which docs/how-to/prove-an-invoice-line.md computes from the answer.", problems: gone}, s.getPeriod)
	serve(t, operation{method: http.MethodPost, path: one + "/reopen", who: auth.Operator, scopes: deciders, id: "reopenPeriod", tag: "Periods",
		summary: "Reopen a closed period", description: "The snapshot is kept. Pending adjustments become VOID: the next snapshot counts what they adjust.", problems: gone}, s.reopenPeriod)
	serve(t, operation{method: http.MethodGet, path: one + "/adjustments", who: auth.Operator, scopes: readers, id: "listPeriodAdjustments", tag: "Periods",
		summary: "List the adjustments of a period", description: "Of all its snapshots, by snapshot and position.", problems: gone}, s.listPeriodAdjustments)
	t.serveRaw(operation{method: http.MethodGet, path: one + "/export", who: auth.Operator, scopes: readers, id: "exportPeriod", tag: "Periods",
		summary: "Export the lines and adjustments of a period", description: "All in one answer, of one snapshot of the database: JSON, or the lines as CSV. The export of a frozen snapshot " +
			"without pending adjustments holds no live figures, and has the same bytes each time.", problems: gone},
		describePeriodExport, s.exportPeriod)
	serve(t, operation{method: http.MethodGet, path: one + "/charges", who: auth.Operator, scopes: readers, id: "chargePeriod", tag: "Periods",
		summary: "Read what a period costs", description: "What the usage of a period costs, in exact micro-units, by the price of the grant that was in force at its time: of a closed period by its billable amounts, of any other by its live figures. " +
			"Lines of the status BEFORE or TRIALING cost 0, unless the plan charges trials. No invoice, and no tax.", problems: gone}, s.chargePeriod)
}

// PeriodPath names a period of a tenant.
type PeriodPath struct {
	TenantPath
	PeriodKey string `path:"periodKey" doc:"A month such as 2026-05, a year such as 2026, or lifetime." example:"2026-05"`
}

// find returns the tenant of the path, and refuses a text that is no period key.
func (p *PeriodPath) find(ctx context.Context, s *billingHandlers) (uuid.UUID, error) {
	tenant, err := s.knownTenant(ctx, p.TenantID)
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
	Freshness
}

// find returns the tenant of the path, as PeriodPath.find does, once the live figures are as recent as requested.
func (p *PeriodRead) find(ctx context.Context, s *billingHandlers) (uuid.UUID, error) {
	tenant, err := p.PeriodPath.find(ctx, s)
	if err == nil {
		err = s.awaitFigures(ctx, tenant, p.Freshness)
	}
	return tenant, err
}

type periodsRequest struct {
	TenantPath
	Freshness
	Paging
}

func (s *billingHandlers) listPeriods(ctx context.Context, in *periodsRequest) (*listed[periods.Period], error) {
	l := list{"periods", in.TenantID}
	_, after, err := l.open(in.Cursor)
	if err != nil {
		return nil, err
	}
	tenant, err := s.knownTenant(ctx, in.TenantID)
	if err == nil {
		err = s.awaitFigures(ctx, tenant.ID, in.Freshness)
	}
	if err != nil {
		return nil, err
	}
	found, err := s.Reads.Periods.Periods(ctx, tenant.ID, after, in.Limit+1)
	return &listed[periods.Period]{cut(l, found, in.Limit, func(p *periods.Period) string { return p.PeriodKey })}, err
}

// ref names the period of a tenant.
func (p *PeriodPath) ref(tenant uuid.UUID) commands.Ref {
	return commands.Ref{Of: commands.EntityPeriod, ID: tenant.String(), Key: p.PeriodKey}
}

type closeRequest struct {
	PeriodPath
	Idempotent
	Conditional
	Body struct {
		Reason  string   `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, recorded in the log."`
		Early   bool     `json:"early,omitempty" doc:"Close the period before its end."`
		Despite []string `json:"despite,omitempty" maxItems:"10" nullable:"false" doc:"Conditions that the close does not wait for: dead_letters, rebuilds. The snapshot keeps those that were missing." example:"[\"dead_letters\"]"`
	} `nameHint:"PeriodClose"`
}

type closeAnswer struct {
	Status   int
	Location string `header:"Location" doc:"The period, with its state."`
	Body     billing.RequestedClose
}

func (s *billingHandlers) closePeriod(ctx context.Context, in *closeRequest) (*closeAnswer, error) {
	tenant, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	req, err := changeOf(ctx, in.ref(tenant))
	if err != nil {
		return nil, err
	}
	closed, err := s.Periods.Close(ctx, req, billing.ClosePeriod{TenantID: tenant, PeriodKey: in.PeriodKey,
		Reason: in.Body.Reason, Early: in.Body.Early, Despite: in.Body.Despite})
	if err != nil {
		return nil, err
	}
	answer := &closeAnswer{http.StatusAccepted, prefix + "/tenants/" + tenant.String() + "/periods/" + in.PeriodKey, closed}
	if closed.Known {
		answer.Status = http.StatusOK
	}
	return answer, nil
}

type periodRequest struct {
	PeriodRead
	Snapshot int `query:"snapshot" minimum:"0" maximum:"2147483647" doc:"An earlier snapshot; 0, the default: that of the last close." example:"1"`
	Paging
}

// PeriodBody is a period with lines in its wire format.
type PeriodBody struct {
	periods.Period
	Lines      []periods.PeriodLine `json:"lines" nullable:"false" doc:"By feature and subscription; none before the figures are frozen."`
	AsOf       events.Position      `json:"asOfPosition" doc:"Every event recorded up to here is in net."`
	NextCursor *string              `json:"nextCursor" doc:"null on the last page of lines."`
}

type periodAnswer struct {
	ETag string `header:"ETag" doc:"The tag of the period's state and of its adjustments, for If-Match. Live figures are not in it."`
	Body PeriodBody
}

func (s *billingHandlers) getPeriod(ctx context.Context, in *periodRequest) (*periodAnswer, error) {
	l := list{"lines of a period", in.TenantID, in.PeriodKey}
	snapshot, after, err := l.open(in.Cursor)
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
		return nil, cursorInvalid()
	}
	tag, err := s.tagOf(ctx, in.ref(tenant))
	if err != nil {
		return nil, err
	}
	found, err := s.Reads.Periods.Period(ctx, periods.PeriodQuery{TenantID: tenant, PeriodKey: in.PeriodKey, Snapshot: snapshot, Limit: in.Limit, After: after})
	if err != nil {
		return nil, err
	}
	answer := &periodAnswer{tag, periodBody(found)}
	if found.Next != "" { // pages stay with the snapshot that they began in
		answer.Body.NextCursor = l.next(*found.Snapshot, found.Next)
	}
	return answer, nil
}

func periodBody(d periods.Detail) PeriodBody {
	return PeriodBody{Period: d.Period, Lines: d.Lines, AsOf: d.AsOf}
}

type reopenRequest struct {
	PeriodPath
	Idempotent
	Conditional
	Body struct {
		Reason string `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, recorded in the log."`
	} `nameHint:"PeriodReopening"`
}

type reopenAnswer struct{ Body billing.ReopenedPeriod }

func (s *billingHandlers) reopenPeriod(ctx context.Context, in *reopenRequest) (*reopenAnswer, error) {
	tenant, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	req, err := changeOf(ctx, in.ref(tenant))
	if err != nil {
		return nil, err
	}
	reopened, err := s.Periods.Reopen(ctx, req, tenant, in.PeriodKey, in.Body.Reason)
	return &reopenAnswer{reopened}, err
}
