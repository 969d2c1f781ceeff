package http

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
)

func (s *tenantsHandlers) webhookOperations(t *site) {
	const path, one = prefix + "/tenants/{tenantId}/webhooks", prefix + "/tenants/{tenantId}/webhooks/{webhookId}"
	const shown = "The secret is in this answer only. A repeat under the same Idempotency-Key is answered 200 without it."
	gone := []int{http.StatusNotFound}
	managers, readers := []string{commands.ScopeWebhooksManage, commands.ScopeBilling}, []string{commands.ScopeWebhooksManage, commands.ScopeBilling, commands.ScopeAudit}
	serve(t, operation{method: http.MethodPost, path: path, who: auth.Either, scopes: managers, id: "createWebhook", reasoned: true, tag: "Webhooks", status: http.StatusCreated, also: http.StatusOK,
		summary: "Create a webhook", description: "Events of its types that are recorded from now on are sent to its URL, signed as Standard Webhooks describes. " + shown,
		problems: gone}, s.createWebhook)
	serve(t, operation{method: http.MethodGet, path: path, who: auth.Either, scopes: readers, id: "listWebhooks", tag: "Webhooks", summary: "List the webhooks of a tenant",
		description: "Without their secrets. A webhook that the service disabled has a reason.", problems: gone}, s.listWebhooks)
	serve(t, operation{method: http.MethodGet, path: one, who: auth.Either, scopes: readers, id: "getWebhook", tag: "Webhooks", summary: "Read a webhook",
		description: "Without its secrets.", problems: gone}, s.getWebhook)
	serve(t, operation{method: http.MethodPatch, path: one, who: auth.Either, scopes: managers, id: "changeWebhook", reasoned: true, tag: "Webhooks", summary: "Change a webhook",
		description: "A disabled webhook gets no events. Once it is enabled, it gets those recorded from then on; a replay sends the events between.", problems: gone}, s.changeWebhook)
	serve(t, operation{method: http.MethodDelete, path: one, who: auth.Either, scopes: managers, id: "removeWebhook", reasoned: true, tag: "Webhooks", summary: "Remove a webhook",
		description: "Its secrets are deleted, and nothing more is sent.", problems: gone}, s.removeWebhook)
	serve(t, operation{method: http.MethodPost, path: one + "/rotate", who: auth.Either, scopes: managers, id: "rotateWebhook", reasoned: true, tag: "Webhooks", status: http.StatusCreated, also: http.StatusOK,
		summary: "Rotate the secret of a webhook", description: "Until the overlap ends, each request has a signature of the new secret and of the earlier ones. " + shown,
		problems: gone}, s.rotateWebhook)
	serve(t, operation{method: http.MethodPost, path: one + "/test", who: auth.Either, scopes: managers, id: "testWebhook", tag: "Webhooks", status: http.StatusAccepted,
		summary: "Send a test event to a webhook", description: "An event webhook.test, whatever its types are. The deliveries show the outcome.", problems: gone}, s.testWebhook)
	serve(t, operation{method: http.MethodGet, path: one + "/deliveries", who: auth.Either, scopes: readers, id: "listDeliveries", tag: "Webhooks", summary: "List the deliveries of a webhook",
		description: "Newest first, each with its last 20 attempts.", problems: gone}, s.listDeliveries)
	serve(t, operation{method: http.MethodPost, path: one + "/replay", who: auth.Either, scopes: managers, id: "replayWebhook", tag: "Webhooks", status: http.StatusAccepted,
		summary:     "Send the events of a time range again",
		description: "All events of its types that were recorded in the range, delivered or not, also while the webhook was disabled. Each has the same webhook-id as before.",
		problems:    gone}, s.replayWebhook)
	serve(t, operation{method: http.MethodPost, path: prefix + "/deliveries/{deliveryId}/replay", who: auth.Either, scopes: managers, id: "replayDelivery", tag: "Webhooks", status: http.StatusAccepted,
		summary: "Send a delivery again", description: "At once, with the same webhook-id and with all its attempts.", problems: gone}, s.replayDelivery)
}

// ownTenant returns the tenant of a path. A tenant key gets the same answer for another tenant's id as for an unknown id.
func (s *tenantsHandlers) ownTenant(ctx context.Context, named string) (uuid.UUID, error) {
	x := edge.ExchangeOf(ctx)
	if x.Tenant == nil {
		tenant, err := s.knownTenant(ctx, named)
		if err != nil {
			return uuid.Nil, err
		}
		return tenant.ID, nil
	}
	if id, err := idOf(named, "tenant_not_found"); err != nil || id != x.Caller.TenantID {
		return uuid.Nil, absent("tenant_not_found")
	}
	return x.Caller.TenantID, nil
}

// ownObject returns the tenant of a path, as ownTenant does, and the id of an object of it; code is the refusal of a text that is no id.
func (s *tenantsHandlers) ownObject(ctx context.Context, ofTenant, named, code string) (tenant, id uuid.UUID, err error) {
	if tenant, err = s.ownTenant(ctx, ofTenant); err == nil {
		id, err = idOf(named, code)
	}
	return tenant, id, err
}

// WebhookPath names a webhook of a tenant.
type WebhookPath struct {
	TenantPath
	WebhookID string `path:"webhookId" format:"uuid"`
}

func (p *WebhookPath) find(ctx context.Context, s *tenantsHandlers) (tenant, id uuid.UUID, err error) {
	return s.ownObject(ctx, p.TenantID, p.WebhookID, "webhook_not_found")
}

// webhookBody is a webhook in its wire format.
type webhookBody struct {
	ID            uuid.UUID  `json:"id" format:"uuid"`
	TenantID      uuid.UUID  `json:"tenantId" format:"uuid"`
	URL           string     `json:"url" doc:"Receives the requests."`
	Events        []string   `json:"events" nullable:"false" doc:"Types of events that are sent."`
	Status        string     `json:"status" enum:"ENABLED,DISABLED"`
	Reason        *string    `json:"reason" doc:"The reason for which the service disabled it; null: none."`
	Secrets       int        `json:"secrets" doc:"Number of valid secrets; 2 or more while a rotation overlaps."`
	CreatedAt     time.Time  `json:"createdAt"`
	FailingSince  *time.Time `json:"failingSince" doc:"The first failure after the last success. 5 days later the webhook is disabled. null: the last request succeeded, or all deliveries have ended."`
	LastSuccessAt *time.Time `json:"lastSuccessAt" doc:"Time of the last 2xx answer; null: none."`
	Replaying     bool       `json:"replaying" doc:"Whether a time range is being sent again."`
	Secret        string     `json:"secret,omitempty" doc:"Signs the requests: whsec_ and the base64 of the key. Shown once."`
}

func webhookOf(w *webhook.Webhook) webhookBody {
	return webhookBody{ID: w.ID, TenantID: w.TenantID, URL: w.URL, Events: append([]string{}, w.Events...), Status: w.Status, Reason: textOrNull(w.Reason), Secrets: w.Secrets,
		CreatedAt: w.CreatedAt.UTC(), FailingSince: utc(w.FailingSince), LastSuccessAt: utc(w.LastSuccessAt), Replaying: w.Replaying()}
}

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

type createWebhookRequest struct {
	TenantPath
	Idempotent
	Body struct {
		URL    string   `json:"url" minLength:"1" maxLength:"2048" doc:"An https URL of a public host." example:"https://example.com/hooks"`
		Events []string `json:"events" minItems:"1" maxItems:"10" nullable:"false" enum:"period.closed,adjustment.pending,threshold.crossed,reservation.expired,push.failed,usage.refused" doc:"Types of events that are sent."`
	} `nameHint:"NewWebhook"`
}

func (s *tenantsHandlers) createWebhook(ctx context.Context, in *createWebhookRequest) (*webhookAnswer, error) {
	once, err := once(ctx)
	if err != nil {
		return nil, err
	}
	tenant, err := s.ownTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	return webhookAnswerOf(s.Webhooks.Create(ctx, edge.ExchangeOf(ctx).Request(once), tenant, in.Body.URL, in.Body.Events))
}

func (s *tenantsHandlers) listWebhooks(ctx context.Context, in *tenantListRequest) (*listed[webhookBody], error) {
	tenant, err := s.ownTenant(ctx, in.TenantID)
	if err != nil {
		return nil, err
	}
	return listCatalogue(list{"webhooks", tenant.String()}, in.Paging, func(p commands.Page) ([]webhookBody, error) {
		found, err := s.WebhookReader.Webhooks(ctx, tenant, p)
		return bodiesOf(found, webhookOf), err
	}, func(w *webhookBody) string { return w.ID.String() })
}

type shownWebhook struct {
	ETag string `header:"ETag" doc:"Of a read: the tag of this state. It changes with deliveries, too."`
	Body webhookBody
}

func (s *tenantsHandlers) getWebhook(ctx context.Context, in *struct{ WebhookPath }) (*shownWebhook, error) {
	tenant, id, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	tag, err := s.tagOf(ctx, commands.Ref{Of: commands.EntityWebhook, ID: id.String()})
	if err != nil {
		return nil, err
	}
	found, err := present(s.WebhookReader.Webhook(ctx, tenant, id))("webhook_not_found")
	if err != nil {
		return nil, err
	}
	return &shownWebhook{tag, webhookOf(found)}, nil
}

type changeWebhookRequest struct {
	WebhookPath
	Idempotent
	Body struct {
		URL    *string   `json:"url,omitempty" minLength:"1" maxLength:"2048" doc:"An https URL of a public host."`
		Events *[]string `json:"events,omitempty" minItems:"1" maxItems:"10" nullable:"false" enum:"period.closed,adjustment.pending,threshold.crossed,reservation.expired,push.failed,usage.refused" doc:"All types of events that are sent."`
		Status *string   `json:"status,omitempty" enum:"ENABLED,DISABLED" doc:"ENABLED, or DISABLED: nothing is sent."`
	} `nameHint:"WebhookChange"`
}

func (s *tenantsHandlers) changeWebhook(ctx context.Context, in *changeWebhookRequest) (*shownWebhook, error) {
	once, err := once(ctx)
	if err != nil {
		return nil, err
	}
	tenant, id, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	changed, err := s.Webhooks.Change(ctx, edge.ExchangeOf(ctx).Request(once), tenant, id, webhooks.ChangeWebhook{URL: in.Body.URL, Events: in.Body.Events, Status: in.Body.Status})
	if err != nil {
		return nil, err
	}
	return &shownWebhook{Body: webhookOf(&changed)}, nil
}

type removeWebhookRequest struct {
	WebhookPath
	Idempotent
}

func (s *tenantsHandlers) removeWebhook(ctx context.Context, in *removeWebhookRequest) (*struct{}, error) {
	once, err := once(ctx)
	if err != nil {
		return nil, err
	}
	tenant, id, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	return &struct{}{}, s.Webhooks.Remove(ctx, edge.ExchangeOf(ctx).Request(once), tenant, id)
}

type rotateWebhookRequest struct {
	WebhookPath
	Idempotent
	Body *struct {
		OverlapSeconds *int64 `json:"overlapSeconds,omitempty" minimum:"0" maximum:"604800" doc:"How long the earlier secrets stay valid (default 86400); 0 ends them at once."`
	} `nameHint:"WebhookRotation"`
}

// webhookOverlap is the overlap of a rotation that names none.
const webhookOverlap = 24 * time.Hour

func (s *tenantsHandlers) rotateWebhook(ctx context.Context, in *rotateWebhookRequest) (*webhookAnswer, error) {
	once, err := once(ctx)
	if err != nil {
		return nil, err
	}
	tenant, id, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	overlap := webhookOverlap
	if in.Body != nil && in.Body.OverlapSeconds != nil {
		overlap = time.Duration(*in.Body.OverlapSeconds) * time.Second
	}
	return webhookAnswerOf(s.Webhooks.Rotate(ctx, edge.ExchangeOf(ctx).Request(once), tenant, id, overlap))
}

type webhookPositions struct {
	After events.Position `json:"after" doc:"Events behind this position are sent again …"`
	UpTo  events.Position `json:"upTo" doc:"… up to this one."`
}

type replayWebhookRequest struct {
	WebhookPath
	Idempotent
	Body struct {
		From string `json:"from" format:"date-time" doc:"Recorded from this time on."`
		To   string `json:"to" format:"date-time" doc:"Recorded before this time."`
	} `nameHint:"WebhookReplay"`
}

type replayedWebhook struct{ Body webhookPositions }

func (s *tenantsHandlers) replayWebhook(ctx context.Context, in *replayWebhookRequest) (*replayedWebhook, error) {
	once, err := once(ctx)
	if err != nil {
		return nil, err
	}
	tenant, id, err := in.find(ctx, s)
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
	replayed, err := s.Webhooks.ReplayRange(ctx, edge.ExchangeOf(ctx).Request(once), tenant, id, from, to)
	return &replayedWebhook{webhookPositions{replayed.After, replayed.UpTo}}, err
}
