package http

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

// site is the router together with its OpenAPI document and the route table: an operation
// cannot be served without being documented, and neither without its kind of caller.
type site struct {
	*service
	router   *chi.Mux
	api      huma.API
	routes   []*auth.Route
	declared map[string]*auth.Route // by name
	faults   []error
}

func newSite(s *service) *site {
	t := &site{service: s, router: chi.NewMux(), declared: map[string]*auth.Route{}}
	t.router.Use(middleware.GetHead)
	t.router.NotFound(t.edge.NotFound)
	t.router.MethodNotAllowed(t.methodNotAllowed)
	t.api = huma.NewAPI(huma.Config{
		OpenAPI: description(),
		Formats: map[string]huma.Format{
			mediaJSON: jsonFormat(),
			"json":    jsonFormat(), // by type suffix, for problem+json
		},
		DefaultFormat: mediaJSON,
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
func (t *site) Handle(op *huma.Operation, next func(huma.Context)) {
	body := shape.NewBody(op, t.api.OpenAPI().Components.Schemas)
	t.mount(op, body, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next(&humaExchange{underHuma: humachi.NewContext(op, r, w)})
	}))
}

// ServeHTTP completes huma's adapter interface. It is never called: the edge serves.
func (t *site) ServeHTTP(w http.ResponseWriter, r *http.Request) { t.router.ServeHTTP(w, r) }

// mount serves an operation behind its guard. body is nil if the operation has none or
// reads it itself.
func (t *site) mount(op *huma.Operation, body *shape.Body, next http.Handler) {
	route := t.declared[op.Method+" "+op.Path]
	if route == nil {
		t.faults = append(t.faults, fmt.Errorf("the operation %s %s is not in the route table: register it by serve, serveRaw or servePlain", op.Method, op.Path))
		return
	}
	handler := t.withAmounts(op, func() http.Handler { return t.edge.Guard(route, shape.NewQuery(op), body, next) })
	t.router.Method(op.Method, op.Path, t.compressed(op, route, handler))
}

// finish returns the errors of the operations and completes the OpenAPI document.
func (t *site) finish() error {
	tidy(t.api.OpenAPI())
	t.faults = append(t.faults, describeMembers(t.api.OpenAPI()), addExamples(t.api.OpenAPI()))
	jsonFirst(t.api.OpenAPI())
	return errors.Join(t.faults...)
}

// operation holds the fields of an operation that its handler's file sets.
type operation struct {
	method, path string
	who          auth.Who
	scopes       []string // of which a key needs one
	ingest       bool     // see Route
	objective    string   // see Route
	id           string
	summary      string
	description  string
	tag          string
	reasoned     bool  // see Route
	status       int   // of success
	also         int   // another status of success, with the same body
	problems     []int // statuses beside those that every operation has, and every change with an Idempotency-Key
}

// serve registers a typed operation: In and Out are documented from the tags that also
// encode and decode them. shape validates instead of huma, which matches names without
// regard to case and reports errors in Go's terms.
func serve[In, Out any](t *site, o operation, handle func(context.Context, *In) (*Out, error)) {
	serveStream(t, o, func(*huma.Operation, schemas) {}, handle)
}

// serveStream is serve for an Out whose Body is a function that writes the answer: complete documents it.
func serveStream[In, Out any](t *site, o operation, complete func(*huma.Operation, schemas), handle func(context.Context, *In) (*Out, error)) {
	if _, once := reflect.TypeFor[In]().FieldByName("Idempotent"); once {
		o.problems = append([]int{http.StatusConflict, http.StatusUnprocessableEntity}, o.problems...)
	}
	op := t.describe(o)
	complete(&op, schemas{t.api.OpenAPI().Components.Schemas})
	op.SkipValidateBody, op.SkipValidateParams = true, true
	op.MaxBodyBytes, op.BodyReadTimeout = -1, -1
	huma.Register(t.api, op, func(ctx context.Context, in *In) (*Out, error) {
		out, err := handle(ctx, in)
		if err != nil {
			return nil, t.edge.Problem(ctx, err)
		}
		return out, nil
	})
	if o.also != 0 {
		op.Responses[strconv.Itoa(o.also)] = &huma.Response{
			Description: http.StatusText(o.also), Content: op.Responses[strconv.Itoa(max(o.status, http.StatusOK))].Content}
	}
}

// serveRaw registers an operation that reads and writes its own bodies, for paths on
// which reflection would cost more than the work.
func (t *site) serveRaw(o operation, complete func(*huma.Operation, schemas), handle func(http.ResponseWriter, *http.Request) error) {
	op := t.describe(o)
	complete(&op, schemas{t.api.OpenAPI().Components.Schemas})
	t.api.OpenAPI().AddOperation(&op)
	t.mount(&op, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := handle(w, r); err != nil {
			edge.ExchangeOf(r.Context()).Refused = t.edge.Problem(r.Context(), err) // guard writes it
		}
	}))
}

// servePlain registers a page that is not part of the OpenAPI document.
func (t *site) servePlain(o operation, handler http.Handler, params ...*huma.Param) {
	t.declare(o)
	t.mount(&huma.Operation{Method: o.method, Path: o.path, Parameters: params}, nil, handler)
}

// schemas returns the schema of a Go type.
type schemas struct{ huma.Registry }

func (s schemas) of(v any) *huma.Schema { return s.Schema(reflect.TypeOf(v), true, "") }

// itemSchema is the extension of a media type with the schema of each of its items.
const itemSchema = "x-item-schema"

// stream documents a body of many items, as text: generated clients cannot decode it as one object.
func (s schemas) stream(media string, item any) *huma.MediaType {
	text := &huma.Schema{Type: huma.TypeString, Description: "Each line of NDJSON, or each data field of an event, is one item: x-item-schema.",
		Extensions: map[string]any{"contentMediaType": media}}
	return &huma.MediaType{Schema: text, Extensions: map[string]any{itemSchema: s.of(item)}}
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
func (t *site) asProblem(ctx huma.Context, _ string, v any) (any, error) {
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
	return t.edge.Complete(ctx.Context(), &u, p), nil
}

// methodNotAllowed lists the allowed methods, as RFC 9110 requires.
func (t *site) methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	path := r.URL.RawPath
	if path == "" {
		path = r.URL.Path
	}
	var taken []string
	for _, method := range [...]string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		if !t.router.Match(chi.NewRouteContext(), method, path) {
			continue
		}
		if taken = append(taken, method); method == http.MethodGet {
			taken = append(taken, http.MethodHead)
		}
	}
	if taken == nil {
		t.edge.NotFound(w, r)
		return
	}
	w.Header().Set("Allow", strings.Join(taken, ", ")) // one line: many clients read only the first
	t.edge.Refuse(w, r, problem.New("method_not_allowed", "Method not allowed; Allow lists the methods of this path"))
}

// pathValue returns a decoded path parameter: chi matches the escaped path.
func pathValue(r *http.Request, name string) string {
	v := r.PathValue(name)
	if r.URL.RawPath == "" {
		return v
	}
	if decoded, err := url.PathUnescape(v); err == nil {
		return decoded
	}
	return v
}

// handler serves the operations.
func (t *site) handler() http.Handler { return t.edge.Handle(t.router) }
