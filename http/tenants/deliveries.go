package tenants

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/webhooks"
	"github.com/meterplex/meterplex/domain/webhook"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/api"
	"github.com/meterplex/meterplex/http/edge"
)

// deliveryBody is a delivery of a webhook in its wire format.
type deliveryBody struct {
	ID        uuid.UUID        `json:"id" format:"uuid"`
	WebhookID uuid.UUID        `json:"webhookId" format:"uuid" doc:"The webhook that gets the event."`
	EventID   uuid.UUID        `json:"eventId" format:"uuid" doc:"Id of the event: the webhook-id of each attempt."`
	Type      string           `json:"type" doc:"Type of the event."`
	Position  *events.Position `json:"position" nullable:"true" doc:"Position of the event; null for webhook.test."`
	State     string           `json:"state" enum:"PENDING,DELIVERED,FAILED" doc:"FAILED: it is not sent again without a replay."`
	Attempts  int              `json:"attempts" doc:"Number of all attempts."`
	NextAt    *time.Time       `json:"nextAt" doc:"Time of the next attempt; null: none."`
	CreatedAt time.Time        `json:"createdAt"`
	EndedAt   *time.Time       `json:"endedAt" doc:"null while it is PENDING."`
	Last      []attemptBody    `json:"last" nullable:"false" doc:"The last 20 attempts, oldest first."`
}

// attemptBody is an attempt of a delivery in its wire format.
type attemptBody struct {
	N          int       `json:"n" doc:"Number of the attempt, from 1."`
	At         time.Time `json:"at" doc:"Begin of the request."`
	Status     *int      `json:"status" doc:"HTTP status of the answer; null: no answer."`
	DurationMS int64     `json:"durationMs" doc:"Time until the answer, or until the failure, in milliseconds."`
	Error      *string   `json:"error" doc:"Why the attempt failed; null: it succeeded."`
}

func deliveryOf(d *webhook.Delivery) deliveryBody {
	b := deliveryBody{ID: d.ID, WebhookID: d.WebhookID, EventID: d.EventID, Type: d.Type, Position: d.Position, State: d.State,
		Attempts: d.Sent, NextAt: d.NextAt,
		CreatedAt: d.CreatedAt, EndedAt: d.EndedAt, Last: make([]attemptBody, len(d.Last))}
	for i, a := range d.Last {
		b.Last[i] = attemptBody{N: a.N, At: a.At.UTC(), DurationMS: a.DurationMS, Error: api.TextOrNull(a.Error)}
		if a.Status != 0 {
			b.Last[i].Status = new(a.Status)
		}
	}
	return b
}

type deliveriesRequest struct {
	WebhookPath
	State string `query:"state" enum:"PENDING,DELIVERED,FAILED" doc:"Deliveries in this state."`
	api.Paging
}

func (s *handlers) listDeliveries(ctx context.Context, in *deliveriesRequest) (*api.Listed[deliveryBody], error) {
	tenant, id, err := in.find(ctx, s)
	if err != nil {
		return nil, err
	}
	if _, err := api.Present(s.WebhookReader.Webhook(ctx, tenant, id))("webhook_not_found"); err != nil {
		return nil, err
	}
	l := api.List{"deliveries", in.TenantID, in.WebhookID, in.State}
	return api.ListCatalogue(l, in.Paging, func(p commands.Page) ([]deliveryBody, error) {
		found, err := s.WebhookReader.Deliveries(ctx, webhooks.DeliveryQuery{WebhookID: id, State: in.State, Page: p})
		return api.BodiesOf(found, deliveryOf), err
	}, func(b *deliveryBody) string { return b.ID.String() })
}

func (s *handlers) testWebhook(ctx context.Context, in *webhookRequest) (*api.Answer[deliveryBody], error) {
	req, tenant, id, err := s.change(ctx, in)
	if err != nil {
		return nil, err
	}
	return api.AnswerAs(deliveryOf)(s.Webhooks.Test(ctx, req, tenant, id))
}

type replayDeliveryRequest struct {
	DeliveryID string `path:"deliveryId" format:"uuid"`
	api.Idempotent
}

func (s *handlers) replayDelivery(ctx context.Context, in *replayDeliveryRequest) (*api.Answer[deliveryBody], error) {
	req, id, err := api.ChangeOne(ctx, in.DeliveryID, "delivery_not_found")
	if err != nil {
		return nil, err
	}
	x := edge.ExchangeOf(ctx)
	tenant := x.Caller.TenantID
	if x.Tenant == nil {
		if tenant, err = s.WebhookReader.TenantOfDelivery(ctx, id); err != nil {
			return nil, err
		}
	}
	if tenant == uuid.Nil {
		return nil, api.Absent("delivery_not_found")
	}
	return api.AnswerAs(deliveryOf)(s.Webhooks.Replay(ctx, req, tenant, id))
}
