package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/meterplex/meterplex/events"
)

// wire is a keep-alive connection for requests. The load shares the machine with the service, so
// it sends prepared requests and parses no more of the answers than it must.
type wire struct {
	conn net.Conn
	in   *bufio.Reader
	line *textproto.Reader
	body []byte

	retryAfter int // seconds, of the last answer
	base       *url.URL
	used       time.Time
}

func dial(ctx context.Context, base string) (*wire, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, errors.New("the service's address is not a URL")
	}
	w := &wire{base: u}
	return w, w.open(ctx)
}

// maxIdle bounds the idle time of a connection. Servers close idle connections, and a
// request sent during the close gets no answer.
const maxIdle = 2 * time.Second

// open connects, or connects again.
func (w *wire) open(ctx context.Context) (err error) {
	if w.conn != nil {
		w.conn.Close()
	}
	u := w.base
	if u.Scheme == "https" {
		w.conn, err = new(tls.Dialer).DialContext(ctx, "tcp", withPort(u, "443"))
	} else {
		w.conn, err = new(net.Dialer).DialContext(ctx, "tcp", withPort(u, "80"))
	}
	if err != nil {
		w.conn = nil
		return fmt.Errorf("connect to the service: %w", err)
	}
	w.in = bufio.NewReaderSize(w.conn, 64<<10)
	w.line, w.used = textproto.NewReader(w.in), time.Now()
	return nil
}

func withPort(u *url.URL, port string) string {
	if u.Port() != "" {
		port = u.Port()
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// dialAll opens a connection for each client, to the instances in turn.
func dialAll(ctx context.Context, urls []string, clients int) ([]*wire, func(), error) {
	var wires []*wire
	closeAll := func() {
		for _, w := range wires {
			if w.conn != nil {
				w.conn.Close()
			}
		}
	}
	for client := range clients {
		w, err := dial(ctx, urls[client%len(urls)])
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		wires = append(wires, w)
	}
	return wires, closeAll, nil
}

// answerTime bounds the wait for an answer. A request without one by then ends the measurement.
const answerTime = 60 * time.Second

// send sends a request and reads the whole answer. The body is valid until the next call.
func (w *wire) send(request []byte) (status int, body []byte, err error) {
	now := time.Now()
	if now.Sub(w.used) > maxIdle {
		ctx, cancel := context.WithTimeout(context.Background(), answerTime)
		defer cancel()
		if err := w.open(ctx); err != nil {
			return 0, nil, err
		}
	}
	if err := w.conn.SetDeadline(now.Add(answerTime)); err != nil {
		return 0, nil, fmt.Errorf("set a request's deadline: %w", err)
	}
	if _, err := w.conn.Write(request); err != nil {
		return 0, nil, fmt.Errorf("send a request: %w", err)
	}
	first, err := w.line.ReadLineBytes()
	if err != nil || len(first) < len("HTTP/1.1 200") {
		return 0, nil, fmt.Errorf("read an answer: %w", errors.Join(err, errShort))
	}
	if status, err = strconv.Atoi(string(first[9:12])); err != nil {
		return 0, nil, fmt.Errorf("read an answer's status: %w", err)
	}
	length, err := w.header()
	if err != nil {
		return 0, nil, err
	}
	if cap(w.body) < length {
		w.body = make([]byte, length)
	}
	w.body = w.body[:length]
	if _, err := io.ReadFull(w.in, w.body); err != nil {
		return 0, nil, fmt.Errorf("read an answer's body: %w", err)
	}
	w.used = time.Now()
	return status, w.body, nil
}

var errShort = errors.New("it is not HTTP/1.1 with a Content-Length; if there is a proxy, measure the service itself")

// header skips the header and returns the body's length.
func (w *wire) header() (int, error) {
	length := -1
	w.retryAfter = 0
	for {
		line, err := w.line.ReadLineBytes()
		if err != nil {
			return 0, fmt.Errorf("read an answer's header: %w", err)
		}
		if len(line) == 0 {
			break
		}
		if v, found := bytes.CutPrefix(line, []byte("Retry-After: ")); found {
			w.retryAfter, _ = strconv.Atoi(string(v))
		}
		if v, found := bytes.CutPrefix(line, []byte("Content-Length: ")); found {
			if length, err = strconv.Atoi(string(v)); err != nil {
				return 0, fmt.Errorf("read an answer's length: %w", err)
			}
		}
	}
	if length < 0 {
		return 0, errShort
	}
	return length, nil
}

// exchange sends a message and checks the answer: of usage, that every event was accepted.
func (w *wire) exchange(m *message) error {
	status, body, err := w.send(m.next())
	switch {
	case err != nil:
		return err
	case status == m.status && bytes.HasPrefix(body, m.expect):
		return nil
	case status == 429 || status == 503:
		return &refusal{status, time.Duration(w.retryAfter) * time.Second}
	case status == m.status && len(m.ids) > 0:
		return fmt.Errorf("not all %d events were accepted: %.300s", m.size, body)
	default:
		return &Answer{m.what, status, bytes.Clone(body)}
	}
}

// lastPosition reads the position of the last event of the last answer.
func (w *wire) lastPosition() (events.Position, error) {
	const member = `"position":"`
	at := bytes.LastIndex(w.body, []byte(member))
	if at < 0 {
		return events.Position{}, fmt.Errorf("the answer has no position: %.300s", w.body)
	}
	text, _, _ := strings.Cut(string(w.body[at+len(member):]), `"`)
	return events.ParsePosition(text)
}
