// Package api is the frame of the HTTP API: the table of operations and their OpenAPI document, and the shared parts of handlers: pages,
// conditions, idempotency, long answers and errors. The packages beside it have the operations, by subject.
package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
	"github.com/meterplex/meterplex/http/problem"
	"github.com/meterplex/meterplex/http/shape"
)

// Site is the router together with its OpenAPI document and the route table: an operation
// cannot be served without being documented, and neither without its kind of caller.
type Site struct {
	*Service
	Router   *chi.Mux
	API      huma.API
	routes   []*auth.Route
	Declared map[string]*auth.Route // by name
	Faults   []error
}

func newSite(s *Service) *Site {
	t := &Site{Service: s, Router: chi.NewMux(), Declared: map[string]*auth.Route{}}
	t.Router.Use(middleware.GetHead)
	t.Router.NotFound(t.Edge.NotFound)
	t.Router.MethodNotAllowed(t.methodNotAllowed)
	t.API = huma.NewAPI(huma.Config{
		OpenAPI: description(),
		Formats: map[string]huma.Format{
			MediaJSON: jsonFormat(),
			"json":    jsonFormat(), // by type suffix, for problem+json
		},
		DefaultFormat: MediaJSON,
		Transformers:  []huma.Transformer{t.asProblem},
	}, t)
	return t
}

// jsonFormat is huma's format without errors of the connection: huma panics at each error, and a client may leave during its answer.
func jsonFormat() huma.Format {
	format := huma.DefaultJSONFormat
	format.Marshal = func(w io.Writer, value any) error { return huma.DefaultJSONFormat.Marshal(toClient{w}, value) }
	return format
}

// toClient writes to a client that may have left.
type toClient struct{ io.Writer }

func (w toClient) Write(b []byte) (int, error) {
	_, _ = w.Writer.Write(b)
	return len(b), nil
}

// Handle makes site the adapter for huma's operations.
func (t *Site) Handle(op *huma.Operation, next func(huma.Context)) {
	body := shape.NewBody(op, t.API.OpenAPI().Components.Schemas)
	t.mount(op, body, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next(&humaExchange{underHuma: humachi.NewContext(op, r, w)})
	}))
}

// ServeHTTP completes huma's adapter interface. It is never called: the edge serves.
func (t *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) { t.Router.ServeHTTP(w, r) }

// mount serves an operation behind its guard. body is nil if the operation has no body or
// reads it itself.
func (t *Site) mount(op *huma.Operation, body *shape.Body, next http.Handler) {
	route := t.Declared[op.Method+" "+op.Path]
	if route == nil {
		t.Faults = append(t.Faults,
			fmt.Errorf("the operation %s %s is not in the route table: register it by Serve, ServeRaw or ServePlain", op.Method, op.Path))
		return
	}
	handler := t.withAmounts(op, func() http.Handler { return t.Edge.Guard(route, shape.NewQuery(op), body, next) })
	if t.Compresses(op, route) {
		handler = t.Compressed(handler)
	}
	t.Router.Method(op.Method, op.Path, handler)
}

// finish returns the errors of the operations and completes the OpenAPI document.
func (t *Site) finish() error {
	tidy(t.API.OpenAPI())
	t.Faults = append(t.Faults, DescribeMembers(t.API.OpenAPI()), addExamples(t.API.OpenAPI()))
	jsonFirst(t.API.OpenAPI())
	return errors.Join(t.Faults...)
}

// Operation holds the fields of an operation that its handler's file sets.
type Operation struct {
	Method, Path string
	Who          auth.Who
	Scopes       []string // of which a key needs one
	Ingest       bool     // see Route
	Objective    string   // see Route
	ID           string
	Summary      string
	Description  string
	Tag          string
	Reasoned     bool  // see Route
	Status       int   // of success
	Also         int   // another status of success, with the same body
	Problems     []int // statuses beside those that every operation has, and every change with an Idempotency-Key
}

// Serve registers a typed operation: In and Out are documented from the tags that also
// encode and decode them. shape validates instead of huma, which matches names without
// regard to case and reports errors in Go's terms.
func Serve[In, Out any](t *Site, o Operation, handle func(context.Context, *In) (*Out, error)) {
	ServeStream(t, o, func(*huma.Operation, Schemas) {}, handle)
}

// ServeStream is serve for an Out whose Body is a function that writes the answer: complete documents it.
func ServeStream[In, Out any](t *Site, o Operation, complete func(*huma.Operation, Schemas),
	handle func(context.Context, *In) (*Out, error)) {
	if _, once := reflect.TypeFor[In]().FieldByName("Idempotent"); once {
		o.Problems = append([]int{http.StatusConflict, http.StatusUnprocessableEntity}, o.Problems...)
	}
	op := t.describe(o)
	complete(&op, Schemas{t.API.OpenAPI().Components.Schemas})
	op.SkipValidateBody, op.SkipValidateParams = true, true
	op.MaxBodyBytes, op.BodyReadTimeout = -1, -1
	huma.Register(t.API, op, func(ctx context.Context, in *In) (*Out, error) {
		out, err := handle(ctx, in)
		if err != nil {
			return nil, t.Edge.Problem(ctx, err)
		}
		return out, nil
	})
	if o.Also != 0 {
		op.Responses[strconv.Itoa(o.Also)] = &huma.Response{
			Description: http.StatusText(o.Also), Content: op.Responses[strconv.Itoa(max(o.Status, http.StatusOK))].Content}
	}
}

// ServeWriter is Serve for an answer that its handler writes itself: long, or in several media types. complete documents it.
func ServeWriter[In any](t *Site, o Operation, complete func(*huma.Operation, Schemas),
	handle func(http.ResponseWriter, *http.Request, *In) error) {
	type written struct{ Body func(huma.Context) }
	ServeStream(t, o, complete, func(ctx context.Context, in *In) (*written, error) {
		return &written{func(c huma.Context) {
			x := edge.ExchangeOf(ctx)
			if err := handle(c.BodyWriter().(http.ResponseWriter), x.From.WithContext(ctx), in); err != nil {
				x.Refused = t.Edge.Problem(ctx, err) // guard writes it
			}
		}}, nil
	})
}

// ServeRaw registers an operation that reads and writes its own bodies, for paths on
// which reflection would cost more than the work.
func (t *Site) ServeRaw(o Operation, complete func(*huma.Operation, Schemas), handle func(http.ResponseWriter, *http.Request) error) {
	op := t.describe(o)
	complete(&op, Schemas{t.API.OpenAPI().Components.Schemas})
	t.API.OpenAPI().AddOperation(&op)
	t.mount(&op, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := handle(w, r); err != nil {
			edge.ExchangeOf(r.Context()).Refused = t.Edge.Problem(r.Context(), err) // guard writes it
		}
	}))
}

// ServePlain registers a page that is not part of the OpenAPI document.
func (t *Site) ServePlain(o Operation, handler http.Handler, params ...*huma.Param) {
	t.declare(o)
	t.mount(&huma.Operation{Method: o.Method, Path: o.Path, Parameters: params}, nil, handler)
}

// Schemas returns the schema of a Go type.
type Schemas struct{ huma.Registry }

func (s Schemas) Of(v any) *huma.Schema { return s.Schema(reflect.TypeOf(v), true, "") }

// ItemSchema is the extension of a media type with the schema of each of its items.
const ItemSchema = "x-item-schema"

// Stream documents a body of many items, as text: generated clients cannot decode it as one object.
func (s Schemas) Stream(media string, item any) *huma.MediaType {
	text := &huma.Schema{Type: huma.TypeString,
		Description: "Each line of NDJSON, or each data field of an event, is one item: x-item-schema.",
		Extensions:  map[string]any{"contentMediaType": media}}
	return &huma.MediaType{Schema: text, Extensions: map[string]any{ItemSchema: s.Of(item)}}
}

// underHuma renames huma.Context: embedded under its own name, the field would hide the
// method Context.
type underHuma huma.Context

// humaExchange is one request as huma sees it. It lets asProblem change the status that
// huma writes.
type humaExchange struct {
	underHuma
	status int
}

// Header hides Accept: there is one format, and huma would read our format names as media
// types.
func (x *humaExchange) Header(name string) string {
	if name == "Accept" {
		return ""
	}
	return x.underHuma.Header(name)
}

// SetStatus is called after the transformers have seen the answer.
func (x *humaExchange) SetStatus(code int) {
	if x.status != 0 {
		code = x.status
	}
	x.underHuma.SetStatus(code)
}

// asProblem completes the problems of our handlers and converts huma's own errors to
// ours. The guard has already made huma's checks.
func (t *Site) asProblem(ctx huma.Context, _ string, v any) (any, error) {
	p, ours := v.(*problem.Problem)
	if model, theirs := v.(*huma.ErrorModel); theirs {
		code := "malformed_request"
		if model.Status >= http.StatusInternalServerError {
			code = "internal"
		}
		p = problem.New(code, "The request cannot be read")
	} else if !ours {
		return v, nil
	}
	if x, ok := ctx.(*humaExchange); ok {
		x.status = p.Status
	}
	u := ctx.URL()
	return t.Edge.Complete(ctx.Context(), &u, p), nil
}

// methodNotAllowed lists the allowed methods, as RFC 9110 requires.
func (t *Site) methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	path := r.URL.RawPath
	if path == "" {
		path = r.URL.Path
	}
	var taken []string
	for _, method := range [...]string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		if !t.Router.Match(chi.NewRouteContext(), method, path) {
			continue
		}
		if taken = append(taken, method); method == http.MethodGet {
			taken = append(taken, http.MethodHead)
		}
	}
	if taken == nil {
		t.Edge.NotFound(w, r)
		return
	}
	w.Header().Set("Allow", strings.Join(taken, ", ")) // one line: many clients read only the first
	t.Edge.Refuse(w, r, problem.New("method_not_allowed", "Method not allowed; Allow lists the methods of this path"))
}

// PathValue returns a decoded path parameter: chi matches the escaped path.
func PathValue(r *http.Request, name string) string {
	v := r.PathValue(name)
	if r.URL.RawPath == "" {
		return v
	}
	if decoded, err := url.PathUnescape(v); err == nil {
		return decoded
	}
	return v
}

// Handler serves the operations.
func (t *Site) Handler() http.Handler { return t.Edge.Handle(t.Router) }
