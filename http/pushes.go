package http

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/commands/billing"
	"github.com/meterplex/meterplex/domain/push"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
)

func (s *billingHandlers) pushOperations(t *site) {
	const path, one = prefix + "/pushes", prefix + "/pushes/{pushId}"
	gone := []int{http.StatusNotFound}
	readers, deciders := []string{commands.ScopeBilling, commands.ScopeAudit}, []string{commands.ScopeBilling}
	serve(t, operation{method: http.MethodGet, path: path, who: auth.Operator, scopes: readers, id: "listPushes", tag: "Pushes", summary: "List pushes",
		description: "Amounts that the billing provider counts. Newest first, delivered ones too.", problems: gone}, s.listPushes)
	serve(t, operation{method: http.MethodGet, path: one, who: auth.Operator, scopes: readers, id: "getPush", tag: "Pushes", summary: "Read a push",
		description: "The state of the push, and its last error in the provider's words.", problems: gone}, s.getPush)
	serve(t, operation{method: http.MethodPost, path: one + "/retry", who: auth.Operator, scopes: deciders, id: "retryPush", tag: "Pushes",
		summary: "Retry a push now", description: "Of a FAILED push, and of an UNKNOWN one within 23 hours of the attempt that may have been counted: until then the provider detects a repetition. Later, look for the identifier of the push at the provider, and resolve it.",
		problems: gone}, s.retryPush)
	serve(t, operation{method: http.MethodPost, path: one + "/resolve", who: auth.Operator, scopes: deciders, id: "resolvePush", tag: "Pushes",
		summary: "Resolve a push", description: "Of a push whose result is unknown, or that failed. delivered: the provider counts the amount, or it is billed in another way. Not delivered: the provider surely has not counted it, and it is sent again.",
		problems: gone}, s.resolvePush)
	serve(t, operation{method: http.MethodPost, path: path + "/reconcile", who: auth.Operator, scopes: deciders, id: "reconcilePushes", tag: "Pushes", status: http.StatusAccepted,
		summary:     "Compare the provider's totals with the delivered amounts",
		description: "Each day this begins by itself. A difference is the event billing.push.compared, and a metric."}, s.reconcilePushes)
}

// pushBody is a push in its wire format.
type pushBody struct {
	ID             uuid.UUID   `json:"id" format:"uuid"`
	TenantID       uuid.UUID   `json:"tenantId" format:"uuid"`
	Feature        string      `json:"feature"`
	PeriodKey      string      `json:"periodKey"`
	Snapshot       int         `json:"snapshot" doc:"Of the period, when the push was stored."`
	Amount         json.Number `json:"amount" doc:"What was due: billable less all earlier pushes; negative if less is billable."`
	Provider       string      `json:"provider" enum:"stripe" doc:"The billing provider."`
	Customer       string      `json:"customer" doc:"The provider's id of the customer."`
	Event          string      `json:"event" doc:"The event name of the provider's meter."`
	Key            string      `json:"key" doc:"The idempotency key of each attempt."`
	Identifier     string      `json:"identifier" doc:"Of the provider's event, derived from the key."`
	Timestamp      time.Time   `json:"timestamp" doc:"The time at which the provider counts the amount."`
	State          string      `json:"state" enum:"PENDING,UNKNOWN,DELIVERED,FAILED" doc:"UNKNOWN: the provider may have counted it."`
	Attempts       int         `json:"attempts" doc:"Times that it was sent."`
	StoredAt       time.Time   `json:"storedAt" doc:"Before its first attempt."`
	FirstAttemptAt *time.Time  `json:"firstAttemptAt" doc:"null: it was never sent."`
	UnknownSince   *time.Time  `json:"unknownSince" doc:"The first attempt that the provider may have counted; null: none. 23 hours later it is not sent again by itself."`
	NextAt         *time.Time  `json:"nextAt" doc:"Of the next attempt; null: none follows by itself."`
	DeliveredAt    *time.Time  `json:"deliveredAt" doc:"null: it is not delivered."`
	LastCode       *string     `json:"lastCode" doc:"The provider's code, or push_too_old or push_unknown."`
	LastError      *string     `json:"lastError" doc:"Of the last attempt, in the provider's words; null: none."`
	LastReason     *string     `json:"lastReason" doc:"The reason of an operator's last request; null: none."`
	LastActor      *string     `json:"lastActor" doc:"The key of the last request, as api_key/id; null: none."`
}

func pushOf(p *push.Push) pushBody {
	return pushBody{ID: p.ID, TenantID: p.TenantID, Feature: p.Feature, PeriodKey: p.PeriodKey, Snapshot: p.Snapshot, Amount: json.Number(p.Amount.String()),
		Provider: p.Provider, Customer: p.Customer, Event: p.Event, Key: p.Key, Identifier: p.Identifier, Timestamp: p.Timestamp.UTC(), State: p.State, Attempts: p.Attempts,
		StoredAt: p.StoredAt.UTC(), FirstAttemptAt: utc(p.FirstAttemptAt), UnknownSince: utc(p.UnknownSince), NextAt: utc(p.NextAt), DeliveredAt: utc(p.DeliveredAt),
		LastCode: textOrNull(p.Code), LastError: textOrNull(p.LastError), LastReason: textOrNull(p.LastReason), LastActor: textOrNull(p.LastActor)}
}

type pushesRequest struct {
	OfTenant
	State     string `query:"state" enum:"PENDING,UNKNOWN,DELIVERED,FAILED" doc:"Pushes in this state."`
	PeriodKey string `query:"periodKey" doc:"Pushes of this period, e.g. 2026-05 or 2026."`
	Paging
}

func (s *billingHandlers) listPushes(ctx context.Context, in *pushesRequest) (*listed[pushBody], error) {
	if in.PeriodKey != "" && !isPeriod(in.PeriodKey) {
		return nil, periodInvalid("periodKey")
	}
	l := list{"pushes", in.TenantID, in.State, in.PeriodKey}
	_, after, err := l.open(in.Cursor)
	if err != nil {
		return nil, err
	}
	q := billing.PushQuery{State: in.State, PeriodKey: in.PeriodKey, Page: commands.Page{Limit: in.Limit + 1, After: after}}
	if q.TenantID, err = s.optionalTenant(ctx, in.TenantID); err != nil {
		return nil, err
	}
	found, err := s.PushReader.Pushes(ctx, q)
	if err != nil {
		return nil, err
	}
	return &listed[pushBody]{cut(l, bodiesOf(found, pushOf), in.Limit, func(b *pushBody) string { return b.ID.String() })}, nil
}

// PushPath names a push.
type PushPath struct {
	PushID string `path:"pushId" format:"uuid"`
}

func (p *PushPath) id() (uuid.UUID, error) { return idOf(p.PushID, "push_not_found") }

type pushAnswer struct{ Body pushBody }

func (s *billingHandlers) getPush(ctx context.Context, in *struct{ PushPath }) (*pushAnswer, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	found, err := present(s.PushReader.Push(ctx, id))("push_not_found")
	if err != nil {
		return nil, err
	}
	return &pushAnswer{pushOf(found)}, nil
}

type retryPushRequest struct {
	PushPath
	Idempotent
	Body struct {
		Reason string `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, kept with the push."`
	} `nameHint:"PushRetry"`
}

func (s *billingHandlers) retryPush(ctx context.Context, in *retryPushRequest) (*pushAnswer, error) {
	once, err := once(ctx)
	if err != nil {
		return nil, err
	}
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	p, err := s.Pushes.Retry(ctx, edge.ExchangeOf(ctx).Request(once), id, in.Body.Reason)
	if err != nil {
		return nil, err
	}
	return &pushAnswer{pushOf(&p)}, nil
}

type resolvePushRequest struct {
	PushPath
	Idempotent
	Body struct {
		Delivered bool   `json:"delivered" doc:"true: the provider counts the amount; false: it surely does not."`
		Reason    string `json:"reason" minLength:"1" maxLength:"500" doc:"The reason, kept with the push, and recorded in the log if it is delivered."`
	} `nameHint:"PushResolution"`
}

func (s *billingHandlers) resolvePush(ctx context.Context, in *resolvePushRequest) (*pushAnswer, error) {
	once, err := once(ctx)
	if err != nil {
		return nil, err
	}
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	p, err := s.Pushes.Resolve(ctx, edge.ExchangeOf(ctx).Request(once), id, in.Body.Delivered, in.Body.Reason)
	if err != nil {
		return nil, err
	}
	return &pushAnswer{pushOf(&p)}, nil
}

func (s *billingHandlers) reconcilePushes(ctx context.Context, _ *struct{ Idempotent }) (*sagaAccepted, error) {
	once, err := once(ctx)
	if err != nil {
		return nil, err
	}
	saga, err := s.Pushes.Reconcile(ctx, edge.ExchangeOf(ctx).Request(once))
	if err != nil {
		return nil, err
	}
	return &sagaAccepted{prefix + "/sagas/" + saga.ID.String(), sagaOf(&saga)}, nil
}
