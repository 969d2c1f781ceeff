package catalogue

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/http/api"
)

// defined is a noun that a PUT defines under its key. The file of the noun has its path, the form of its body, and its rules.
type defined[T any] struct {
	of   commands.Entity
	key  func(*T) *string
	put  func(context.Context, commands.Request, T) (T, bool, error)
	get  func(context.Context, string) (*T, error)
	list func(context.Context, commands.Page) ([]T, error)
}

// definedAnswer has status 201 for a new noun, else 200.
type definedAnswer[T any] struct {
	Status int
	ETag   string `header:"ETag" doc:"Of a read: the tag of this state, for If-Match."`
	Body   T
}

func (d defined[T]) ref(key string) commands.Ref { return commands.Ref{Of: d.of, ID: key} }

// define puts the noun that a body describes.
func (d defined[T]) define(ctx context.Context, key string, body any) (*definedAnswer[T], error) {
	req, err := api.ChangeOf(ctx, d.ref(key))
	if err != nil {
		return nil, err
	}
	value, err := as[T](body)
	if err != nil {
		return nil, err
	}
	*d.key(&value) = key
	value, created, err := d.put(ctx, req, value)
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return &definedAnswer[T]{Status: status, Body: value}, err
}

// read answers the noun with a key, or the refusal none if it is absent.
func (d defined[T]) read(ctx context.Context, s *handlers, key string, none *domain.Error) (*definedAnswer[T], error) {
	tag, err := s.TagOf(ctx, d.ref(key))
	if err != nil {
		return nil, err
	}
	value, err := d.get(ctx, key)
	if err != nil {
		return nil, err
	}
	if value == nil {
		return nil, none
	}
	return &definedAnswer[T]{http.StatusOK, tag, *value}, nil
}

// page answers a page of all values, by key.
func (d defined[T]) page(ctx context.Context, p api.Paging) (*api.Listed[T], error) {
	return api.ListCatalogue(api.List{string(d.of) + "s"}, p, func(p commands.Page) ([]T, error) { return d.list(ctx, p) },
		func(v *T) string { return *d.key(v) })
}

// as returns the body of a request as the noun that it describes: its members are among those of the noun.
func as[T any](body any) (noun T, err error) {
	text, err := json.Marshal(body)
	if err == nil {
		err = json.Unmarshal(text, &noun)
	}
	return noun, err
}
