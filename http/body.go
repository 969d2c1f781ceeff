package http

import (
	"errors"
	"io"
	"math/bits"
	"mime"
	"net"
	nethttp "net/http"
	"strconv"
	"strings"
	"sync"
	"time"

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

// readBody reads and decompresses a whole body. Both the sent and the decompressed size
// are bounded, whatever the headers say.
func (s *service) readBody(r *nethttp.Request, takes func(media string) bool) ([]byte, *Problem) {
	if p := checkMedia(r, takes); p != nil {
		return nil, p
	}
	limit, charge := s.limits.Body, &exchangeOf(r.Context()).charge
	if r.ContentLength > limit {
		return nil, bodyProblem(errBodyTooLarge, limit)
	}
	if !charge.fits(r.ContentLength) {
		return nil, tooLargeTogether()
	}
	defer s.setReadDeadline(r)()
	body, err := s.unpackers.read(&limitedReader{from: r.Body, left: limit}, r, limit, charge)
	if err != nil {
		return nil, bodyProblem(err, limit)
	}
	return body, nil
}

// maxDrain is how many bytes above the body limit are still read from a connection.
const maxDrain = 16 << 20

// drain reads the rest of a body before its refusal is written. Many clients read no
// answer before they have sent everything: if the connection is closed under them, as
// net/http does with more than 256 KiB unread, they see only that. drain does not wait
// for a client that announces far more or waits for 100-continue, nor for a body that is
// late already. A client that gets a 5xx sends the request again in any case. HTTP/2
// clients read while they send, and one connection carries hundreds of requests.
func (s *service) drain(r *nethttp.Request, p *Problem) {
	switch {
	case r.ProtoMajor > 1 || r.Body == nil || r.ContentLength == 0 || r.ContentLength > s.limits.Body+maxDrain:
		return
	case r.Header.Get("Expect") != "" || p.Status == nethttp.StatusRequestTimeout || p.Status >= nethttp.StatusInternalServerError:
		return
	}
	if x := exchangeOf(r.Context()); x.to != nil {
		control := nethttp.NewResponseController(x.to)
		_ = control.SetReadDeadline(time.Now().Add(bodyGrace))
		defer s.onShutdown(func() { _ = control.SetReadDeadline(time.Now()) })()
	}
	_, _ = io.CopyN(io.Discard, r.Body, s.limits.Body+maxDrain) // the read deadline ends the wait for missing bytes
}

// onShutdown calls end if the server shuts down before over is called.
func (s *service) onShutdown(end func()) (over func()) {
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-s.leaving:
			end()
		case <-done:
		}
	})
	return func() { close(done); watch.Wait() }
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

// bufferPools are pools of large buffers for bodies and answers: one pool for each power
// of two from minPooled to maxPooled.
var bufferPools [7]sync.Pool

// Sizes of pooled buffers: smaller buffers cost little, larger ones are rare.
const (
	minPooled = 16 << 10
	maxPooled = minPooled << (len(bufferPools) - 1)
)

// bufferSize is the buffer size to allocate for n bytes: the next power of two if buffers
// of that size are pooled, else n.
func bufferSize(n int) int {
	if n < minPooled || n > maxPooled {
		return n
	}
	return 1 << bits.Len(uint(n-1))
}

// poolIndex returns the index of the pool for a size, or -1.
func poolIndex(size int) int {
	if size < minPooled || size > maxPooled || size&(size-1) != 0 {
		return -1
	}
	return bits.Len(uint(size/minPooled)) - 1
}

// getBuffer returns an empty buffer of exactly that capacity.
func getBuffer(size int) []byte {
	if pool := poolIndex(size); pool >= 0 {
		if kept, ok := bufferPools[pool].Get().(*[]byte); ok {
			return (*kept)[:0]
		}
	}
	return make([]byte, 0, size)
}

// putBuffer returns an unreferenced buffer to its pool.
func putBuffer(b []byte) {
	if pool := poolIndex(cap(b)); pool >= 0 {
		bufferPools[pool].Put(&b)
	}
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

// isJSONMedia accepts the media type of the catalogue's bodies.
func isJSONMedia(media string) bool { return media == "application/json" }

// checkMedia checks the Content-Type: an accepted media type, in UTF-8.
func checkMedia(r *nethttp.Request, takes func(media string) bool) *Problem {
	values := r.Header["Content-Type"]
	if len(values) == 1 && values[0] == "application/json" && takes(values[0]) {
		return nil
	}
	if len(values) == 1 {
		media, parameters, err := mime.ParseMediaType(values[0])
		charset, named := parameters["charset"]
		if err == nil && takes(media) && (!named || strings.EqualFold(charset, "utf-8")) {
			return nil
		}
	}
	return newProblem("media_type_unsupported", "Send JSON in UTF-8 with Content-Type: application/json, or another type that this route documents")
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
