package http

import (
	"context"
	"crypto/sha256"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
)

// Idempotent describes the header that once reads.
type Idempotent struct {
	IdempotencyKey string `header:"Idempotency-Key" minLength:"1" maxLength:"255" doc:"A repeat under the same key gives the first answer, without a secret; another request under it is 422. Once the answer is no longer kept (30 days by default), a repeat is 409 idempotency_answer_expired and changes nothing."`
}

const maxIdempotencyKey = 255

// once returns the idempotency key of the request, if it has one. Two requests are the
// same if method, path and canonical body are equal.
func once(ctx context.Context) (commands.Idempotency, error) {
	x := edge.ExchangeOf(ctx)
	values := x.From.Header["Idempotency-Key"]
	if len(values) == 0 {
		return commands.Idempotency{}, nil
	}
	if len(values) > 1 || !isIdempotencyKey(values[0]) {
		return commands.Idempotency{}, problem.New("idempotency_key_invalid", "Idempotency-Key must be there once, with 1 to 255 printable ASCII characters")
	}
	var canonical []byte
	if len(x.Body) > 0 {
		var fault *strictjson.Fault
		if canonical, fault = strictjson.Canonical(x.Body); fault != nil {
			return commands.Idempotency{}, problem.New(fault.Code, fault.Message)
		}
	}
	request := append([]byte(x.From.Method+" "+x.From.URL.EscapedPath()+"\n"), canonical...)
	return commands.Idempotency{Key: values[0], RequestHash: sha256.Sum256(request)}, nil
}

func isIdempotencyKey(key string) bool {
	for _, c := range []byte(key) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return key != "" && len(key) <= maxIdempotencyKey
}
