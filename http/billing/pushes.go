package billing

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/domain/push"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/operate"
)

func (s *handlers) pushOperations(t *api.Site) {
	const path, one = api.Prefix + "/pushes", api.Prefix + "/pushes/{pushId}"
	gone := []int{http.StatusNotFound}
	readers, deciders := []string{commands.ScopeBilling, commands.ScopeAudit}, []string{commands.ScopeBilling}
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Operator, Scopes: readers, ID: "listPushes", Tag: "Pushes",
		Summary:     "List Stripe deliveries",
		Description: "Amounts of closed periods for the billing provider. Newest first, delivered ones too.", Problems: gone}, s.listPushes)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one, Who: auth.Operator, Scopes: readers, ID: "getPush", Tag: "Pushes",
		Summary:     "Read a Stripe delivery",
		Description: "Its state, and its last error in the provider's words.", Problems: gone}, s.getPush)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: one + "/retry", Who: auth.Operator, Scopes: deciders, ID: "retryPush",
		Tag:     "Pushes",
		Summary: "Retry a Stripe delivery now",
		Description: "A FAILED one, or an UNKNOWN one within 23 hours of the attempt that may have " +
			"been counted: until then the provider detects a repetition. Later, look for its identifier at the provider, " +
			"and resolve the delivery.",
		Problems: gone}, s.retryPush)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: one + "/resolve", Who: auth.Operator, Scopes: deciders, ID: "resolvePush",
		Tag:     "Pushes",
		Summary: "Resolve a Stripe delivery",
		Description: "One that failed, or whose result is unknown. delivered: the provider counts the " +
			"amount, or it is billed in another way. Not delivered: the provider surely has not counted it, and it is sent again.",
		Problems: gone}, s.resolvePush)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: path + "/reconcile", Who: auth.Operator, Scopes: deciders,
		ID: "reconcilePushes", Tag: "Pushes", Status: http.StatusAccepted,
		Summary:     "Compare the provider's totals with the delivered amounts",
		Description: "Begins by itself each day. A difference is the event billing.push.compared, and a metric."}, s.reconcilePushes)
}

// pushBody is a push as answers show it: null for no text.
type pushBody struct {
	push.Push
	Code       *string `json:"lastCode" doc:"The provider's code, or push_too_old or push_unknown."`
	LastError  *string `json:"lastError" doc:"Of the last attempt, in the provider's words; null: none."`
	LastReason *string `json:"lastReason" doc:"The reason of an operator's last request; null: none."`
	LastActor  *string `json:"lastActor" doc:"The key of the last request, as api_key/id; null: none."`
}

func pushOf(p *push.Push) pushBody {
	return pushBody{*p, api.TextOrNull(p.Code), api.TextOrNull(p.LastError), api.TextOrNull(p.LastReason), api.TextOrNull(p.LastActor)}
}

type pushesRequest struct {
	api.OfTenant
	State     string `query:"state" enum:"PENDING,UNKNOWN,DELIVERED,FAILED" doc:"Deliveries in this state."`
	PeriodKey string `query:"periodKey" doc:"Deliveries of this period, e.g. 2026-05 or 2026."`
	api.Paging
}

func (s *handlers) listPushes(ctx context.Context, in *pushesRequest) (*api.Listed[pushBody], error) {
	if in.PeriodKey != "" && !api.IsPeriod(in.PeriodKey) {
		return nil, api.PeriodInvalid("periodKey")
	}
	tenant, err := s.OptionalTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	l := api.List{"pushes", in.TenantID, in.State, in.PeriodKey}
	return api.ListCatalogue(l, in.Paging, func(p commands.Page) ([]pushBody, error) {
		found, err := s.PushReader.Pushes(ctx, billing.PushQuery{TenantID: tenant, State: in.State, PeriodKey: in.PeriodKey, Page: p})
		return api.BodiesOf(found, pushOf), err
	}, func(b *pushBody) string { return b.ID.String() })
}

// PushPath names a push.
type PushPath struct {
	PushID string `path:"pushId" format:"uuid"`
}

func (p *PushPath) id() (uuid.UUID, error) { return api.IDOf(p.PushID, "push_not_found") }

func (s *handlers) getPush(ctx context.Context, in *struct{ PushPath }) (*api.Answer[pushBody], error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return api.AnswerAs(pushOf)(api.Present(s.PushReader.Push(ctx, id))("push_not_found"))
}

type retryPushRequest struct {
	PushPath
	api.Idempotent
	Body struct {
		Reason string `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, kept with the delivery."`
	} `nameHint:"PushRetry"`
}

func (s *handlers) retryPush(ctx context.Context, in *retryPushRequest) (*api.Answer[pushBody], error) {
	req, id, err := api.ChangeOne(ctx, in.PushID, "push_not_found")
	if err != nil {
		return nil, err
	}
	return api.AnswerAs(pushOf)(s.Pushes.Retry(ctx, req, id, in.Body.Reason))
}

type resolvePushRequest struct {
	PushPath
	api.Idempotent
	Body struct {
		Delivered bool   `json:"delivered" doc:"true: the provider counts the amount; false: it surely does not."`
		Reason    string `json:"reason" minLength:"1" maxLength:"500"`
	} `nameHint:"PushResolution"`
}

func (s *handlers) resolvePush(ctx context.Context, in *resolvePushRequest) (*api.Answer[pushBody], error) {
	req, id, err := api.ChangeOne(ctx, in.PushID, "push_not_found")
	if err != nil {
		return nil, err
	}
	return api.AnswerAs(pushOf)(s.Pushes.Resolve(ctx, req, id, in.Body.Delivered, in.Body.Reason))
}

func (s *handlers) reconcilePushes(ctx context.Context, _ *struct{ api.Idempotent }) (*api.Accepted[operate.SagaBody], error) {
	req, err := api.Once(ctx)
	if err != nil {
		return nil, err
	}
	saga, err := s.Pushes.Reconcile(ctx, req)
	return api.AcceptedSaga(saga.ID, operate.SagaOf(&saga), err)
}
