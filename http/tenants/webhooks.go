package tenants

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
)

func (s *handlers) webhookOperations(t *api.Site) {
	const path, one = api.Prefix + "/tenants/{tenantId}/webhooks", api.Prefix + "/tenants/{tenantId}/webhooks/{webhookId}"
	const shown = "The secret is in this answer only. A repeat under the same Idempotency-Key is answered 200 without it."
	gone := []int{http.StatusNotFound}
	managers, readers := []string{commands.ScopeWebhooksManage, commands.ScopeBilling},
		[]string{commands.ScopeWebhooksManage, commands.ScopeBilling, commands.ScopeAudit}
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: path, Who: auth.Either, Scopes: managers, ID: "createWebhook", Reasoned: true,
		Tag: "Webhooks", Status: http.StatusCreated, Also: http.StatusOK,
		Summary: "Create a webhook", Description: "Events of its types that are recorded from now on are sent to its URL, signed as " +
			"Standard Webhooks describes. " + shown,
		Problems: gone}, s.createWebhook)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: path, Who: auth.Either, Scopes: readers, ID: "listWebhooks", Tag: "Webhooks",
		Summary:     "List the webhooks of a tenant",
		Description: "Without their secrets. A webhook that the service disabled has a reason.", Problems: gone}, s.listWebhooks)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one, Who: auth.Either, Scopes: readers, ID: "getWebhook", Tag: "Webhooks",
		Summary:     "Read a webhook",
		Description: "Without its secrets.", Problems: gone}, s.getWebhook)
	api.Serve(t, api.Operation{Method: http.MethodPatch, Path: one, Who: auth.Either, Scopes: managers, ID: "changeWebhook", Reasoned: true,
		Tag: "Webhooks", Summary: "Change a webhook",
		Description: "A disabled webhook gets no events. Once it is enabled, it gets those recorded from then on; a replay sends the " +
			"events between.", Problems: gone}, s.changeWebhook)
	api.Serve(t, api.Operation{Method: http.MethodDelete, Path: one, Who: auth.Either, Scopes: managers, ID: "removeWebhook",
		Reasoned: true, Tag: "Webhooks", Summary: "Remove a webhook",
		Description: "Its secrets are deleted, and no further event is sent.", Problems: gone}, s.removeWebhook)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: one + "/rotate", Who: auth.Either, Scopes: managers, ID: "rotateWebhook",
		Reasoned: true, Tag: "Webhooks", Status: http.StatusCreated, Also: http.StatusOK,
		Summary:     "Rotate the secret of a webhook",
		Description: "Until the overlap ends, each request has a signature of the new secret and of the earlier ones. " + shown,
		Problems:    gone}, s.rotateWebhook)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: one + "/test", Who: auth.Either, Scopes: managers, ID: "testWebhook",
		Tag: "Webhooks", Status: http.StatusAccepted,
		Summary:     "Send a test event to a webhook",
		Description: "An event webhook.test, whatever its types are. The deliveries show the outcome.", Problems: gone}, s.testWebhook)
	api.Serve(t, api.Operation{Method: http.MethodGet, Path: one + "/deliveries", Who: auth.Either, Scopes: readers, ID: "listDeliveries",
		Tag: "Webhooks", Summary: "List the deliveries of a webhook",
		Description: "Newest first, each with its last 20 attempts.", Problems: gone}, s.listDeliveries)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: one + "/replay", Who: auth.Either, Scopes: managers, ID: "replayWebhook",
		Tag: "Webhooks", Status: http.StatusAccepted,
		Summary: "Send the events of a time range again",
		Description: "All events of its types that were recorded in the range, delivered or not, also while the webhook was disabled. " +
			"Each has the same webhook-id as before.",
		Problems: gone}, s.replayWebhook)
	api.Serve(t, api.Operation{Method: http.MethodPost, Path: api.Prefix + "/deliveries/{deliveryId}/replay", Who: auth.Either,
		Scopes: managers, ID: "replayDelivery", Tag: "Webhooks", Status: http.StatusAccepted,
		Summary: "Send a delivery again", Description: "At once, with the same webhook-id and with all its attempts.", Problems: gone},
		s.replayDelivery)
}

// ownTenant returns the tenant of a path. A tenant key gets the same answer for another tenant's id as for an unknown id.
func (s *handlers) ownTenant(ctx context.Context, named string) (uuid.UUID, error) {
	x := edge.ExchangeOf(ctx)
	if x.Tenant == nil {
		tenant, err := s.KnownTenant(ctx, named)
		if err != nil {
			return uuid.Nil, err
		}
		return tenant.ID, nil
	}
	if id, err := api.IDOf(named, "tenant_not_found"); err != nil || id != x.Caller.TenantID {
		return uuid.Nil, api.Absent("tenant_not_found")
	}
	return x.Caller.TenantID, nil
}

// ownObject returns the tenant of a path, as ownTenant does, and the id of an object of it; code is the refusal of a text that is no id.
func (s *handlers) ownObject(ctx context.Context, ofTenant, named, code string) (tenant, id uuid.UUID, err error) {
	if tenant, err = s.ownTenant(ctx, ofTenant); err == nil {
		id, err = api.IDOf(named, code)
	}
	return tenant, id, err
}

// ownPath is the path of an object of a tenant.
type ownPath interface {
	find(ctx context.Context, s *handlers) (tenant, id uuid.UUID, err error)
}

// change returns the request of a change of an object of a tenant.
func (s *handlers) change(ctx context.Context, of ownPath) (req commands.Request, tenant, id uuid.UUID, err error) {
	if req, err = api.Once(ctx); err == nil {
		tenant, id, err = of.find(ctx, s)
	}
	return req, tenant, id, err
}

// WebhookPath names a webhook of a tenant.
type WebhookPath struct {
	api.TenantPath
	WebhookID string `path:"webhookId" format:"uuid"`
}

func (p *WebhookPath) find(ctx context.Context, s *handlers) (tenant, id uuid.UUID, err error) {
	return s.ownObject(ctx, p.TenantID, p.WebhookID, "webhook_not_found")
}

// webhookBody is a webhook as answers show it; the first answer to its creation or to a rotation has the secret.
type webhookBody struct {
	webhook.Webhook
	Secret string `json:"secret,omitempty" doc:"Signs the requests: whsec_ and the base64 of the key. Shown once."`
}

func webhookOf(w *webhook.Webhook) webhookBody { return webhookBody{Webhook: *w} }

// webhookAnswer has status 201 with the secret, or 200 without it.
type webhookAnswer struct {
	Status int
	Body   webhookBody
}

func webhookAnswerOf(w webhooks.CreatedWebhook, err error) (*webhookAnswer, error) {
	if err != nil {
		return nil, err
	}
	answer := &webhookAnswer{Status: http.StatusCreated, Body: webhookOf(&w.Webhook)}
	if answer.Body.Secret = w.Secret; w.Repeated {
		answer.Status, answer.Body.Secret = http.StatusOK, ""
	}
	return answer, nil
}

// webhookTypes are the types of events that a webhook selects.
type webhookTypes []string

// Schema implements huma.SchemaProvider.
func (webhookTypes) Schema(huma.Registry) *huma.Schema { return api.ListOf(webhook.Events()) }

type createWebhookRequest struct {
	api.TenantPath
	api.Idempotent
	Body struct {
		URL    string       `json:"url" minLength:"1" maxLength:"2048" doc:"An https URL of a public host." example:"https://example.com/hooks"`
		Events webhookTypes `json:"events" minItems:"1" maxItems:"10" nullable:"false" doc:"Types of events that are sent."`
	} `nameHint:"NewWebhook"`
}

func (s *handlers) createWebhook(ctx context.Context, in *createWebhookRequest) (*webhookAnswer, error) {
	req, err := api.Once(ctx)
	if err != nil {
		return nil, err
	}
	tenant, err := s.ownTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	return webhookAnswerOf(s.Webhooks.Create(ctx, req, tenant, in.Body.URL, in.Body.Events))
}

func (s *handlers) listWebhooks(ctx context.Context, in *tenantListRequest) (*api.Listed[webhookBody], error) {
	tenant, err := s.ownTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	return api.ListCatalogue(api.List{"webhooks", tenant.String()}, in.Paging, func(p commands.Page) ([]webhookBody, error) {
		found, err := s.WebhookReader.Webhooks(ctx, tenant, p)
		return api.BodiesOf(found, webhookOf), err
	}, func(w *webhookBody) string { return w.ID.String() })
}

type shownWebhook struct {
	ETag string `header:"ETag" doc:"Of a read: the tag of this state. It changes with deliveries, too."`
	Body webhookBody
}

func (s *handlers) getWebhook(ctx context.Context, in *struct{ WebhookPath }) (*shownWebhook, error) {
	tenant, id, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	tag, err := s.TagOf(ctx, commands.Ref{Of: commands.EntityWebhook, ID: id.String()})
	if err != nil {
		return nil, err
	}
	found, err := api.Present(s.WebhookReader.Webhook(ctx, tenant, id))("webhook_not_found")
	if err != nil {
		return nil, err
	}
	return &shownWebhook{tag, webhookOf(&found)}, nil
}

type changeWebhookRequest struct {
	WebhookPath
	api.Idempotent
	Body struct {
		URL    *string       `json:"url,omitempty" minLength:"1" maxLength:"2048" doc:"An https URL of a public host."`
		Events *webhookTypes `json:"events,omitempty" minItems:"1" maxItems:"10" nullable:"false" doc:"All types of events that are sent."`
		Status *string       `json:"status,omitempty" enum:"ENABLED,DISABLED" doc:"ENABLED, or DISABLED: no event is sent."`
	} `nameHint:"WebhookChange"`
}

func (s *handlers) changeWebhook(ctx context.Context, in *changeWebhookRequest) (*shownWebhook, error) {
	req, tenant, id, err := s.change(ctx, in)
	if err != nil {
		return nil, err
	}
	changed, err := s.Webhooks.Change(ctx, req, tenant, id,
		webhooks.ChangeWebhook{URL: in.Body.URL, Events: (*[]string)(in.Body.Events), Status: in.Body.Status})
	if err != nil {
		return nil, err
	}
	return &shownWebhook{Body: webhookOf(&changed)}, nil
}

// webhookRequest is a change of a webhook whose body has no members.
type webhookRequest struct {
	WebhookPath
	api.Idempotent
}

func (s *handlers) removeWebhook(ctx context.Context, in *webhookRequest) (*struct{}, error) {
	req, tenant, id, err := s.change(ctx, in)
	if err != nil {
		return nil, err
	}
	return &struct{}{}, s.Webhooks.Remove(ctx, req, tenant, id)
}

type rotateWebhookRequest struct {
	WebhookPath
	api.Idempotent
	Body *struct {
		OverlapSeconds *int64 `json:"overlapSeconds,omitempty" minimum:"0" maximum:"604800"`
	} `nameHint:"WebhookRotation"`
}

// webhookOverlap is the overlap of a rotation that does not name one.
const webhookOverlap = 24 * time.Hour

func (s *handlers) rotateWebhook(ctx context.Context, in *rotateWebhookRequest) (*webhookAnswer, error) {
	req, tenant, id, err := s.change(ctx, in)
	if err != nil {
		return nil, err
	}
	overlap := webhookOverlap
	if in.Body != nil && in.Body.OverlapSeconds != nil {
		overlap = time.Duration(*in.Body.OverlapSeconds) * time.Second
	}
	return webhookAnswerOf(s.Webhooks.Rotate(ctx, req, tenant, id, overlap))
}

type webhookPositions struct {
	After events.Position `json:"after" doc:"Events after this position are sent again …"`
	UpTo  events.Position `json:"upTo" doc:"… up to this one."`
}

type replayWebhookRequest struct {
	WebhookPath
	api.Idempotent
	Body struct {
		From string `json:"from" format:"date-time" doc:"Recorded from this time on."`
		To   string `json:"to" format:"date-time" doc:"Recorded before this time."`
	} `nameHint:"WebhookReplay"`
}

func (s *handlers) replayWebhook(ctx context.Context, in *replayWebhookRequest) (*struct{ Body webhookPositions }, error) {
	req, tenant, id, err := s.change(ctx, in)
	if err != nil {
		return nil, err
	}
	from, fault := domain.ParseTime(in.Body.From)
	if fault != nil {
		return nil, &domain.Error{Code: "from_invalid", Message: fault.Message, Pointer: "/from"}
	}
	to, fault := domain.ParseTime(in.Body.To)
	if fault != nil {
		return nil, &domain.Error{Code: "to_invalid", Message: fault.Message, Pointer: "/to"}
	}
	replayed, err := s.Webhooks.ReplayRange(ctx, req, tenant, id, from, to)
	return &struct{ Body webhookPositions }{webhookPositions{replayed.After, replayed.UpTo}}, err
}
