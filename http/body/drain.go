package body

import (
	"io"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/meterplex/meterplex/http/problem"
)

// A large body must arrive at slowestBody bytes per second, plus bodyGrace: 37 s for MaxSize. Small bodies
// have the reader's own timeout, or the connection's. Every body must arrive answerTime before the request's
// deadline: an event that is stored behind it would be answered 503, each time that it is sent again.
const (
	slowestBody = 128 << 10
	bodyGrace   = 5 * time.Second
	smallBody   = 64 << 10
	answerTime  = 3 * time.Second
)

// setReadDeadline sets the read deadline of a body: by its size, or for one of unknown size by
// the limit. relax restores the connection's.
func (b *Reader) setReadDeadline(r *http.Request, to http.ResponseWriter) (relax func()) {
	if to == nil {
		return func() {}
	}
	start, control := time.Now(), http.NewResponseController(to)
	end, ok := b.arrivesBy(r, start)
	if !ok {
		return func() {}
	}
	_ = control.SetReadDeadline(end)
	return func() { _ = control.SetReadDeadline(start.Add(b.Timeout)) }
}

// arrivesBy returns when a body that is awaited from start on must have arrived; not ok if only the connection's timeout bounds it.
func (b *Reader) arrivesBy(r *http.Request, start time.Time) (end time.Time, ok bool) {
	size := r.ContentLength
	if size < 0 {
		size = b.Limit
	}
	switch {
	case size > smallBody:
		end = start.Add(bodyGrace + time.Duration(size)*time.Second/slowestBody)
	case b.Small > 0:
		end = start.Add(b.Small)
	default: // the usual event; Read refuses what arrives too late
		return end, false
	}
	deadline, bounded := r.Context().Deadline()
	if latest := deadline.Add(-answerTime); bounded && latest.Before(end) {
		end = latest
	}
	return end, true
}

// maxDrain is how many bytes above the body limit are read before an answer, for drainTime. More are read after it, for lateDrainTime.
const (
	maxDrain      = 16 << 20
	drainTime     = 10 * time.Second
	lateDrainTime = 30 * time.Second
)

// Drain reads the rest of a body before its refusal is written. Many clients read no
// answer before they have sent the whole body: if the connection is closed under them, as
// net/http does with more than 256 KiB unread, they see only that. Drain does not wait
// for a client that waits for 100-continue, nor for a body that is
// late already. A client that gets a 5xx sends the request again in any case. HTTP/2
// clients read while they send, and one connection carries hundreds of requests.
// If the body is far longer, the answer comes first: the caller writes it and then calls after.
func (b *Reader) Drain(r *http.Request, to http.ResponseWriter, p *problem.Problem) (after func()) {
	none := func() {}
	switch {
	case r.ProtoMajor > 1 || r.Body == nil || r.ContentLength == 0:
		return none
	case r.Header.Get("Expect") != "" || p.Status == http.StatusRequestTimeout || p.Status >= http.StatusInternalServerError:
		return none
	}
	if r.ContentLength <= b.Limit+maxDrain && b.discard(r, to, b.Limit+maxDrain, drainTime) < b.Limit+maxDrain || to == nil {
		return none
	}
	control := http.NewResponseController(to)
	if control.EnableFullDuplex() != nil { // else net/http ends the body when the answer begins
		return none
	}
	return func() {
		if control.Flush() == nil {
			b.discard(r, to, math.MaxInt64, lateDrainTime)
		}
	}
}

// discard reads at most n bytes of a body, until within is over or the server shuts down.
func (b *Reader) discard(r *http.Request, to http.ResponseWriter, n int64, within time.Duration) (read int64) {
	if to != nil {
		control := http.NewResponseController(to)
		_ = control.SetReadDeadline(time.Now().Add(within))
		defer b.onShutdown(func() { _ = control.SetReadDeadline(time.Now()) })()
	}
	read, _ = io.CopyN(io.Discard, r.Body, n) // the read deadline ends the wait for missing bytes
	return read
}

// onShutdown calls end if the server shuts down before over is called.
func (b *Reader) onShutdown(end func()) (over func()) {
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-b.Shutdown:
			end()
		case <-done:
		}
	})
	return func() { close(done); watch.Wait() }
}
