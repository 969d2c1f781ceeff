package api

import (
	"context"
	"net/http"
	"time"

	"github.com/meterplex/meterplex/http/edge"
)

const (
	// pollEvery is the longest delay before an event is sent.
	pollEvery       = 100 * time.Millisecond
	streamHeartbeat = 15 * time.Second // proxies close connections that are idle for longer
	streamWrite     = 30 * time.Second // a client that reads no byte for this time is disconnected
)

const MediaEvents = "text/event-stream"

// Stream is an answer that lasts until its client, its key or the instance ends: its context ends with the connection, not with the request
// timeout.
type Stream struct {
	*Service
	Ctx     context.Context
	X       *edge.Exchange
	w       http.ResponseWriter
	control *http.ResponseController
	key     *confirmed
	spoke   time.Time
	Buffer  []byte
}

// Stream returns a stream, and a function that ends it.
func (s *Service) Stream(w http.ResponseWriter, x *edge.Exchange) (*Stream, func()) {
	ctx, cancel := context.WithCancel(edge.WithExchange(x.From.Context(), x))
	go func() {
		select {
		case <-s.Edge.Shutdown():
			cancel()
		case <-ctx.Done():
		}
	}()
	return &Stream{Service: s, Ctx: ctx, X: x, w: w, control: http.NewResponseController(w), key: confirmedOf(s.Edge, x),
		spoke: time.Now()}, cancel
}

// Start writes the status and headers. After it, an error cannot become a problem.
func (l *Stream) Start(media string) {
	l.w.Header().Set("Content-Type", media)
	l.w.Header().Set("X-Accel-Buffering", "no") // else nginx buffers the answer
	l.w.WriteHeader(http.StatusOK)
}

// Flush sends the buffer. An error means that the client is gone.
func (l *Stream) Flush() error {
	_ = l.control.SetWriteDeadline(time.Now().Add(streamWrite)) // without write deadlines, only the connection's context ends the stream
	if _, err := l.w.Write(l.Buffer); err != nil {
		return err
	}
	l.Buffer, l.spoke = l.Buffer[:0], time.Now()
	return l.control.Flush()
}

// Alive reports whether the stream may continue: its key may have been revoked.
func (l *Stream) Alive() bool { return l.key.check(l.Ctx) == nil && l.Ctx.Err() == nil }

// Quiet reports whether a heartbeat is due.
func (l *Stream) Quiet() bool { return time.Since(l.spoke) >= streamHeartbeat }

// Event sends a server-sent event.
func (l *Stream) Event(name string, data []byte) error {
	l.Buffer = append(l.Buffer, "event: "+name+"\ndata: "+string(data)+"\n\n"...)
	return l.Flush()
}

// Heartbeat sends a comment after a quiet interval.
func (l *Stream) Heartbeat() error {
	if !l.Quiet() {
		return nil
	}
	l.Buffer = append(l.Buffer, ": alive\n\n"...)
	return l.Flush()
}

// Pause waits between two reads: for new events, or for a read that was refused because other
// reads take the connections that it may use. Over HTTP/2 a deadline that expires resets the stream, also if no data is written.
func (l *Stream) Pause() {
	_ = l.control.SetWriteDeadline(time.Now().Add(streamWrite))
	select {
	case <-l.Ctx.Done():
	case <-time.After(pollEvery):
	}
}
