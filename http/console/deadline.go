package console

import (
	"cmp"
	"net/http"
	"time"
)

const (
	// streamWrite is how long an event may wait for a browser that does not read.
	streamWrite = 10 * time.Second
	// longestQuiet is longer than the time between two heartbeats, and than a viewer waits for a read.
	longestQuiet = 2 * time.Minute
)

// browserDeadline bounds the writes of a stream to its browser.
type browserDeadline struct {
	control *http.ResponseController
	within  time.Duration // of the write of an event
}

func deadlineOf(w http.ResponseWriter, s *stream) browserDeadline {
	return browserDeadline{http.NewResponseController(w), cmp.Or(s.within, streamWrite)}
}

// begin bounds the next write.
func (d browserDeadline) begin() { _ = d.control.SetWriteDeadline(time.Now().Add(d.within)) }

// flush ends a write. Over HTTP/2 a deadline resets the stream when it expires, also if nothing is written: it is moved
// behind the next heartbeat.
func (d browserDeadline) flush() error {
	err := d.control.Flush()
	d.rest()
	return err
}

// rest moves the deadline to a time that a stream which goes on never reaches.
func (d browserDeadline) rest() {
	_ = d.control.SetWriteDeadline(time.Now().Add(longestQuiet + d.within))
}
