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

// doc is an object of an answer of the API. Numbers are json.Number: their digits stay as the API wrote them.
type doc map[string]any

// visit is one request for a page, or one action.
type visit struct {
	c *Console
	r *http.Request
	w http.ResponseWriter
	*visitor
	query     url.Values // without empty values
	asked     []request  // requests to the API, in their order, for the equivalents
	positions []string   // at which the answers are true
	status    int        // of the page, if the API refused its main section
}

// request is a request to the API.
type request struct {
	Method, Path string // the path is escaped
	Query        url.Values
	Body         map[string]any
	header       http.Header
}

// pathOf joins the segments of a path, each escaped.
func pathOf(segments ...string) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteString("/" + url.PathEscape(s))
	}
	return b.String()
}

// api joins the segments of a path of the API.
func api(segments ...string) string { return "/api/v1" + pathOf(segments...) }

// param returns a parameter of the page's path.
func (v *visit) param(name string) string {
	text := v.r.PathValue(name)
	if v.r.URL.RawPath == "" {
		return text
	}
	if decoded, err := url.PathUnescape(text); err == nil {
		return decoded
	}
	return text
}

// tenantID returns the tenant of the page: the one of its path or query, or the visitor's own.
func (v *visit) tenantID() string {
	if v.tenant != nil {
		return v.tenant.ID.String()
	}
	if id := v.param("tenantId"); id != "" {
		return id
	}
	return v.query.Get("tenantId")
}

// get reads a resource of the API. The page shows the request as its equivalent.
func (v *visit) get(path string, query url.Values) (doc, error) {
	req := request{Method: http.MethodGet, Path: path, Query: query}
	v.asked = append(v.asked, req)
	d, err := v.do(req)
	if position, ok := d["asOfPosition"].(string); ok && err == nil && !slices.Contains(v.positions, position) {
		v.positions = append(v.positions, position)
	}
	return d, err
}

// preview reads the outcome that an action would have: a request of the API that changes no data. The page shows it as its equivalent.
func (v *visit) preview(path string, body map[string]any) (doc, error) {
	req := request{Method: http.MethodPost, Path: path, Body: body}
	v.asked = append(v.asked, req)
	return v.do(req)
}

// try is get for a section of a page: a refusal is the member "problem" of its result, and the other sections are shown. Errors of the
// service itself fail the page.
func (v *visit) try(path string, query url.Values) (doc, error) { return tried(v.get(path, query)) }

func tried(d doc, err error) (doc, error) {
	if refused := (*refusal)(nil); errors.As(err, &refused) && refused.Status < http.StatusInternalServerError {
		return doc{"problem": refused}, nil
	}
	return d, err
}

// main is try for the section that the page is about: the page has the status of its refusal, and its form is shown again.
func (v *visit) main(path string, query url.Values) (doc, error) { return v.mainOf(v.get(path, query)) }

// mainOf is main for an answer.
func (v *visit) mainOf(d doc, err error) (doc, error) {
	d, err = tried(d, err)
	if refused, ok := d["problem"].(*refusal); ok {
		v.status = refused.Status
	}
	return d, err
}

// all reads several sections, named as in the page's data: each is a path of the API with its query.
func (v *visit) all(sections map[string]section) (doc, error) {
	names := make([]string, 0, len(sections))
	for name := range sections {
		names = append(names, name)
	}
	slices.Sort(names) // the equivalents have one order
	data := doc{}
	for _, name := range names {
		d, err := v.try(sections[name].path, sections[name].query)
		if err != nil {
			return nil, err
		}
		data[name] = d
	}
	return data, nil
}

// section is a read of the API.
type section struct {
	path  string
	query url.Values
}

// followed reads a stream of the API that ends: server-sent events, each with an object.
func (v *visit) followed(path string, query url.Values) ([]any, error) {
	req := request{Method: http.MethodGet, Path: path, Query: query}
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
		d, err := decode(strings.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("decode the answer of GET %s: %w", path, err)
		}
		all = append(all, map[string]any(d))
	}
	return all, nil
}

// decode reads an object of the API.
func decode(from io.Reader) (d doc, err error) {
	decoder := json.NewDecoder(from)
	decoder.UseNumber()
	return d, decoder.Decode(&d)
}

// do sends a request to the API. Its answer is an object, or a refusal as the error.
func (v *visit) do(req request) (doc, error) {
	answer, err := v.send(req)
	if err != nil {
		return nil, err
	}
	if answer.status == http.StatusNoContent || answer.body.Len() == 0 {
		return doc{}, nil
	}
	d, err := decode(&answer.body)
	if err != nil {
		return nil, fmt.Errorf("decode the answer of %s %s: %w", req.Method, req.Path, err)
	}
	if tag := answer.header.Get("ETag"); tag != "" {
		d["etag"] = tag
	}
	return d, nil
}

// send sends a request to the API. Its answer has a status below 400.
func (v *visit) send(req request) (*answer, error) {
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
func (v *visit) requestOf(req request) (*http.Request, error) {
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
