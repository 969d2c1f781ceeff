package body

import (
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/meterplex/meterplex/http/problem"
)

// A large body must arrive at slowestBody bytes per second, plus bodyGrace. Small bodies
// have the reader's own timeout, or the connection's.
const (
	slowestBody = 128 << 10
	bodyGrace   = 10 * time.Second
	smallBody   = 64 << 10
)

// setReadDeadline sets the read deadline of a body: by its size, or for one of unknown size by
// the limit. relax restores the connection's.
func (b *Reader) setReadDeadline(r *http.Request, to http.ResponseWriter) (relax func()) {
	size, may := r.ContentLength, b.Small
	small := size >= 0 && size <= smallBody
	if to == nil || small && may == 0 {
		return func() {}
	}
	if size < 0 {
		size = b.Limit
	}
	if !small {
		may = bodyGrace + time.Duration(size)*time.Second/slowestBody
	}
	start, control := time.Now(), http.NewResponseController(to)
	_ = control.SetReadDeadline(start.Add(may))
	return func() { _ = control.SetReadDeadline(start.Add(b.Timeout)) }
}

// maxDrain is how many bytes above the body limit are still read from a connection.
const maxDrain = 16 << 20

// Drain reads the rest of a body before its refusal is written. Many clients read no
// answer before they have sent the whole body: if the connection is closed under them, as
// net/http does with more than 256 KiB unread, they see only that. drain does not wait
// for a client that announces far more or waits for 100-continue, nor for a body that is
// late already. A client that gets a 5xx sends the request again in any case. HTTP/2
// clients read while they send, and one connection carries hundreds of requests.
func (b *Reader) Drain(r *http.Request, to http.ResponseWriter, p *problem.Problem) {
	switch {
	case r.ProtoMajor > 1 || r.Body == nil || r.ContentLength == 0 || r.ContentLength > b.Limit+maxDrain:
		return
	case r.Header.Get("Expect") != "" || p.Status == http.StatusRequestTimeout || p.Status >= http.StatusInternalServerError:
		return
	}
	if to != nil {
		control := http.NewResponseController(to)
		_ = control.SetReadDeadline(time.Now().Add(bodyGrace))
		defer b.onShutdown(func() { _ = control.SetReadDeadline(time.Now()) })()
	}
	_, _ = io.CopyN(io.Discard, r.Body, b.Limit+maxDrain) // the read deadline ends the wait for missing bytes
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
