package main

import (
	"bytes"
	"context"
	"crypto/rand"
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

// maxConcurrency bounds the requests that one client sends concurrently.
const maxConcurrency = 64

// client sends requests to a running service, and retries them while the service is
// unreachable or busy. Retries are safe for all its requests: usage is deduplicated
// by eventId, creation by Idempotency-Key, and all others are idempotent.
type client struct {
	base     string
	key      string
	http     *http.Client
	retryFor time.Duration
	say      func(format string, args ...any)
}

// newClient returns a client of the service at base. It retries for retryFor, and reports retries to say.
func newClient(base, key string, retryFor time.Duration, say func(format string, args ...any)) *client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = maxConcurrency
	return &client{
		base: base, key: key, retryFor: retryFor, say: say,
		http: &http.Client{
			Transport: transport, Timeout: attemptTimeout,
			// A key must not follow a redirect to another host.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// request is an HTTP request that can be sent more than once.
type request struct {
	method string
	path   string // below /api/v1, segments escaped by pathOf
	query  url.Values
	header http.Header
	body   []byte // JSON, nil for none
}

// pathOf escapes and joins path segments.
func pathOf(segments ...string) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(s))
	}
	return b.String()
}

// get reads path with the non-empty parameters of query.
func (c *client) get(ctx context.Context, path string, query url.Values) (json.RawMessage, error) {
	return c.do(ctx, request{method: http.MethodGet, path: path, query: query})
}

// post creates a resource; the Idempotency-Key makes retries safe. An empty once
// means a new key for this call.
func (c *client) post(ctx context.Context, path, once string, body any) (json.RawMessage, error) {
	if once == "" {
		once = rand.Text()
	}
	return c.send(ctx, http.MethodPost, path, http.Header{"Idempotency-Key": {once}}, body)
}

// send sends a body as JSON.
func (c *client) send(ctx context.Context, method, path string, header http.Header, body any) (json.RawMessage, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("write the request: %w", err)
	}
	return c.do(ctx, request{method: method, path: path, header: header, body: b})
}

// do returns the body of a 2xx response; any other response is a *problem.
func (c *client) do(ctx context.Context, r request) (json.RawMessage, error) {
	return c.retrying(ctx, func() (json.RawMessage, error) { return c.once(ctx, r) })
}

// once sends the request once, without retries.
func (c *client) once(ctx context.Context, r request) (json.RawMessage, error) {
	target := c.base + "/api/v1" + r.path
	if q := notEmpty(r.query); len(q) > 0 {
		target += "?" + q.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, bytes.NewReader(r.body))
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, &unreachable{c.base, err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, &unreachable{c.base, err}
	}
	if len(body) > maxAnswer {
		return nil, fmt.Errorf("the answer is larger than %d MiB", maxAnswer>>20)
	}
	if resp.StatusCode/100 != 2 {
		return nil, readProblem(resp, body)
	}
	return readJSON(c.base, body)
}

// readJSON reports a truncated response as unreachable, so that it is retried.
func readJSON(base string, body []byte) (json.RawMessage, error) {
	if len(body) > 0 && !json.Valid(body) {
		return nil, &unreachable{base, errors.New("the answer is not JSON: is this a Meterplex service?")}
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

// each reads a list page by page and calls row for up to limit rows; 0 means all.
func (c *client) each(ctx context.Context, path string, query url.Values, limit int, row func(json.RawMessage) error) error {
	q := url.Values{}
	for name, values := range query {
		q[name] = values
	}
	for seen := 0; ; {
		q.Set("limit", fmt.Sprint(pageSize(limit-seen, limit)))
		body, err := c.get(ctx, path, q)
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

// pageSize returns the size of the next page: at most the rows left and the API's maximum.
func pageSize(left, limit int) int {
	const most = 1000
	if limit == 0 || left > most {
		return most
	}
	return left
}
