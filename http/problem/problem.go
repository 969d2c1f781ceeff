// Package problem holds the answers to refused and failed requests (RFC 9457). Their statuses and
// titles are those of the table in domain/codes.
package problem

import (
	"encoding/json"
	"math/big"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/domain/codes"
)

// Problem is the answer to every refused or failed request (RFC 9457). Code is stable:
// clients branch on it.
type Problem struct {
	Type     string  `json:"type" format:"uri-reference" doc:"Where the code is explained."`
	Title    string  `json:"title" doc:"The meaning of the code, the same for each occurrence."`
	Status   int     `json:"status" doc:"The HTTP status."`
	Detail   string  `json:"detail" doc:"The fault of this request, and the remedy."`
	Instance string  `json:"instance" format:"uri-reference" doc:"The requested path."`
	Code     string  `json:"code" doc:"Stable, in snake_case."`
	Errors   []Fault `json:"errors" nullable:"false" doc:"The members at fault, at most 5; empty if it is not about a member."`
	TraceID  string  `json:"traceId" doc:"The trace id of traceparent, or one that was made for the request."`

	*Quota
	State   string   `json:"state,omitempty" required:"false" doc:"Of reservation_ended: how the reservation ended."`
	Current *Current `json:"current,omitempty" required:"false" doc:"Of state_changed: the present state; members that are not compared are left out."`

	retryAfter int    // seconds, 0: no retry
	because    string // see Reason
}

// Quota holds the members of the problem quota_exceeded.
type Quota struct {
	Limit     json.Number `json:"limit" required:"false" doc:"Of quota_exceeded: the most that may be used in the period."`
	Used      json.Number `json:"used" required:"false" doc:"Of quota_exceeded: the amount used in the period."`
	Held      json.Number `json:"held" required:"false" doc:"Of quota_exceeded: the amount that reservations hold."`
	Remaining json.Number `json:"remaining" required:"false" doc:"Of quota_exceeded: the most that can be granted now."`
	ResetAt   *time.Time  `json:"resetAt" required:"false" doc:"Of quota_exceeded: the end of the period; null if it never resets."`
}

// Current holds the present state, of the problem state_changed.
type Current struct {
	Matched *int         `json:"matched,omitempty" required:"false" doc:"Dead letters that the filter matches."`
	Keys    *int64       `json:"keys,omitempty" required:"false" doc:"Keys that differ."`
	Delta   *json.Number `json:"delta,omitempty" required:"false" doc:"Sum of their differences."`
	Closed  *int64       `json:"differingClosed,omitempty" required:"false" doc:"Those of the keys that are of closed periods."`
	ETag    string       `json:"etag,omitempty" required:"false"`
}

func quotaOf(q *domain.Quota) *Quota {
	if q == nil {
		return nil
	}
	number := func(n *big.Int) json.Number { return json.Number(n.String()) }
	p := &Quota{Limit: number(q.Limit), Used: number(q.Used), Held: number(q.Held), Remaining: number(q.Remaining())}
	if _, end, ok := domain.PeriodBounds(q.PeriodKey); ok {
		p.ResetAt = &end
	}
	return p
}

// Fault is one error in a body.
type Fault struct {
	Pointer string `json:"pointer" doc:"JSON pointer (RFC 6901) into the body; empty if it is not about a member."`
	Code    string `json:"code"`
	Detail  string `json:"detail"`
}

// Bounds of a problem: the encoded answer stays below 4 KiB.
const (
	maxDetail  = 400 // bytes
	maxPointer = 300
	maxFaults  = 5
	maxProblem = 4096
)

// New returns the problem of a code, with the status and the title of the code.
func New(code, detail string) *Problem {
	entry := entryOf(code)
	return &Problem{Type: "/docs#" + Anchor(code), Title: entry.Meaning, Status: entry.Status, Code: code, Errors: []Fault{},
		Detail: Clip(detail, maxDetail), retryAfter: entry.After}
}

// entryOf returns the entry of a code. A code without an entry is a fault of the source, which a
// test finds; its problem is still a refusal of the request.
func entryOf(code string) codes.Code {
	entry, found := codes.Find(code)
	if !found || entry.Status == 0 {
		return codes.Code{Name: code, Status: http.StatusBadRequest, Meaning: "The request is invalid"}
	}
	return entry
}

// Anchor returns the id of a code's row on the page /docs.
func Anchor(name string) string { return "problem-" + name }

// At adds the pointer of the invalid member, with the problem's own code and detail.
func (p *Problem) At(pointer string) *Problem {
	if pointer != "" && len(p.Errors) < maxFaults {
		p.Errors = append(p.Errors, Fault{Clip(pointer, maxPointer), p.Code, p.Detail})
	}
	return p
}

// Retry says after how many seconds a retry can succeed.
func (p *Problem) Retry(seconds int) *Problem {
	p.retryAfter = seconds
	return p
}

// Clip truncates text to at most n bytes, at a character boundary.
func Clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	text = text[:n]
	for len(text) > 0 {
		if r, size := utf8.DecodeLastRuneInString(text); r != utf8.RuneError || size > 1 {
			break
		}
		text = text[:len(text)-1]
	}
	return text + "…"
}

// Error, GetStatus and ContentType implement the interfaces that huma requires of an
// error.
func (p *Problem) Error() string { return p.Code + ": " + p.Detail }

// GetStatus returns the HTTP status.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType returns the media type of RFC 9457.
func (p *Problem) ContentType(string) string { return MediaType }

// MediaType is the Content-Type of a problem.
const MediaType = "application/problem+json"

// GetHeaders returns the problem's headers.
func (p *Problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="meterplex"`)
	}
	return h
}

// maxInstance bounds the path that a problem repeats.
const maxInstance = 256

// For adds the trace id and the path of the request.
func (p *Problem) For(trace string, u *url.URL) *Problem {
	p.TraceID = trace
	if p.Instance = u.EscapedPath(); len(p.Instance) > maxInstance || !strings.HasPrefix(p.Instance, "/") {
		p.Instance = "/"
	}
	return p
}

// Encode returns the body of the answer, of at most maxProblem bytes.
func (p *Problem) Encode() []byte {
	body, err := json.Marshal(p)
	if err == nil && len(body) > maxProblem {
		p.Errors, p.Detail = []Fault{}, Clip(p.Detail, maxDetail/4)
		body, err = json.Marshal(p)
	}
	if err != nil { // a problem has no member that can fail to encode
		return []byte(`{"status":500,"code":"internal"}`)
	}
	return append(body, '\n')
}
