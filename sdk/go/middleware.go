package meterplex

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"time"
)

// Served is a request that a handler has answered.
type Served struct {
	Request  *http.Request
	Status   int           // 500 if the handler panicked
	Bytes    int64         // of the answer's body
	Duration time.Duration // of the handler
}

// MiddlewareOptions choose what the middleware records. The zero value counts each request with a status below 500 and the amount 1.
type MiddlewareOptions struct {
	Count    func(Served) bool           // whether to count; default: a status below 500
	Amount   func(Served) int64          // default: 1
	Metadata func(Served) map[string]any // default: none
	EventID  func(Served) string         // default: a random UUIDv7
}

// Middleware counts the requests of a handler as usage of a feature. A request is recorded when its handler returns; that waits for the
// queue's disk. The answer is served also if it cannot be recorded: OnError is told then. Options may be nil.
func (c *Client) Middleware(feature string, options *MiddlewareOptions) func(http.Handler) http.Handler {
	if options == nil {
		options = &MiddlewareOptions{}
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer := &counted{ResponseWriter: w}
			start, returned := time.Now(), false
			defer func() {
				served := Served{r, answer.status, answer.bytes, time.Since(start)}
				if served.Status = or(served.Status, http.StatusOK); !returned {
					served.Status = http.StatusInternalServerError
				}
				c.recordServed(feature, options, served, start)
			}()
			next.ServeHTTP(answer, r)
			returned = true
		})
	}
}

// recordWithin bounds how long a request or a call waits for a full queue.
const recordWithin = 5 * time.Second

func (c *Client) recordServed(feature string, o *MiddlewareOptions, s Served, start time.Time) {
	if o.Count == nil && s.Status >= 500 || o.Count != nil && !o.Count(s) {
		return
	}
	e := Event{Feature: feature, Amount: 1, Timestamp: start}
	if o.Amount != nil {
		e.Amount = o.Amount(s)
	}
	if o.Metadata != nil {
		e.Metadata = o.Metadata(s)
	}
	if o.EventID != nil {
		e.EventID = o.EventID(s)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Request.Context()), recordWithin)
	defer cancel()
	if _, err := c.Record(ctx, e); err != nil {
		c.unrecorded(err)
	}
}

// unrecorded reports usage that could not be recorded.
func (c *Client) unrecorded(err error) {
	e, is := err.(*Error)
	if !is {
		e = newError("queue_failed", err, "Usage is not recorded")
	}
	c.report(e)
}

// counted counts the bytes of an answer.
type counted struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (w *counted) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *counted) Write(b []byte) (int, error) {
	w.status = or(w.status, http.StatusOK)
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// ReadFrom keeps sendfile.
func (w *counted) ReadFrom(r io.Reader) (int64, error) {
	w.status = or(w.status, http.StatusOK)
	n, err := io.Copy(w.ResponseWriter, r)
	w.bytes += n
	return n, err
}

// Flush is for handlers that stream.
func (w *counted) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Hijack is for WebSockets.
func (w *counted) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// Unwrap is for http.ResponseController.
func (w *counted) Unwrap() http.ResponseWriter { return w.ResponseWriter }
