package edge

import (
	"context"
	"encoding/hex"
	"net/http"
	"net/url"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/events"
	"github.com/meterplex/meterplex/http/admission"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/problem"
)

// Exchange holds the data of one request beside the request itself.
type Exchange struct {
	ID     string      // X-Request-Id
	trace  uuid.UUID   // the 16 bytes of the trace id; also the correlation id of the events
	route  *auth.Route // nil until the request is routed
	Caller commands.Caller
	Tenant *domain.Tenant // for a tenant key
	Body   []byte         // read, decompressed and checked to be JSON
	From   *http.Request
	reason string // of the header Meterplex-Reason
	// arrived is set when the whole body has been read: a refusal does not wait for the rest then.
	arrived bool
	charge  admission.Charge    // of the request's memory
	rows    int64               // of the charge: the page that is read, until it is encoded
	slot    slot                // among the requests in flight
	tenant  *admission.Tenant   // what the caller's tenant holds; nil for operators
	to      http.ResponseWriter // the connection's
	on      *connection         // nil in unit tests
	kept    bool                // whether on is kept open for the request
	keeps   *admission.Counter  // the kept connections of its tenant; nil: of operators
	answer  *answer
	// uncharged is its entry among the requests without a charge; nil over HTTP/1.
	uncharged *SlowRequest
	// Refused is the problem of a handler that writes its own answers, if it is not written
	// yet.
	Refused *problem.Problem
	// Uncounted is set if the client decides on the answer or its time, such as by a position that it waits for: no SLO counts it.
	Uncounted bool
}

// release returns the memory, the slot and the connection of a request.
func (x *Exchange) release() {
	x.slot.release()
	x.charge.Close()
	x.leave()
}

type exchangeKey struct{}

// WithExchange returns a context that holds an exchange.
func WithExchange(ctx context.Context, x *Exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, x)
}

// ExchangeOf returns the exchange that edge has put into every request's context.
func ExchangeOf(ctx context.Context) *Exchange {
	x, _ := ctx.Value(exchangeKey{}).(*Exchange)
	if x == nil {
		return &Exchange{}
	}
	return x
}

// AdmissionOf returns the admission of a context's request; the zero value without a request.
func AdmissionOf(ctx context.Context) commands.Admission { return ExchangeOf(ctx).Caller.Admission }

// TenantOf returns the tenant whose key the request of a context has; Nil: the request has another key, or there is none.
func TenantOf(ctx context.Context) uuid.UUID { return ExchangeOf(ctx).Caller.TenantID }

// Request returns the origin of a change that the request makes.
func (x *Exchange) Request(once commands.Idempotency) commands.Request {
	return commands.Request{By: x.Caller, Idempotency: once, Reason: x.reason}
}

// TraceID is the trace id in hexadecimal digits.
func (x *Exchange) TraceID() string { return hex.EncodeToString(x.trace[:]) }

// newExchange uses the client's ids if they are valid, else fresh.
func newExchange(r *http.Request, fresh uuid.UUID) *Exchange {
	x := &Exchange{ID: r.Header.Get("X-Request-Id"), From: r}
	if !isRequestID(x.ID) {
		x.ID = fresh.String()
	}
	var ok bool
	if x.trace, ok = traceOf(r.Header["Traceparent"]); !ok {
		x.trace = fresh
	}
	return x
}

// maxRequestID bounds the client's id, which answers and logs repeat.
const maxRequestID = 128

func isRequestID(id string) bool {
	for _, c := range []byte(id) {
		if !isAlphanumeric(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return id != "" && len(id) <= maxRequestID
}

func isAlphanumeric(c byte) bool {
	return c-'0' <= 9 || c-'a' <= 'z'-'a' || c-'A' <= 'Z'-'A'
}

// traceOf reads the trace id of a traceparent header. A malformed or repeated header is ignored, as W3C Trace Context requires.
func traceOf(values []string) (trace uuid.UUID, ok bool) {
	if len(values) != 1 {
		return trace, false
	}
	trace, _, ok = events.ParseTraceParent(values[0])
	return trace, ok
}

// HeaderReason is the header that holds the reason of a change, percent-encoded UTF-8. The event of the change holds it if its body names
// no reason.
const HeaderReason = "Meterplex-Reason"

// reasonOf reads the values of HeaderReason.
func reasonOf(values []string) (string, *problem.Problem) {
	reason, err := url.PathUnescape(values[0])
	if err != nil || len(values) > 1 || domain.CheckReason(reason) != nil {
		return "", problem.New("reason_invalid",
			HeaderReason+" must be there once, with 1 to 500 characters in UTF-8, percent-encoded, without control characters")
	}
	return reason, nil
}
