package http

import (
	"context"
	"net/http"
	"time"

	"github.com/meterplex/meterplex/http/edge"
)

const (
	// tailEvery is the longest delay before an event is sent.
	tailEvery       = 100 * time.Millisecond
	streamHeartbeat = 15 * time.Second // proxies close connections that are idle for longer
	streamWrite     = 30 * time.Second // a client that reads no byte for this time is disconnected
)

const mediaEvents = "text/event-stream"

// stream is an answer that lasts until its client, its key or the instance ends: its context ends with the connection, not with the request timeout.
type stream struct {
	*service
	ctx     context.Context
	x       *edge.Exchange
	w       http.ResponseWriter
	control *http.ResponseController
	key     *confirmed
	spoke   time.Time
	buffer  []byte
}

// stream returns a stream, and a function that ends it.
func (s *service) stream(w http.ResponseWriter, x *edge.Exchange) (*stream, func()) {
	ctx, cancel := context.WithCancel(edge.WithExchange(x.From.Context(), x))
	go func() {
		select {
		case <-s.edge.Shutdown():
			cancel()
		case <-ctx.Done():
		}
	}()
	return &stream{service: s, ctx: ctx, x: x, w: w, control: http.NewResponseController(w), key: confirmedOf(s.edge, x), spoke: time.Now()}, cancel
}

// start writes the status and headers. After it, an error cannot become a problem.
func (l *stream) start(media string) {
	l.w.Header().Set("Content-Type", media)
	l.w.Header().Set("X-Accel-Buffering", "no") // else nginx buffers the answer
	l.w.WriteHeader(http.StatusOK)
}

// flush sends the buffer. An error means that the client is gone.
func (l *stream) flush() error {
	_ = l.control.SetWriteDeadline(time.Now().Add(streamWrite)) // without write deadlines, only the connection's context ends the stream
	if _, err := l.w.Write(l.buffer); err != nil {
		return err
	}
	l.buffer, l.spoke = l.buffer[:0], time.Now()
	return l.control.Flush()
}

// alive reports whether the stream may continue: its key may have been revoked.
func (l *stream) alive() bool { return l.key.check(l.ctx) == nil && l.ctx.Err() == nil }

// quiet reports whether a heartbeat is due.
func (l *stream) quiet() bool { return time.Since(l.spoke) >= streamHeartbeat }

// event sends a server-sent event.
func (l *stream) event(name string, data []byte) error {
	l.buffer = append(l.buffer, "event: "+name+"\ndata: "+string(data)+"\n\n"...)
	return l.flush()
}

// heartbeat sends a comment after a quiet interval.
func (l *stream) heartbeat() error {
	if !l.quiet() {
		return nil
	}
	l.buffer = append(l.buffer, ": alive\n\n"...)
	return l.flush()
}

// pause waits between two reads: for new events, or for a read that was refused because other
// reads take the connections that it may use. Over HTTP/2 a deadline that expires resets the stream, also if nothing is written.
func (l *stream) pause() {
	_ = l.control.SetWriteDeadline(time.Now().Add(streamWrite))
	select {
	case <-l.ctx.Done():
	case <-time.After(tailEvery):
	}
}
