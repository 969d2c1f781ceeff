// Package deadline ends requests to other systems in time, also those of a process that was frozen: on its return the timer of a context is
// due, and the request may be written before the timer ends it. It knows no system.
package deadline

import (
	"context"
	"io"
	"net/http"
	"time"
)

// Bound returns the request with a body that is not sent to its end once the deadline of the request's context has passed: by then another
// instance may send it, or the amount is not due any more.
func Bound(req *http.Request) *http.Request {
	if req.Body == nil || req.Body == http.NoBody {
		return req
	}
	req = req.WithContext(req.Context())
	req.Body = body{req.Body, req.Context()}
	if again := req.GetBody; again != nil {
		req.GetBody = func() (io.ReadCloser, error) {
			b, err := again()
			return body{b, req.Context()}, err
		}
	}
	return req
}

type body struct {
	io.ReadCloser
	ctx context.Context
}

// Read implements io.Reader. The end of the body is read before the last bytes are sent.
func (b body) Read(p []byte) (int, error) {
	if Passed(b.ctx, time.Now()) {
		return 0, context.DeadlineExceeded
	}
	return b.ReadCloser.Read(p)
}

// Passed reports whether the deadline of a context has passed by one of two clocks: the monotonic one stops while its machine is suspended,
// and the wall clock may be set back.
func Passed(ctx context.Context, now time.Time) bool {
	at, ok := ctx.Deadline()
	return ok && (!now.Before(at) || !now.Round(0).Before(at.Round(0)))
}
