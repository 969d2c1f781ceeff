package api

import (
	"context"
	"crypto/sha256"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
)

// Idempotent describes the header that once reads.
type Idempotent struct {
	IdempotencyKey string `header:"Idempotency-Key" minLength:"1" maxLength:"255"`
}

// Conditional describes the header If-Match of a change.
type Conditional struct {
	IfMatch string `header:"If-Match"`
}

// Creating describes the header If-None-Match of a request that creates an entity or replaces it.
type Creating struct {
	IfNoneMatch string `header:"If-None-Match" doc:"The value * only creates the entity: 409 state_changed if it exists."`
}

const maxIdempotencyKey = 255

// ChangeOf returns the request of a change of an entity, with its Idempotency-Key and the state that it requires.
func ChangeOf(ctx context.Context, of commands.Ref) (commands.Request, error) {
	x := edge.ExchangeOf(ctx)
	once, err := Idempotency(x)
	if err != nil {
		return commands.Request{}, err
	}
	req := x.Request(once)
	match, none := x.From.Header["If-Match"], x.From.Header["If-None-Match"]
	tags, err := EntityTags(match)
	if err != nil {
		return req, err
	}
	if len(none) > 0 && (len(none) > 1 || none[0] != "*") {
		return req, problem.New("header_invalid", "If-None-Match of a change has to be *, which only creates an entity")
	}
	if len(match) > 0 || len(none) > 0 {
		req.If = &commands.Condition{Ref: of, Tags: tags, Present: len(match) > 0, Absent: len(none) > 0}
	}
	return req, nil
}

// TagOf returns the entity tag of an entity. Read it before the entity, so that it is never newer.
func (s *Service) TagOf(ctx context.Context, of commands.Ref) (string, error) {
	version, err := s.Reader.Version(ctx, of)
	return of.Tag(version), err
}

// Once returns the request of a change that compares no state, with its Idempotency-Key. It refuses a caller who requires a state: without
// the comparison the change would replace a state that the caller did not see.
func Once(ctx context.Context) (commands.Request, error) {
	x := edge.ExchangeOf(ctx)
	for _, name := range []string{"If-Match", "If-None-Match"} {
		if len(x.From.Header[name]) > 0 {
			return commands.Request{}, problem.New("header_invalid", "This change compares no state: send it without "+name)
		}
	}
	once, err := Idempotency(x)
	return x.Request(once), err
}

// ChangeOne returns the request of a change of the object that a path names, and its id; code is the refusal of a text that is no id.
func ChangeOne(ctx context.Context, named, code string) (commands.Request, uuid.UUID, error) {
	req, err := Once(ctx)
	if err != nil {
		return req, uuid.Nil, err
	}
	id, err := IDOf(named, code)
	return req, id, err
}

// Idempotency returns the idempotency key of the request, if it has one. Two requests are the
// same if method, path and canonical body are equal.
func Idempotency(x *edge.Exchange) (commands.Idempotency, error) {
	values := x.From.Header["Idempotency-Key"]
	if len(values) == 0 {
		return commands.Idempotency{}, nil
	}
	if len(values) > 1 || !isIdempotencyKey(values[0]) {
		return commands.Idempotency{}, problem.New("idempotency_key_invalid",
			"Idempotency-Key must be there once, with 1 to 255 printable ASCII characters")
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
