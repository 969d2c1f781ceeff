package http_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/meterplex/meterplex/http"
)

// TestMissingHeadersTimeOut sends one header byte by byte, and one
// that stops in the middle.
func TestMissingHeadersTimeOut(t *testing.T) {
	w := &testService{TB: t}
	handler, err := (&http.Server{}).Handler()
	w.must(err)
	server := http.NewServer("", handler)
	server.ReadHeaderTimeout = 300 * time.Millisecond
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	defer func() { _ = server.Close(); <-done }()
	for name, gap := range map[string]time.Duration{"stops": time.Hour, "drips": 20 * time.Millisecond} {
		conn, err := net.Dial("tcp", listener.Addr().String())
		w.must(err)
		w.must(conn.SetDeadline(time.Now().Add(time.Minute)))
		_, err = fmt.Fprint(conn, "GET /livez HTTP/1.1\r\nHost: x\r\n")
		w.must(err)
		for i := 0; gap < time.Minute && err == nil; i++ {
			_, err = fmt.Fprintf(conn, "X-%d: y\r\n", i) // fails after the server has closed the connection
			time.Sleep(gap)
		}
		got, err := io.ReadAll(conn)
		if errors.Is(err, os.ErrDeadlineExceeded) || strings.HasPrefix(string(got), "HTTP/1.1 200") {
			t.Errorf("%s: held, %v, answered %.100q", name, err, got)
		}
		_ = conn.Close()
	}
}
