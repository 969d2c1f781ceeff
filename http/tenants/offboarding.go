package tenants

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
)

func (s *handlers) offboardingOperations(t *api.Site) {
	const path = api.Prefix + "/tenants/{tenantId}/offboard"
	gone := []int{http.StatusNotFound}
	readers, deciders := []string{commands.ScopeBilling, commands.ScopeAudit}, []string{commands.ScopeBilling}
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: path, Who: auth.Operator, Scopes: deciders, ID: "offboardTenant",
		Tag: "Tenants", Status: http.StatusAccepted,
		Summary: "Offboard a tenant",
		Description: "A background process suspends the tenant, ends its reservations, closes all its periods, waits until Stripe counts " +
			"the amounts due, lists the data that is kept, " +
			"then cancels the subscription, revokes the keys and sets ARCHIVED. Until then it can be cancelled. The tenant's keys are " +
			"refused within a second.", Problems: gone}, s.offboardTenant)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Operator, Scopes: readers, ID: "getOffboarding",
		Tag: "Tenants", Summary: "Read the offboarding of a tenant",
		Description: "The last one, with its step, and the manifest of the data that is kept.", Problems: gone}, s.getOffboarding)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: path + "/cancel", Who: auth.Operator, Scopes: deciders,
		ID: "cancelOffboarding", Tag: "Tenants", Status: http.StatusAccepted,
		Summary: "Cancel the offboarding of a tenant",
		Description: "Until the tenant is archived. Periods that the offboarding closed before their end are reopened, then the " +
			"tenant is ACTIVE.", Problems: gone}, s.cancelOffboarding)
}

// offboardingBody is an offboarding in its wire format.
type offboardingBody struct {
	ID           uuid.UUID       `json:"id" format:"uuid"`
	TenantID     uuid.UUID       `json:"tenantId" format:"uuid"`
	SagaID       uuid.UUID       `json:"sagaId" format:"uuid" doc:"GET /sagas/{id} shows the conditions that it waits for."`
	State        string          `json:"state" enum:"RUNNING,CANCELLING,CANCELLED,ARCHIVED" doc:"CANCELLING: its effects are being reverted."`
	Step         string          `json:"step" enum:"requested,suspended,drained,closed,pushed,exported,archived,reverted"`
	Reason       string          `json:"reason" doc:"Of the request, recorded in the log."`
	Actor        string          `json:"actor" doc:"The key of the request, as api_key/id."`
	CancelReason *string         `json:"cancelReason" doc:"Of the cancellation; null: it was not cancelled."`
	CancelActor  *string         `json:"cancelActor" doc:"The key of the cancellation; null: it was not cancelled."`
	RequestedAt  time.Time       `json:"requestedAt" doc:"The time of the request."`
	EndedAt      *time.Time      `json:"endedAt" doc:"null: it has not ended."`
	Closed       []string        `json:"closedEarly" nullable:"false" doc:"Periods that it closed before their end."`
	Manifest     json.RawMessage `json:"manifest"`
	ManifestHash *string         `json:"manifestHash"`
}

func offboardingOf(o *domain.Offboarding) offboardingBody {
	b := offboardingBody{ID: o.ID, TenantID: o.TenantID, SagaID: o.SagaID, State: o.State, Step: o.Step, Reason: o.Reason, Actor: o.Actor,
		CancelReason: api.TextOrNull(o.CancelReason),
		CancelActor:  api.TextOrNull(o.CancelActor), RequestedAt: o.RequestedAt, EndedAt: o.EndedAt, Closed: []string{},
		Manifest: o.Manifest}
	for _, c := range o.Closed {
		b.Closed = append(b.Closed, c.PeriodKey)
	}
	if o.Manifest != nil {
		hash := domain.ManifestHash(o.Manifest)
		b.ManifestHash = &hash
	}
	return b
}

type offboardRequest struct {
	api.TenantPath
	api.Idempotent
	Body struct {
		Reason string `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, recorded in the log."`
	} `nameHint:"Offboard"`
}

func (s *handlers) offboardTenant(ctx context.Context, in *offboardRequest) (*api.Accepted[offboardingBody], error) {
	return in.request(ctx, s.Offboarding.Start)
}

func (s *handlers) cancelOffboarding(ctx context.Context, in *offboardRequest) (*api.Accepted[offboardingBody], error) {
	return in.request(ctx, s.Offboarding.Cancel)
}

func (in *offboardRequest) request(ctx context.Context, decide func(context.Context, commands.Request, uuid.UUID,
	string) (domain.Offboarding, error)) (*api.Accepted[offboardingBody], error) {
	req, tenant, err := api.ChangeOne(ctx, in.TenantID, "tenant_not_found")
	if err != nil {
		return nil, err
	}
	o, err := decide(ctx, req, tenant, in.Body.Reason)
	return api.AcceptedSaga(o.SagaID, offboardingOf(&o), err)
}

func (s *handlers) getOffboarding(ctx context.Context, in *struct{ api.TenantPath }) (*api.Answer[offboardingBody], error) {
	tenant, err := s.KnownTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	return api.AnswerAs(offboardingOf)(api.Present(s.OffboardingReader.LastOffboarding(ctx, tenant.ID))("offboarding_not_found"))
}
