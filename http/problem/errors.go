package problem

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/domain"
)

// Of converts an error of a command or a read to a problem. cause is the error to
// log, nil if only the caller is at fault.
func Of(err error) (p *Problem, cause error) {
	var refused *domain.Error
	var full *commands.Overloaded
	switch {
	case errors.As(err, &p):
		return p, nil
	case errors.As(err, &refused): // reads return these, too
		p = New(refused.Code, refused.Message).At(refused.Pointer)
		p.Quota, p.State = quotaOf(refused.Quota), refused.State
		p.Current = (*Current)(refused.Current)
		return p, nil
	case errors.As(err, &full):
		return tooMuch(full), nil
	case isOutage(err):
		return New("unavailable", "The event log does not answer; the outcome of this request is unknown, send the same again"), err
	}
	return New("internal", "A fault of the service; quote the request id to have it found"), err
}

// isOutage distinguishes an unavailable database from an internal error. The classes of
// SQLSTATE are: 08 connection, 40 rolled back, 53 resources, 55 lock not available, 57
// operator intervention, 58 system error.
func isOutage(err error) bool {
	if errors.Is(err, commands.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return true
	}
	var network net.Error
	if errors.As(err, &network) {
		return true
	}
	// The driver reports "conn closed" for a connection that ended during a read, and for one
	// whose COMMIT was not answered.
	var driver interface{ SafeToRetry() bool }
	if errors.As(err, &driver) {
		return true
	}
	var state interface{ SQLState() string }
	if !errors.As(err, &state) || len(state.SQLState()) != len("08006") {
		return false
	}
	switch state.SQLState()[:2] {
	case "08", "40", "53", "55", "57", "58":
		return true
	}
	return state.SQLState() == idleTooLong
}

// idleTooLong ends a session whose transaction was idle too long: the network was
// interrupted.
const idleTooLong = "25P03"
