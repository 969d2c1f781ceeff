// Package client sends requests to a running service over its HTTP API, and retries them. It
// knows no command and prints no data.
package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// maxAnswer bounds the size of a response: far more than a page of 1,000 rows.
const maxAnswer = 64 << 20

// attemptTimeout bounds one attempt. It is longer than the 30 s that a read may
// wait with Prefer: wait.
const attemptTimeout = 60 * time.Second

// MaxConcurrency bounds the requests that one client sends concurrently.
const MaxConcurrency = 64

// Client sends requests to a running service, and retries them while the service is
// unreachable or busy. Retries are safe for all its requests: usage is deduplicated
// by eventId, creation and removal by Idempotency-Key, and all others are idempotent.
type Client struct {
	base     string
	Key      string // API key
	Reason   string // of changes whose request has no member for it; "": not given
	http     *http.Client
	RetryFor time.Duration // how long a request is retried
	quiet    time.Duration // how long a stream may be silent
	report   func(format string, args ...any)
}

// New returns a client of the service at base. It retries requests for retryFor, and reports the
// first retry to say.
func New(base, key string, retryFor time.Duration, report func(format string, args ...any)) *Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = MaxConcurrency
	return &Client{
		base: base, Key: key, RetryFor: retryFor, quiet: quiet, report: report,
		http: &http.Client{
			Transport: transport, Timeout: attemptTimeout,
			// A key must not follow a redirect to another host.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// AcceptAnyCertificate makes the client accept a server whatever its certificate is: one of the same machine, to which no key is sent.
func (c *Client) AcceptAnyCertificate() {
	c.http.Transport.(*http.Transport).TLSClientConfig = AnyCertificate()
}

// AnyCertificate accepts a server whatever its certificate is.
func AnyCertificate() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}
}

// WithKey returns the client with another key.
func (c *Client) WithKey(key string) *Client {
	other := *c
	other.Key = key
	return &other
}

// Request is an HTTP request that can be sent more than once.
type Request struct {
	Method string
	Path   string // below /api/v1, segments escaped by [Path]
	Root   bool   // Path is below the service's address: /readyz
	Query  url.Values
	Header http.Header
	Body   []byte // JSON, nil without a body
}

// Path escapes and joins path segments.
func Path(segments ...string) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(s))
	}
	return b.String()
}

// Get reads path with the non-empty parameters of query.
func (c *Client) Get(ctx context.Context, path string, query url.Values) (json.RawMessage, error) {
	return c.Do(ctx, Request{Method: http.MethodGet, Path: path, Query: query})
}

// Post creates a resource; the Idempotency-Key makes retries safe. An empty once
// means a new key for this call.
func (c *Client) Post(ctx context.Context, path, once string, body any) (json.RawMessage, error) {
	if once == "" {
		once = rand.Text()
	}
	return c.Send(ctx, http.MethodPost, path, http.Header{"Idempotency-Key": {once}}, body)
}

// Send sends a body as JSON; nil is no body.
func (c *Client) Send(ctx context.Context, method, path string, header http.Header, body any) (json.RawMessage, error) {
	if body == nil {
		return c.Do(ctx, Request{Method: method, Path: path, Header: header})
	}
	b, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("write the request: %w", err)
	}
	return c.Do(ctx, Request{Method: method, Path: path, Header: header, Body: b})
}

// Do returns the body of a 2xx response; any other response is a *problem. A removal gets a new Idempotency-Key, if it has none: without
// it, the repeat of a removal whose answer was lost would be 404.
func (c *Client) Do(ctx context.Context, r Request) (json.RawMessage, error) {
	if r.Method == http.MethodDelete && r.Header.Get("Idempotency-Key") == "" {
		if r.Header = r.Header.Clone(); r.Header == nil {
			r.Header = http.Header{}
		}
		r.Header.Set("Idempotency-Key", rand.Text())
	}
	return c.retrying(ctx, func() (json.RawMessage, error) { return c.once(ctx, r) })
}

// once sends the request once, without retries.
func (c *Client) once(ctx context.Context, r Request) (json.RawMessage, error) {
	target := c.base + "/api/v1" + r.Path
	if r.Root {
		target = c.base + r.Path
	}
	if q := notEmpty(r.Query); len(q) > 0 {
		target += "?" + q.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, target, bytes.NewReader(r.Body))
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	for name, values := range r.Header {
		req.Header[name] = values
	}
	if c.Reason != "" && r.Method != http.MethodGet {
		req.Header.Set("Meterplex-Reason", url.PathEscape(c.Reason))
	}
	if r.Body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.Key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, &Unreachable{c.base, err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, &Unreachable{c.base, err}
	}
	if len(body) > maxAnswer {
		return nil, fmt.Errorf("the answer is larger than %d MiB", maxAnswer>>20)
	}
	if resp.StatusCode/100 != 2 {
		return nil, ReadProblem(resp, body)
	}
	return readJSON(c.base, body)
}

// readJSON reports a truncated response as unreachable, so that it is retried.
func readJSON(base string, body []byte) (json.RawMessage, error) {
	if len(body) > 0 && !json.Valid(body) {
		return nil, &Unreachable{base, errors.New("the answer is not JSON: is this a Meterplex service?")}
	}
	return body, nil
}

func notEmpty(q url.Values) url.Values {
	out := url.Values{}
	for name, values := range q {
		if len(values) > 0 && values[0] != "" {
			out[name] = values
		}
	}
	return out
}

// Each reads a list page by page and calls row for up to limit rows; 0 means all.
func (c *Client) Each(ctx context.Context, path string, query url.Values, limit int, row func(json.RawMessage) error) error {
	q := url.Values{}
	for name, values := range query {
		q[name] = values
	}
	for seen := 0; ; {
		q.Set("limit", fmt.Sprint(PageSize(limit-seen, limit)))
		body, err := c.Get(ctx, path, q)
		if err != nil {
			return err
		}
		var page struct {
			Data       []json.RawMessage `json:"data"`
			NextCursor *string           `json:"nextCursor"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return fmt.Errorf("read a page of %s: %w", path, err)
		}
		for _, r := range page.Data {
			if err := row(r); err != nil {
				return err
			}
			if seen++; seen == limit {
				return nil
			}
		}
		if page.NextCursor == nil || *page.NextCursor == "" {
			return nil
		}
		q.Set("cursor", *page.NextCursor)
	}
}

// PageSize returns the size of the next page: at most the rows left and the API's maximum.
func PageSize(left, limit int) int {
	const most = 1000
	if limit == 0 || left > most {
		return most
	}
	return left
}
