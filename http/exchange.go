package http

import (
	"context"
	"encoding/hex"
	nethttp "net/http"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
)

// exchange holds the data of one request beside the request itself.
type exchange struct {
	id     string    // X-Request-Id
	trace  uuid.UUID // the 16 bytes of the trace id; also the correlation id of the events
	route  *Route    // nil until the request is routed
	caller commands.Caller
	tenant *domain.Tenant // for a tenant key
	body   []byte         // read, decompressed and checked to be JSON
	from   *nethttp.Request
	charge charge                 // of the request's memory
	to     nethttp.ResponseWriter // the connection's
	// refused is the problem of a handler that writes its own answers, if it is not written
	// yet.
	refused *Problem
}

type exchangeKey struct{}

// withExchange returns a context that holds an exchange.
func withExchange(ctx context.Context, x *exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, x)
}

// exchangeOf returns the exchange that edge has put into every request's context.
func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	if x == nil {
		return &exchange{}
	}
	return x
}

func (x *exchange) traceID() string { return hex.EncodeToString(x.trace[:]) }

// newExchange uses the client's ids if they are valid, else fresh.
func newExchange(r *nethttp.Request, fresh uuid.UUID) *exchange {
	x := &exchange{id: r.Header.Get("X-Request-Id"), from: r}
	if !isRequestID(x.id) {
		x.id = fresh.String()
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
		if alphanumeric := c-'0' <= 9 || c-'a' <= 'z'-'a' || c-'A' <= 'Z'-'A'; !alphanumeric && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return id != "" && len(id) <= maxRequestID
}

// traceOf reads the trace id of a traceparent header (W3C Trace Context, section 3.2). A
// malformed header is ignored, as the standard requires.
func traceOf(values []string) (trace uuid.UUID, ok bool) {
	if len(values) != 1 {
		return trace, false
	}
	v := values[0]
	if len(v) != 55 || v[2] != '-' || v[35] != '-' || v[52] != '-' || v[:2] == "ff" {
		return trace, false
	}
	for _, part := range [...]string{v[:2], v[3:35], v[36:52], v[53:]} {
		if !isLowerHex(part) {
			return trace, false
		}
	}
	if _, err := hex.Decode(trace[:], []byte(v[3:35])); err != nil {
		return trace, false
	}
	return trace, trace != uuid.Nil && v[36:52] != "0000000000000000"
}

func isLowerHex(s string) bool {
	for _, c := range []byte(s) {
		if c-'0' > 9 && c-'a' > 'f'-'a' {
			return false
		}
	}
	return true
}
