package meterplex

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	maxAnswer     = 64 << 20
	maxRetryAfter = time.Hour
)

// api sends requests to the service.
type api struct {
	base    string
	key     atomic.Pointer[string]
	rekeyed signal
	http    *http.Client
}

func (a *api) init(base, key string, o *Options) error {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return invalid("invalid_argument", "The URL must be like https://meterplex.example.com")
	}
	a.base, a.rekeyed = strings.TrimRight(base, "/"), make(signal, 1)
	transport := o.Transport
	if transport == nil {
		own := &http.Transport{ForceAttemptHTTP2: true, MaxIdleConns: 100, MaxIdleConnsPerHost: 16, IdleConnTimeout: 90 * time.Second,
			TLSHandshakeTimeout: 10 * time.Second}
		if o.RootCAs != nil {
			own.TLSClientConfig = &tls.Config{RootCAs: o.RootCAs}
		}
		transport = own
	}
	a.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	return a.setKey(key)
}

func (a *api) setKey(key string) error {
	if !eventIDForm.MatchString(key) {
		return invalid("invalid_argument", "The key must be printable ASCII without space, e.g. mp_live_…")
	}
	if a.key.Swap(&key) != nil {
		a.rekeyed.send()
	}
	return nil
}

// answer is an answer of the service, or of something in front of it.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a *answer) media() string {
	media, _, _ := mime.ParseMediaType(a.header.Get("Content-Type"))
	return media
}

// exchange sends a request once. The error says that there is no whole answer.
func (a *api) exchange(ctx context.Context, method, path string, header http.Header, body []byte) (*answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		r.Header[name] = values
	}
	r.Header.Set("Authorization", "Bearer "+*a.key.Load())
	r.Header.Set("Accept", "application/json; amounts=string")
	r.Header.Set("User-Agent", "meterplex-go/"+Version)
	response, err := a.http.Do(r)
	if err != nil {
		a.http.CloseIdleConnections() // a broken connection would fail the next attempt, too
		return nil, err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err == nil && len(got) > maxAnswer {
		err = errors.New("the answer is larger than 64 MiB")
	}
	if err != nil {
		return nil, err
	}
	return &answer{response.StatusCode, response.Header, got}, nil
}

// refusalOf returns an answer without success, or none, as an error. Its JSON is set if it is a problem of the service.
func refusalOf(a *answer, err error) *Error {
	if err != nil {
		return newError("unavailable", err, "The service does not answer")
	}
	e := &Error{Code: fmt.Sprintf("http_%d", a.status), Status: a.status, Detail: "The answer " + strconv.Itoa(a.status) + " " +
		http.StatusText(a.status) + " is not the service's"}
	var problem struct {
		Code, Detail, TraceID, State string
		Errors                       []FieldError
	}
	if a.media() == "application/problem+json" && json.Unmarshal(a.body, &problem) == nil && problem.Code != "" {
		e.Code, e.Detail, e.TraceID, e.State, e.Errors = problem.Code, problem.Detail, problem.TraceID, problem.State, problem.Errors
		_ = json.Unmarshal(a.body, &e.Account) // of quota_exceeded
		e.Remedy, e.JSON = remedies[e.Code], a.body
	}
	e.retryAfter = retryAfter(a.header.Get("Retry-After"))
	return e
}

// isTemporary reports whether the same request can succeed later.
func isTemporary(e *Error) bool {
	return e.Status == 0 || e.Status == http.StatusRequestTimeout || e.Status == http.StatusTooManyRequests || e.Status >= 500
}

// isFinal reports whether the service itself refuses a request. projection_behind is final, too: the service has waited as long as the
// caller asked.
func isFinal(e *Error) bool {
	return e.JSON != nil && (!isTemporary(e) || e.Code == "projection_behind")
}

func retryAfter(text string) time.Duration {
	wait := time.Duration(0)
	if seconds, err := strconv.ParseInt(text, 10, 32); err == nil {
		wait = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		wait = time.Until(at)
	}
	return min(max(wait, 0), maxRetryAfter)
}

// request is a request that is sent until it is answered.
type request struct {
	method, path string
	query        url.Values
	body         any
	wait         time.Duration // that the service may take besides, for MinPosition
	id           string        // of idempotency, "" for reads
	member       string        // that the answer of the service has, with the value id if that is set
}

// isAnswer reports whether an answer of success is the service's, and not that of something in front of it.
func (r *request) isAnswer(a *answer) bool {
	var members map[string]json.RawMessage
	if a.status/100 != 2 || a.media() != "application/json" || json.Unmarshal(a.body, &members) != nil {
		return false
	}
	if value := members[r.member]; value == nil || string(value) == "null" {
		return false
	}
	var id string
	return r.id == "" || json.Unmarshal(members[r.member], &id) == nil && id == r.id
}

// callWithin bounds calls whose context has no deadline.
const callWithin = 30 * time.Second

// call sends a request until the service answers, at the latest until ctx ends, and decodes the answer of success into out.
func (c *Client) call(ctx context.Context, r request, out any) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callWithin+r.wait)
		defer cancel()
	}
	for n := 0; ; n++ {
		a, err := c.once(ctx, r, c.options.AttemptTimeout)
		if err == nil && r.isAnswer(a) {
			if err := json.Unmarshal(a.body, out); err != nil {
				return newError("answer_invalid", err, "The answer cannot be read")
			}
			return nil
		}
		refusal := refusalOf(a, err)
		if isFinal(refusal) {
			return refusal
		}
		const first, most, doublings = 100 * time.Millisecond, 5 * time.Second, 10
		wait := time.NewTimer(max(refusal.retryAfter, rand.N(min(most, first<<min(n, doublings)))))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return c.unanswered(r, errors.Join(ctx.Err(), refusal))
		}
	}
}

// unanswered is the error of a request that was sent until its deadline.
func (c *Client) unanswered(r request, cause error) *Error {
	if r.id == "" {
		return newError("unavailable", cause, "The service has not answered in time")
	}
	e := newError("unknown_outcome", cause, "The service has not answered in time: the request with the id %s may have had its effect",
		r.id)
	e.ID, e.Remedy = r.id, "Send the same request with the same id again: it has its effect once at most"
	return e
}

// once sends a request once.
func (c *Client) once(ctx context.Context, r request, timeout time.Duration) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout+r.wait)
	defer cancel()
	header := http.Header{}
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return nil, err
		}
		header.Set("Content-Type", "application/json")
	}
	if r.wait > 0 {
		header.Set("Prefer", "wait="+strconv.FormatInt(seconds(r.wait), 10))
	}
	if len(r.query) > 0 {
		r.path += "?" + r.query.Encode()
	}
	return c.api.exchange(ctx, r.method, r.path, header, body)
}
