package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/edge"
)

// Doc is an object of an answer of the API. Numbers are json.Number: their digits stay as the API wrote them.
type Doc map[string]any

// Visit is one request for a page, or one action.
type Visit struct {
	c *Console
	r *http.Request
	w http.ResponseWriter
	*visitor
	Query     url.Values     // without empty values
	asked     []Request      // requests to the API, in their order, for the equivalents
	positions []string       // at which the answers are true
	status    int            // of the page, if the API refused its main section
	tenants   []tenantChoice // of tenantList; nil: not read
}

// Request is a request to the API.
type Request struct {
	Method, Path string // the path is escaped
	Query        url.Values
	Body         map[string]any
	header       http.Header
}

// PathOf joins the segments of a path, each escaped.
func PathOf(segments ...string) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteString("/" + url.PathEscape(s))
	}
	return b.String()
}

// API joins the segments of a path of the API.
func API(segments ...string) string { return "/api/v1" + PathOf(segments...) }

// Param returns a parameter of the page's path.
func (v *Visit) Param(name string) string {
	text := v.r.PathValue(name)
	if v.r.URL.RawPath == "" {
		return text
	}
	if decoded, err := url.PathUnescape(text); err == nil {
		return decoded
	}
	return text
}

// TenantID returns the tenant of the page: the one of its path or query, or the visitor's own.
func (v *Visit) TenantID() string {
	if v.Tenant != nil {
		return v.Tenant.ID.String()
	}
	if id := v.Param("tenantId"); id != "" {
		return id
	}
	return v.Query.Get("tenantId")
}

// Get reads a resource of the API. The page shows the request as its equivalent.
func (v *Visit) Get(path string, query url.Values) (Doc, error) {
	req := Request{Method: http.MethodGet, Path: path, Query: query}
	v.asked = append(v.asked, req)
	d, err := v.Do(req)
	if position, ok := d["asOfPosition"].(string); ok && err == nil && !slices.Contains(v.positions, position) {
		v.positions = append(v.positions, position)
	}
	return d, err
}

// Preview reads the outcome that an action would have: a request of the API that changes no data. The page shows it as its equivalent.
func (v *Visit) Preview(path string, query url.Values, body map[string]any) (Doc, error) {
	req := Request{Method: http.MethodPost, Path: path, Query: query, Body: body}
	v.asked = append(v.asked, req)
	return v.Do(req)
}

// Try is get for a section of a page: a refusal is the member "problem" of its result, and the other sections are shown. Errors of the
// service itself fail the page.
func (v *Visit) Try(path string, query url.Values) (Doc, error) { return Tried(v.Get(path, query)) }

func Tried(d Doc, err error) (Doc, error) {
	if refused := (*Refusal)(nil); errors.As(err, &refused) && refused.Status < http.StatusInternalServerError {
		return Doc{"problem": refused}, nil
	}
	return d, err
}

// Main is try for the section that the page is about: the page has the status of its refusal, and its form is shown again.
func (v *Visit) Main(path string, query url.Values) (Doc, error) { return v.MainOf(v.Get(path, query)) }

// MainOf is main for an answer.
func (v *Visit) MainOf(d Doc, err error) (Doc, error) {
	d, err = Tried(d, err)
	if refused, ok := d["problem"].(*Refusal); ok {
		v.status = refused.Status
	}
	return d, err
}

// All reads several sections, named as in the page's data: each is a path of the API with its query.
func (v *Visit) All(sections map[string]Section) (Doc, error) {
	names := make([]string, 0, len(sections))
	for name := range sections {
		names = append(names, name)
	}
	slices.Sort(names) // the equivalents have one order
	data := Doc{}
	for _, name := range names {
		d, err := v.Try(sections[name].Path, sections[name].Query)
		if err != nil {
			return nil, err
		}
		data[name] = d
	}
	return data, nil
}

// Section is a read of the API.
type Section struct {
	Path  string
	Query url.Values
}

// Followed reads a stream of the API that ends: server-sent events, each with an object.
func (v *Visit) Followed(path string, query url.Values) ([]any, error) {
	req := Request{Method: http.MethodGet, Path: path, Query: query}
	v.asked = append(v.asked, req)
	answer, err := v.send(req)
	if err != nil {
		return nil, err
	}
	all := []any{}
	for line := range strings.Lines(answer.body.String()) {
		data, isData := strings.CutPrefix(line, "data:")
		if !isData {
			continue
		}
		d, err := Decode(strings.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("decode the answer of GET %s: %w", path, err)
		}
		all = append(all, map[string]any(d))
	}
	return all, nil
}

// Decode reads an object of the API.
func Decode(from io.Reader) (d Doc, err error) {
	decoder := json.NewDecoder(from)
	decoder.UseNumber()
	return d, decoder.Decode(&d)
}

// Do sends a request to the API. Its answer is an object, or a refusal as the error.
func (v *Visit) Do(req Request) (Doc, error) {
	answer, err := v.send(req)
	if err != nil {
		return nil, err
	}
	if answer.status == http.StatusNoContent || answer.body.Len() == 0 {
		return Doc{}, nil
	}
	d, err := Decode(&answer.body)
	if err != nil {
		return nil, fmt.Errorf("decode the answer of %s %s: %w", req.Method, req.Path, err)
	}
	if tag := answer.header.Get("ETag"); tag != "" {
		d["etag"] = tag
	}
	return d, nil
}

// send sends a request to the API. Its answer has a status below 400.
func (v *Visit) send(req Request) (*answer, error) {
	out := &answer{header: http.Header{}}
	r, err := v.requestOf(req)
	if err != nil {
		return nil, err
	}
	v.c.API.ServeHTTP(out, r)
	if out.status >= http.StatusBadRequest {
		return nil, refusalIn(out.status, out.body.Bytes())
	}
	return out, nil
}

// requestOf makes the request with the session's key, and with the ids of the page's request, so that log and traces show one trace.
func (v *Visit) requestOf(req Request) (*http.Request, error) {
	var body io.Reader
	if req.Body != nil {
		encoded, err := json.Marshal(req.Body)
		if err != nil {
			return nil, fmt.Errorf("encode the body of %s %s: %w", req.Method, req.Path, err)
		}
		body = bytes.NewReader(encoded)
	}
	target := req.Path
	if len(req.Query) > 0 {
		target += "?" + req.Query.Encode()
	}
	r, err := http.NewRequestWithContext(auth.WithKey(v.r.Context(), v.keyHash), req.Method, target, body)
	if err != nil {
		return nil, fmt.Errorf("make the request %s %s: %w", req.Method, req.Path, err)
	}
	r.RequestURI, r.RemoteAddr, r.Host = target, v.r.RemoteAddr, v.r.Host
	for name, values := range req.header {
		r.Header[name] = values
	}
	if req.Body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	x := edge.ExchangeOf(v.r.Context())
	r.Header.Set("X-Request-Id", x.ID)
	r.Header.Set("Traceparent", "00-"+x.TraceID()+"-"+x.TraceID()[:16]+"-00")
	return r, nil
}

// answer records an answer of the API.
type answer struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}

// SetReadDeadline and SetWriteDeadline complete what http.ResponseController needs: there is no connection.
func (a *answer) SetReadDeadline(time.Time) error  { return nil }
func (a *answer) SetWriteDeadline(time.Time) error { return nil }

// Flush completes http.Flusher.
func (a *answer) Flush() {}

// Perhaps is try for a resource that may not exist: its request is an equivalent only if it does, and the result is nil if it does not.
func (v *Visit) Perhaps(path string, query url.Values) (Doc, error) {
	asked := v.asked
	found, err := v.Try(path, query)
	if refused, _ := found["problem"].(*Refusal); refused != nil && refused.Status == http.StatusNotFound {
		v.asked = asked // the command would fail
		return nil, nil
	}
	return found, err
}

// Choice lists tenants, one of which the page needs.
func (v *Visit) Choice() (Doc, error) {
	tenants, err := v.Try(API("tenants"), Limited(50, nil))
	return Doc{"tenants": tenants}, err
}

// TrueAt adds a position at which the page is true.
func (v *Visit) TrueAt(position string) { v.positions = append(v.positions, position) }

// Now is the time of the console.
func (v *Visit) Now() time.Time { return v.c.Now() }

// Has reports whether the API has an operation.
func (v *Visit) Has(operation string) bool { return v.c.Operation(operation) != nil }

// Raw reads a resource of the API as it is.
func (v *Visit) Raw(path string, query url.Values) ([]byte, error) {
	v.asked = append(v.asked, Request{Method: http.MethodGet, Path: path, Query: query})
	return v.Unseen(path, query)
}

// Unseen is raw for a read that the page does not show as its equivalent.
func (v *Visit) Unseen(path string, query url.Values) ([]byte, error) {
	answer, err := v.send(Request{Method: http.MethodGet, Path: path, Query: query})
	if err != nil {
		return nil, err
	}
	return answer.body.Bytes(), nil
}
