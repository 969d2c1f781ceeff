package problem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
	"github.com/meterplex/meterplex/projections/query"
)

type sqlError string

func (e sqlError) Error() string    { return "ERROR: something (SQLSTATE " + string(e) + ")" }
func (e sqlError) SQLState() string { return string(e) }

// driverError is pgx's error for a lost connection: neither a network error nor a server
// error.
type driverError string

func (e driverError) Error() string   { return string(e) }
func (driverError) SafeToRetry() bool { return true }

func TestErrorsBecomeProblems(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		code   string
		retry  bool
		logged bool
	}{
		{&domain.Error{Code: "name_invalid", Message: "no"}, 400, "name_invalid", false, false},
		{fmt.Errorf("x: %w", &domain.Error{Code: "plan_not_found"}), 404, "plan_not_found", false, false},
		{query.ErrNotFound, 404, "not_found", false, false},
		{query.ErrProjectionBehind, 503, "projection_behind", true, false},
		{query.ErrPositionInvalid, 400, "position_invalid", false, false},
		{query.ErrCursorInvalid, 400, "cursor_invalid", false, false},
		{fmt.Errorf("x: %w", commands.ErrUnavailable), 503, "unavailable", true, true},
		{context.DeadlineExceeded, 503, "unavailable", true, true},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, 503, "unavailable", true, true},
		{io.ErrUnexpectedEOF, 503, "unavailable", true, true},
		{fmt.Errorf("x: %w", driverError("conn closed")), 503, "unavailable", true, true},
		{sqlError("57P01"), 503, "unavailable", true, true},
		{sqlError("25P03"), 503, "unavailable", true, true},
		{sqlError("53300"), 503, "unavailable", true, true},
		{sqlError("55P03"), 503, "unavailable", true, true},
		{sqlError("22021"), 500, "internal", false, true},
		{sqlError("42P01"), 500, "internal", false, true},
		{errors.New("/root/secret.go:5 failed"), 500, "internal", false, true},
	} {
		p, cause := Of(c.err)
		if p.Status != c.status || p.Code != c.code || (p.retryAfter > 0) != c.retry || (cause != nil) != c.logged {
			t.Errorf("%v: %d %s, retry %d, cause %v", c.err, p.Status, p.Code, p.retryAfter, cause)
		}
		if c.logged && strings.Contains(string(p.Encode()), c.err.Error()) {
			t.Errorf("%v is shown to the caller", c.err)
		}
	}
}

func TestProblemsAreBounded(t *testing.T) {
	for _, text := range []string{strings.Repeat("\x01", 10_000), strings.Repeat("é", 10_000), strings.Repeat("\xff", 10_000),
		strings.Repeat("<&>", 9_000)} {
		p := New("name_invalid", text)
		for range 20 {
			p.At("/" + text)
		}
		r := httptest.NewRequest("GET", "/x", nil)
		r.URL.Path = "/" + strings.Repeat("ü", 5000)
		body := p.For("trace", r.URL).Encode()
		if len(body) > maxProblem+1 || !json.Valid(body) || !utf8.Valid(body) {
			t.Errorf("%d bytes: %.100s", len(body), body)
		}
	}
}
