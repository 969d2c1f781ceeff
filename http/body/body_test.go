package body

import (
	"bytes"
	stdgzip "compress/gzip"
	"context"
	"io"
	"mime"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"

	"github.com/meterplex/meterplex/http/admission"
	"github.com/meterplex/meterplex/http/buffer"
)

// A body is read correctly into a reused buffer.
func TestBodiesAreReadIntoUsedBuffers(t *testing.T) {
	for size := buffer.MinPooled; size <= buffer.MaxPooled; size *= 2 {
		buffer.Put(bytes.Repeat([]byte{0xff}, size))
	}
	for _, n := range []int{0, 1, buffer.MinPooled, firstRoom - 1, firstRoom, 142_012, 3 * firstRoom, buffer.MaxPooled + 5} {
		sent := bytes.Repeat([]byte(uuid.NewString()), n/36+1)[:n]
		for _, told := range []int64{int64(n), -1} {
			charge := &admission.Charge{}
			got, err := readAll(bytes.NewReader(sent), told, charge)
			if err != nil || !bytes.Equal(got, sent) {
				t.Fatalf("%d bytes, told %d: %d, %v", n, told, len(got), err)
			}
			if told > 0 && n >= buffer.MinPooled && n < buffer.MaxPooled &&
				(cap(got) > buffer.MaxPooled || buffer.SizeFor(cap(got)) != cap(got)) {
				t.Errorf("%d bytes are read into a buffer of %d, which is not kept", n, cap(got))
			}
			buffer.Put(got)
		}
	}
}

// packed compresses with both codings.
func packed(plain []byte) (gzipped, zstandard []byte) {
	var b bytes.Buffer
	z := stdgzip.NewWriter(&b)
	_, _ = z.Write(plain)
	_ = z.Close()
	w, _ := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	return b.Bytes(), w.EncodeAll(plain, nil)
}

// FuzzUnpack: a decompressed body equals the output of another implementation, never
// exceeds the limit, and its charge is released. An invalid body does not affect the next
// one.
func FuzzUnpack(f *testing.F) {
	const most = 4 << 10
	for _, plain := range [][]byte{nil, []byte(`{"events":[]}`), bytes.Repeat([]byte("a"), most), bytes.Repeat([]byte("a"), most+1),
		make([]byte, 1<<20)} {
		g, z := packed(plain)
		f.Add("gzip", g)
		f.Add("zstd", z)
		f.Add("gzip", append(g[:len(g):len(g)], g...))
		f.Add("zstd", append(z[:len(z):len(z)], z...))
		f.Add("gzip", g[:len(g)/2])
		f.Add("zstd", z[:len(z)/2])
		f.Add("", plain[:min(len(plain), most+1)])
	}
	f.Add("GZIP", []byte("\x1f\x8b"))
	f.Add("gzip, zstd", []byte("x"))
	f.Add("br", []byte("x"))
	var kept unpackers
	f.Fuzz(func(t *testing.T, coding string, sent []byte) {
		kind := (&admission.Limits{IngestMemory: 64 << 20}).Ingest()
		held := &kind.Memory
		unpack := func(coding string, sent []byte) ([]byte, error) {
			c, _ := admission.OpenCharge(held, nil)
			defer c.Close()
			r := httptest.NewRequest("POST", "/", bytes.NewReader(sent))
			r.Header.Set("Content-Encoding", coding)
			return kept.read(&limitedReader{from: r.Body, left: most}, r, most, &c)
		}
		body, err := unpack(coding, sent)
		if len(body) > most && err == nil {
			t.Fatalf("%d bytes", len(body))
		}
		if err == nil {
			if want, wrong := reference(coding, sent); wrong != nil || !bytes.Equal(want, body) {
				t.Fatalf("%q %q is %q; another reader says %q, %v", coding, sent, body, want, wrong)
			}
		}
		g, z := packed([]byte("next"))
		for coding, sent := range map[string][]byte{"gzip": g, "zstd": z, "": []byte("next")} {
			if body, err := unpack(coding, sent); err != nil || string(body) != "next" {
				t.Fatalf("the body after it: %q, %v", body, err)
			}
		}
		if held.Load() != 0 {
			t.Fatalf("%d bytes are held by nobody", held.Load())
		}
	})
}

// reference decompresses with another implementation.
func reference(coding string, sent []byte) ([]byte, error) {
	switch strings.ToLower(coding) {
	case "gzip":
		z, err := stdgzip.NewReader(bytes.NewReader(sent))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(z)
	case "zstd":
		z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		return z.DecodeAll(sent, nil)
	}
	return sent, nil
}

// FuzzMedia: an accepted Content-Type is a media type in UTF-8.
func FuzzMedia(f *testing.F) {
	for _, value := range []string{"application/json", "Application/JSON; charset=UTF-8", "application/json;charset=latin1",
		"application/json; charset", "application/json, text/plain", "", "text/plain", "application/json; q=\"",
		"application/cloudevents+json;a=b", "\x00"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		r := httptest.NewRequest("POST", "/", nil)
		r.Header["Content-Type"] = []string{value}
		media := ""
		if checkMedia(r, func(m string) bool { media = m; return IsJSONMedia(m) }) != nil {
			return
		}
		got, parameters, err := mime.ParseMediaType(value)
		if err != nil || got != media || got != "application/json" ||
			parameters["charset"] != "" && !strings.EqualFold(parameters["charset"], "utf-8") {
			t.Fatalf("%q is accepted: %q %v %v", value, got, parameters, err)
		}
	})
}

// deadlines is a connection that records its last read deadline.
type deadlines struct {
	http.ResponseWriter
	last time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error { d.last = at; return nil }

// A small body has the reader's own timeout, after which the deadline stays: net/http would read
// the rest of the body before it writes the answer.
func TestSmallBodiesHaveADeadlineThatStays(t *testing.T) {
	const small, connection = 7 * time.Second, 70 * time.Hour
	for _, c := range []struct {
		small  time.Duration
		body   io.Reader
		length int64
		status int
		most   time.Duration // of the deadline that is left; 0 without a deadline
	}{
		{small, strings.NewReader("{}"), 2, 0, connection},
		{small, iotest.ErrReader(os.ErrDeadlineExceeded), 2, 408, small},
		{small, iotest.ErrReader(io.ErrUnexpectedEOF), 2, 400, connection},
		{0, strings.NewReader("{}"), 2, 0, 0},
		{0, iotest.ErrReader(os.ErrDeadlineExceeded), 2, 408, 0},
		{small, iotest.ErrReader(os.ErrDeadlineExceeded), smallBody + 1, 408, 45 * time.Second},
		{small, iotest.ErrReader(os.ErrDeadlineExceeded), -1, 408, 45 * time.Second},
	} {
		r := httptest.NewRequest("POST", "/", c.body)
		r.ContentLength = c.length
		r.Header.Set("Content-Type", "application/json")
		reader, to, status := &Reader{Limit: MaxSize, Timeout: connection, Small: c.small}, &deadlines{}, 0
		began := time.Now()
		if _, p := reader.Read(r, to, &admission.Charge{}, IsJSONMedia); p != nil {
			status = p.Status
		}
		if status != c.status || to.last.IsZero() != (c.most == 0) || c.most != 0 && (to.last.Before(began.Add(c.most/10)) ||
			to.last.After(time.Now().Add(c.most))) {
			t.Errorf("%d bytes, timeout %s: status %d, deadline in %s; want %d and at most %s", c.length, c.small, status,
				to.last.Sub(began), c.status, c.most)
		}
	}
}

// TestBodiesArriveBeforeTheirRequestsDeadline: the events of a body are stored and answered in the time of the request.
func TestBodiesArriveBeforeTheirRequestsDeadline(t *testing.T) {
	const request, connection = 40 * time.Second, 60 * time.Second
	for _, small := range []time.Duration{0, 5 * time.Second} {
		for _, size := range []int64{2, smallBody, smallBody + 1, MaxSize, -1} {
			ctx, cancel := context.WithTimeout(t.Context(), request)
			deadline, _ := ctx.Deadline()
			r := httptest.NewRequestWithContext(ctx, "POST", "/", iotest.ErrReader(os.ErrDeadlineExceeded))
			r.ContentLength = size
			r.Header.Set("Content-Type", "application/json")
			to := &deadlines{}
			_, p := (&Reader{Limit: MaxSize, Timeout: connection, Small: small}).Read(r, to, &admission.Charge{}, IsJSONMedia)
			cancel()
			usual := small == 0 && size >= 0 && size <= smallBody // the connection's timeout bounds it
			if p == nil || p.Status != http.StatusRequestTimeout || to.last.IsZero() != usual || to.last.After(deadline.Add(-answerTime)) {
				t.Errorf("%d bytes, timeout %s: %v, the body may arrive until %s before the request's deadline", size, small, p,
					deadline.Sub(to.last))
			}
		}
	}
}

// A body that has arrived, but so late that its events could not be answered, is refused: it would be stored, answered 503, and sent again.
func TestABodyThatArrivesTooLateIsRefused(t *testing.T) {
	for left, status := range map[time.Duration]int{answerTime - time.Second: 408, answerTime + time.Minute: 0} {
		ctx, cancel := context.WithTimeout(t.Context(), left)
		r := httptest.NewRequestWithContext(ctx, "POST", "/", strings.NewReader("{}"))
		r.Header.Set("Content-Type", "application/json")
		_, p := (&Reader{Limit: MaxSize, Timeout: time.Minute}).Read(r, &deadlines{}, &admission.Charge{}, IsJSONMedia)
		cancel()
		if (p == nil) != (status == 0) || p != nil && p.Status != status {
			t.Errorf("%s before the request's deadline: %v", left, p)
		}
	}
}
