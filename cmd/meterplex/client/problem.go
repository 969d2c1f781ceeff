package client

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/meterplex/meterplex/cmd/meterplex/output"
	"github.com/meterplex/meterplex/domain/codes"
)

// Problem is an error response: application/problem+json (RFC 9457) with the
// service's own members.
type Problem struct {
	Status  int    `json:"status"`
	Title   string `json:"title"`
	Detail  string `json:"detail"`
	Code    string `json:"code"`
	Hint    string `json:"hint"`
	TraceID string `json:"traceId"`
	Errors  []struct {
		Pointer string `json:"pointer"`
		Code    string `json:"code"`
		Detail  string `json:"detail"`
	} `json:"errors"`

	// The account of quota_exceeded.
	Limit     json.Number `json:"limit"`
	Used      json.Number `json:"used"`
	Held      json.Number `json:"held"`
	Remaining json.Number `json:"remaining"`
	ResetAt   string      `json:"resetAt"` // "" if the period never ends

	retryAfter time.Duration
}

// ReadProblem converts any error response to a problem, including a proxy's.
func ReadProblem(resp *http.Response, body []byte) *Problem {
	var p Problem
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/problem+json") || json.Unmarshal(body, &p) != nil || p.Code == "" {
		p = Problem{Code: fmt.Sprintf("http_%d", resp.StatusCode), Detail: http.StatusText(resp.StatusCode)}
	}
	p.Status = resp.StatusCode
	p.retryAfter = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	return &p
}

// Error returns "code: detail", a line for each invalid member, and a hint.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.first())
	for _, e := range p.Errors {
		if e.Code == p.Code && e.Detail == p.Detail { // already in the first line
			b.WriteString("\n  at " + output.Printable(e.Pointer))
			continue
		}
		fmt.Fprintf(&b, "\n  %s: %s: %s", output.Printable(e.Pointer), output.Printable(e.Code), output.Printable(e.Detail))
	}
	if p.Remaining != "" {
		fmt.Fprintf(&b, "\n  remaining %s, limit %s, used %s, held %s, resetAt %s", p.Remaining, p.Limit, p.Used, p.Held,
			output.Printable(cmp.Or(p.ResetAt, "never")))
	}
	if hint := p.hint(); hint != "" {
		b.WriteString("\n  hint: " + hint)
	}
	if p.Status/100 == 5 && p.TraceID != "" {
		b.WriteString("\n  trace: " + output.Printable(p.TraceID))
	}
	return b.String()
}

func (p *Problem) first() string {
	detail := p.Detail
	if detail == "" {
		detail = p.Title
	}
	return output.Printable(p.Code + ": " + detail)
}

func (p *Problem) hint() string {
	if p.Hint != "" {
		return output.Printable(p.Hint)
	}
	return Remedy(p.Code)
}

// Remedy returns the remedy of a code, "" if this release does not know the code.
func Remedy(code string) string {
	c, _ := codes.Find(code)
	return c.Remedy
}

// IsAnswer reports whether the service answered the question with no, rather than
// failing to process the request.
func (p *Problem) IsAnswer() bool {
	switch p.Status {
	case http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// Brief returns an error's first line.
func Brief(err error) string {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p.first()
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
