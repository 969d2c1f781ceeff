package http

import (
	"errors"
	"io"
	"net"
	nethttp "net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// firstRoom is the largest initial buffer of a body: large enough for a batch of usual
// events, small enough to waste little if the body never arrives.
const firstRoom = 128 << 10

// maxWindow is the largest window that zstd's own levels use, and the memory that
// decompressing a body may take.
const maxWindow = 8 << 20

var errBodyTooLarge = errors.New("the body is over its limit")

// reader reads the bodies of requests.
type reader struct {
	limit     int64           // of a body in bytes, both as sent and decompressed
	leaving   <-chan struct{} // closed if the server shuts down
	unpackers unpackers
}

// newReader returns a reader of bodies up to limit bytes. It stops waiting for the rest of
// a refused body if leaving is closed.
func newReader(limit int64, leaving <-chan struct{}) *reader {
	return &reader{limit: limit, leaving: leaving}
}

// read reads and decompresses a whole body. Both the sent and the decompressed size are
// bounded, whatever the headers say. to is the answer's connection, nil in unit tests.
func (b *reader) read(r *nethttp.Request, to nethttp.ResponseWriter, charge *charge, takes func(media string) bool) ([]byte, *Problem) {
	if p := checkMedia(r, takes); p != nil {
		return nil, p
	}
	if r.ContentLength > b.limit {
		return nil, bodyProblem(errBodyTooLarge, b.limit)
	}
	if !charge.fits(r.ContentLength) {
		return nil, tooLargeTogether()
	}
	defer b.setReadDeadline(r, to)()
	body, err := b.unpackers.read(&limitedReader{from: r.Body, left: b.limit}, r, b.limit, charge)
	if err != nil {
		return nil, bodyProblem(err, b.limit)
	}
	return body, nil
}

// readAll grows its buffer as bytes arrive: a client that announces a large body and
// sends little must not take the memory of others.
func readAll(from io.Reader, guess int64, charge *charge) ([]byte, error) {
	room := 512
	if guess > 0 {
		room = bufferSize(int(min(guess+1, firstRoom))) // one byte more, to see EOF without growing
	}
	if !charge.acquire(int64(room)) {
		return nil, tooLargeTogether()
	}
	body := getBuffer(room)
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
			if !charge.acquire(int64(cap(body))) {
				return nil, tooLargeTogether()
			}
			larger := append(getBuffer(2*cap(body)), body...)
			putBuffer(body)
			body = larger
		}
	}
}

func bodyProblem(err error, limit int64) *Problem {
	var network net.Error
	var ours *Problem
	switch {
	case errors.As(err, &ours):
		return ours
	case errors.Is(err, errBodyTooLarge) || errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return newProblem("body_too_large", "The body may have at most "+strconv.FormatInt(limit, 10)+" bytes, after decompression too")
	case errors.As(err, &network) && network.Timeout():
		return newProblem("request_timeout", "The body did not arrive in time; send it again")
	}
	return newProblem("malformed_body", "The body is corrupt or ends too early")
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
func (u *unpackers) read(sent io.Reader, r *nethttp.Request, limit int64, charge *charge) ([]byte, error) {
	switch strings.ToLower(strings.Join(r.Header["Content-Encoding"], ",")) {
	case "", "identity":
		return readAll(sent, r.ContentLength, charge)
	case "gzip":
		return u.readGzip(sent, r.ContentLength, limit, charge)
	case "zstd":
		return u.readZstd(sent, r.ContentLength, limit, charge)
	}
	return nil, newProblem("content_encoding_unsupported", "Content-Encoding may be gzip or zstd, one of them, or be left out")
}

func (u *unpackers) readGzip(sent io.Reader, guess, limit int64, charge *charge) ([]byte, error) {
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
func (u *unpackers) readZstd(sent io.Reader, guess, limit int64, charge *charge) ([]byte, error) {
	packed, err := readAll(sent, guess, charge)
	if err != nil {
		return nil, err
	}
	z, _ := u.zstd.Get().(*zstd.Decoder)
	if z == nil {
		if z, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(maxWindow)); err != nil {
			return nil, err
		}
	}
	defer u.zstd.Put(z)
	if !charge.acquire(maxWindow) {
		return nil, tooLargeTogether()
	}
	body, err := z.DecodeAll(packed, nil)
	charge.release(max(0, maxWindow-int64(cap(body))))
	if int64(len(body)) > limit {
		return nil, errBodyTooLarge
	}
	return body, err
}
