package http

import (
	"errors"
	"io"
	"mime"
	"net"
	nethttp "net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// firstRoom is what is set aside for a body before any of it has come: enough for
// a batch of usual events, too little to be asked for in vain.
const firstRoom = 128 << 10

// maxWindow is the largest window that zstd's own levels use.
const maxWindow = 8 << 20

var errBodyTooLarge = errors.New("the body is over its limit")

// readBody reads and decompresses a whole body. Neither what is sent nor what it
// becomes may be over the limit, whatever the headers say.
func (s *service) readBody(r *nethttp.Request, takes func(media string) bool) ([]byte, *Problem) {
	if p := checkMedia(r, takes); p != nil {
		return nil, p
	}
	limit := s.limits.Body
	if r.ContentLength > limit {
		return nil, bodyProblem(errBodyTooLarge, limit)
	}
	sent := &bounded{from: r.Body, left: limit}
	source, release, p := s.unpackers.open(sent, r.Header["Content-Encoding"], limit)
	if p != nil {
		return nil, p
	}
	defer release()
	body, err := readAll(&bounded{from: source, left: limit}, r.ContentLength)
	if err != nil {
		return nil, bodyProblem(err, limit)
	}
	return body, nil
}

func readAll(from io.Reader, guess int64) ([]byte, error) {
	room := int64(512)
	if guess > 0 {
		room = min(guess+1, firstRoom) // one more, so that the end is seen without growing
	}
	body := make([]byte, 0, room)
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
			body = append(body, 0)[:len(body)]
		}
	}
}

func bodyProblem(err error, limit int64) *Problem {
	var network net.Error
	switch {
	case errors.Is(err, errBodyTooLarge) || errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return newProblem("body_too_large", "The body may have at most "+strconv.FormatInt(limit, 10)+" bytes, after decompression too")
	case errors.As(err, &network) && network.Timeout():
		return newProblem("request_timeout", "The body did not arrive in time; send it again")
	}
	return newProblem("malformed_body", "The body is corrupt or ends too early")
}

// bounded reads up to left bytes and fails where there are more.
type bounded struct {
	from io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
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

// isJSONMedia is what the catalogue takes.
func isJSONMedia(media string) bool { return media == "application/json" }

// checkMedia holds the Content-Type against what is taken, which is UTF-8 only.
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

// unpackers keep decompressors for the next request. With one worker each, they
// have no goroutines.
type unpackers struct{ gzip, zstd sync.Pool }

// open gives the decompressed body; release puts back what it took.
func (u *unpackers) open(sent io.Reader, encodings []string, limit int64) (source io.Reader, release func(), p *Problem) {
	encoding := strings.ToLower(strings.Join(encodings, ","))
	switch encoding {
	case "", "identity":
		return sent, func() {}, nil
	case "gzip":
		return u.openGzip(sent, limit)
	case "zstd":
		return u.openZstd(sent, limit)
	}
	return nil, nil, newProblem("content_encoding_unsupported", "Content-Encoding may be gzip or zstd, one of them, or be left out")
}

func (u *unpackers) openGzip(sent io.Reader, limit int64) (io.Reader, func(), *Problem) {
	z, _ := u.gzip.Get().(*gzip.Reader)
	if z == nil {
		z = new(gzip.Reader)
	}
	if err := z.Reset(sent); err != nil {
		return nil, nil, bodyProblem(err, limit)
	}
	return z, func() { u.gzip.Put(z) }, nil
}

func (u *unpackers) openZstd(sent io.Reader, limit int64) (io.Reader, func(), *Problem) {
	z, _ := u.zstd.Get().(*zstd.Decoder)
	var err error
	if z == nil {
		z, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	}
	if err == nil {
		err = z.Reset(sent)
	}
	if err != nil {
		return nil, nil, bodyProblem(err, limit)
	}
	return z, func() { _ = z.Reset(nil); u.zstd.Put(z) }, nil
}
