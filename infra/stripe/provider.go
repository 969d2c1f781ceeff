// Package stripe sends pushes to Stripe as meter events and reads Stripe's totals. It reports each answer, and must not store, repeat or
// resolve a push. The secret key is in the requests only: no log, result or error holds it.
package stripe

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	stripego "github.com/stripe/stripe-go/v84"

	"github.com/meterplex/meterplex/domain/push"
	"github.com/meterplex/meterplex/events"
)

// DefaultURL is the address of Stripe's API.
const DefaultURL = stripego.APIURL

// requestTimeout bounds one request with its answer. It is below the lease of a saga's step.
const requestTimeout = 20 * time.Second

// Bounds of Stripe's API.
const (
	maxKey        = 255
	maxIdentifier = 100
	maxEventName  = 100
)

// Provider is a connection to one Stripe account. It is safe for concurrent use.
type Provider struct {
	backend   stripego.Backend
	transport *transport
	key       func() string // a function, so that no formatting of a Provider shows the key
	logger    *slog.Logger
	// Attempt begins the span of a request that delivers an event, and returns the function that ends it with the status of the answer; 0:
	// no answer. Nil: without traces.
	Attempt func(ctx context.Context, name string, of events.TracedEvent) (context.Context, func(status int))

	mu     sync.Mutex
	meters map[string]meter // by the name of their event
	readAt time.Time        // of meters
	now    func() time.Time
}

// New returns a provider for the account of a secret key. An empty url means Stripe's own.
func New(key, url string, logger *slog.Logger) *Provider {
	if url == "" {
		url = DefaultURL
	}
	transport := newTransport()
	return &Provider{
		// A repeat is a decision of the caller, who stores each attempt before it is made: stripe-go makes none of its own.
		backend: stripego.GetBackendWithConfig(stripego.APIBackend, &stripego.BackendConfig{
			URL: stripego.String(url), HTTPClient: transport.client(),
			MaxNetworkRetries: stripego.Int64(0), EnableTelemetry: stripego.Bool(false),
			LeveledLogger: &stripego.LeveledLogger{Level: stripego.LevelNull},
		}),
		transport: transport, key: func() string { return key }, logger: logger, now: time.Now,
	}
}

// Close closes idle connections.
func (p *Provider) Close() { p.transport.base.CloseIdleConnections() }

// meterEvent is the part of Stripe's answer that proves that the push was counted.
type meterEvent struct {
	stripego.APIResource
	Identifier string `json:"identifier"`
}

// Send posts a push as a meter event, once. Its identifier is the push's in each attempt, and its idempotency key until Stripe refuses it,
// so that Stripe counts one of them. Its traceparent is that of the event that closed the period.
func (p *Provider) Send(ctx context.Context, due push.Push, of events.TracedEvent) push.Result {
	if reason := unfit(due); reason != "" {
		return push.Result{Outcome: push.Refused, Code: codeInvalid, Reason: reason}
	}
	end := func(int) {}
	if p.Attempt != nil {
		ctx, end = p.Attempt(ctx, "send push", of)
	}
	ctx, x, cancel := begin(ctx)
	defer cancel()
	var event meterEvent
	err := p.backend.Call(http.MethodPost, "/v1/billing/meter_events", p.key(), &stripego.BillingMeterEventCreateParams{
		Params:     stripego.Params{Context: ctx, IdempotencyKey: stripego.String(due.RequestKey()), Headers: traceHeader(of)},
		EventName:  stripego.String(due.Event),
		Identifier: stripego.String(due.Identifier),
		Timestamp:  stripego.Int64(due.Timestamp.Unix()),
		Payload:    map[string]string{"stripe_customer_id": due.Customer, "value": due.Amount.String()},
	}, &event)
	end(x.status)
	result := x.result(due.Identifier, event.Identifier, err)
	// The tenant reads the reason, but not its customer.
	result.Code, result.Reason = p.codeCleaned(result.Code), p.clean(result.Reason, maxReason, due.Customer)
	p.logger.LogAttrs(ctx, slog.LevelDebug, "stripe: meter event", slog.String("identifier", due.Identifier),
		slog.String("outcome", string(result.Outcome)),
		slog.Int("status", x.status), slog.String("code", result.Code), slog.String("request", p.clean(x.requestID, maxCode)))
	return result
}

func traceHeader(of events.TracedEvent) http.Header {
	parent := of.TraceParent()
	if parent == "" {
		return nil
	}
	return http.Header{http.CanonicalHeaderKey(events.HeaderTrace): {parent}}
}

// unfit returns why Stripe's API cannot carry a push, or "".
func unfit(due push.Push) string {
	switch {
	case due.Amount == nil:
		return "the push has no amount"
	case due.Customer == "":
		return "the push has no customer"
	case due.Event == "" || len(due.Event) > maxEventName:
		return fmt.Sprintf("the event name has %d characters, Stripe accepts 1 to %d", len(due.Event), maxEventName)
	case due.Identifier == "" || len(due.Identifier) > maxIdentifier:
		return fmt.Sprintf("the identifier has %d characters, Stripe accepts 1 to %d", len(due.Identifier), maxIdentifier)
	case strings.TrimSpace(due.Key) == "" || len(due.RequestKey()) > maxKey:
		return fmt.Sprintf("the idempotency key has %d characters, Stripe accepts 1 to %d", len(due.RequestKey()), maxKey)
	}
	return ""
}
