package edge

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/meterplex/meterplex/http/buffer"
)

// A client must take each piece of an answer of several in pieceTime for each request that its connection has in work: they share its
// bandwidth. The pieces, not the answer, have a deadline: a slow client gets all of it. A smaller answer has the time of its request.
const (
	pieceSize = 32 << 10
	pieceTime = 10 * time.Second
)

// answer is the answer to one request. A request of the API is answered after its handler has returned: while the client reads, the
// request holds no slot, no connection of the database and no rows, only the memory of the encoded answer.
type answer struct {
	http.ResponseWriter
	to      *http.Request
	x       *Exchange
	through bool // writes reach the client at once
	full    bool // there is no memory for it
	status  int
	body    []byte
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
	if a.through {
		a.dropBody()
		a.ResponseWriter.WriteHeader(status)
	}
}

// dropBody drops the rest of the request's body as it arrives: HTTP/2 would keep 1 MiB of it for each connection while the answer is not
// read.
func (a *answer) dropBody() {
	if a.to.ProtoMajor > 1 {
		_ = a.to.Body.Close()
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if a.through {
		return a.ResponseWriter.Write(b)
	}
	if !a.full && a.grow(len(b)) {
		a.body = append(a.body, b...)
	}
	return len(b), nil
}

// grow makes room for n more bytes, and charges the request for them. The answer to a change is small and must arrive: it is not refused.
func (a *answer) grow(n int) bool {
	if len(a.body)+n <= cap(a.body) {
		return true
	}
	room := buffer.SizeFor(max(2*cap(a.body), len(a.body)+n))
	more := int64(room - cap(a.body))
	if reads := a.to.Method == http.MethodGet || a.to.Method == http.MethodHead; !reads {
		a.x.charge.Take(more)
	} else if !a.x.charge.Acquire(more) {
		a.full = true
		return false
	}
	larger := append(buffer.Get(room), a.body...)
	buffer.Put(a.body)
	a.body = larger
	return true
}

// FlushError implements the interface of http.ResponseController. An answer that is not written yet is not flushed.
func (a *answer) FlushError() error {
	if !a.through {
		return nil
	}
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// Unwrap lets http.ResponseController find the connection.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// drop discards an answer that is not written yet, and the headers of its body. It reports false if a part is written.
func (a *answer) drop() bool {
	if a.through && a.status != 0 {
		return false
	}
	for _, name := range [...]string{"Content-Encoding", "Content-Length", "ETag"} {
		a.Header().Del(name)
	}
	a.body, a.status, a.through = nil, 0, true
	return true
}

// send writes the answer to the client. It reports false, and writes no byte, if there was no memory for the answer.
func (a *answer) send() bool {
	a.x.slot.release()
	if a.full {
		return !a.drop()
	}
	if a.through || a.status == 0 {
		return true
	}
	a.x.charge.Release(a.x.rows)
	a.x.rows = 0
	a.dropBody()
	if a.status != http.StatusNoContent && a.status != http.StatusNotModified {
		a.Header()["Content-Length"] = []string{strconv.Itoa(len(a.body))}
	}
	a.ResponseWriter.WriteHeader(a.status)
	control, large := http.NewResponseController(a.ResponseWriter), len(a.body) > pieceSize
	for piece := range slices.Chunk(a.body, pieceSize) {
		if large {
			_ = control.SetWriteDeadline(time.Now().Add(pieceTime * time.Duration(a.x.sharing()))) // not in unit tests
		}
		if _, err := a.ResponseWriter.Write(piece); err != nil {
			return true // the client is gone
		}
	}
	if a.to.ProtoMajor > 1 { // else a stream that is not read would wait below the handler, uncounted
		_ = control.Flush()
	}
	buffer.Put(a.body)
	a.body = nil
	return true
}
