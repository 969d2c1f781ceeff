// Package body reads the bodies of requests: decompressed, and bounded in size, memory and
// time.
package body

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/meterplex/meterplex/http/admission"
	"github.com/meterplex/meterplex/http/buffer"
	"github.com/meterplex/meterplex/http/problem"
)

// MaxSize is the maximum size of a body in bytes, both as sent and decompressed.
const MaxSize = 4 << 20

// firstRoom is the largest initial buffer of a body: large enough for a batch of usual
// events, small enough to waste little if the body never arrives.
const firstRoom = 128 << 10

// maxWindow is the largest window that zstd's own levels use, and the memory that
// decompressing a body may take.
const maxWindow = 8 << 20

var errBodyTooLarge = errors.New("the body is over its limit")

// Reader reads the bodies of requests. It is wired by a struct literal.
type Reader struct {
	Limit    int64           // of the size, as MaxSize
	Timeout  time.Duration   // the connection's read timeout, after a body has arrived
	Small    time.Duration   // the timeout of a small body; 0 means the connection's
	Shutdown <-chan struct{} // closed if the server shuts down: it does not wait for refused bodies then

	unpackers unpackers
}

// Read reads and decompresses a whole body. Both the sent and the decompressed size are
// bounded, whatever the headers say. to is the answer's connection, nil in unit tests.
func (b *Reader) Read(r *http.Request, to http.ResponseWriter, charge *admission.Charge, takes func(media string) bool) ([]byte,
	*problem.Problem) {
	if p := checkMedia(r, takes); p != nil {
		return nil, p
	}
	if r.ContentLength > b.Limit {
		return nil, bodyProblem(errBodyTooLarge, b.Limit)
	}
	if !charge.Fits(r.ContentLength) {
		return nil, problem.OutOfMemory()
	}
	relax := b.setReadDeadline(r, to)
	body, err := b.unpackers.read(&limitedReader{from: r.Body, left: b.Limit}, r, b.Limit, charge)
	if err != nil {
		p := bodyProblem(err, b.Limit)
		if p.Status != http.StatusRequestTimeout { // else net/http would wait for the rest before it answers
			relax()
		}
		return nil, p
	}
	relax()
	if deadline, bounded := r.Context().Deadline(); bounded && time.Until(deadline) < answerTime {
		return nil, bodyProblem(os.ErrDeadlineExceeded, b.Limit)
	}
	return body, nil
}

// readAll grows its buffer as bytes arrive: a client that announces a large body and
// sends little must not take the memory of others.
func readAll(from io.Reader, guess int64, charge *admission.Charge) ([]byte, error) {
	room := 512
	if guess > 0 {
		room = buffer.SizeFor(int(min(guess+1, firstRoom))) // one byte more, to see EOF without growing
	}
	if !charge.Acquire(int64(room)) {
		return nil, problem.OutOfMemory()
	}
	body := buffer.Get(room)
	for {
		n, err := from.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if err == io.EOF {
			return body, nil
		}
		if err != nil {
			return nil, err
		}
		if len(body) == cap(body) {
			if !charge.Acquire(int64(cap(body))) {
				return nil, problem.OutOfMemory()
			}
			larger := append(buffer.Get(2*cap(body)), body...)
			buffer.Put(body)
			body = larger
		}
	}
}

func bodyProblem(err error, limit int64) *problem.Problem {
	var network net.Error
	var ours *problem.Problem
	switch {
	case errors.As(err, &ours):
		return ours
	case errors.Is(err, errBodyTooLarge) || errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return problem.New("body_too_large", "The body may have at most "+strconv.FormatInt(limit, 10)+" bytes, after decompression too")
	case errors.As(err, &network) && network.Timeout():
		return problem.New("request_timeout", "The body did not arrive in time; send it again")
	}
	return problem.New("malformed_body", "The body is corrupt or ends too early")
}

// limitedReader reads up to left bytes and fails if there are more.
type limitedReader struct {
	from io.Reader
	left int64
}

func (b *limitedReader) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.from.Read(p)
	if int64(n) > b.left {
		return 0, errBodyTooLarge
	}
	b.left -= int64(n)
	return n, err
}

// unpackers pool decompressors. Each has one worker and therefore no goroutines.
type unpackers struct{ gzip, zstd sync.Pool }

// read returns the decompressed body.
func (u *unpackers) read(sent io.Reader, r *http.Request, limit int64, charge *admission.Charge) ([]byte, error) {
	switch strings.ToLower(strings.Join(r.Header["Content-Encoding"], ",")) {
	case "", "identity":
		return readAll(sent, r.ContentLength, charge)
	case "gzip":
		return u.readGzip(sent, r.ContentLength, limit, charge)
	case "zstd":
		return u.readZstd(sent, r.ContentLength, limit, charge)
	}
	return nil, problem.New("content_encoding_unsupported", "Content-Encoding may be gzip or zstd, one of them, or be left out")
}

func (u *unpackers) readGzip(sent io.Reader, guess, limit int64, charge *admission.Charge) ([]byte, error) {
	z, _ := u.gzip.Get().(*gzip.Reader)
	if z == nil {
		z = new(gzip.Reader)
	}
	if err := z.Reset(sent); err != nil {
		return nil, err
	}
	defer u.gzip.Put(z)
	return readAll(&limitedReader{from: z, left: limit}, guess, charge)
}

// readZstd decompresses after the whole body has arrived. A frame may declare a window
// many times its own size; DecodeAll uses its output as the window.
func (u *unpackers) readZstd(sent io.Reader, guess, limit int64, charge *admission.Charge) ([]byte, error) {
	packed, err := readAll(sent, guess, charge)
	if err != nil {
		return nil, err
	}
	z, _ := u.zstd.Get().(*zstd.Decoder)
	if z == nil {
		if z, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow),
			zstd.WithDecoderMaxMemory(maxWindow)); err != nil {
			return nil, err
		}
	}
	defer u.zstd.Put(z)
	if !charge.Acquire(maxWindow) {
		return nil, problem.OutOfMemory()
	}
	body, err := z.DecodeAll(packed, nil)
	charge.Release(max(0, maxWindow-int64(cap(body))))
	if int64(len(body)) > limit {
		return nil, errBodyTooLarge
	}
	return body, err
}
