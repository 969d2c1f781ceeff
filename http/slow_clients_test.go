package http_test

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"

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
		began := time.Now()
		_, err = fmt.Fprint(conn, "GET /livez HTTP/1.1\r\nHost: x\r\n")
		w.must(err)
		for i := 0; gap < time.Minute && err == nil; i++ {
			_, err = fmt.Fprintf(conn, "X-%d: y\r\n", i) // fails after the server has closed the connection
			time.Sleep(gap)
		}
		got, _ := io.ReadAll(conn)
		if took := time.Since(began); took > 30*time.Second || strings.HasPrefix(string(got), "HTTP/1.1 200") {
			t.Errorf("%s: held for %s, answered %.100q", name, took, got)
		}
		_ = conn.Close()
	}
}

// TestCompressionBombsUseNoMoreThanABody sends several bodies that decompress to 256 MiB. The
// memory stays within the limit of a body.
func TestCompressionBombsUseNoMoreThanABody(t *testing.T) {
	w := newTestService(t)
	w.catalogue()
	a := w.newAccount("A")
	packed := &strings.Builder{}
	z, err := gzip.NewWriterLevel(packed, gzip.BestSpeed)
	w.must(err)
	zeros := make([]byte, mib)
	for range 256 {
		_, err := z.Write(zeros)
		w.must(err)
	}
	w.must(z.Close())
	bomb := []byte(packed.String())
	before := w.stored()
	var start, end runtime.MemStats
	runtime.ReadMemStats(&start)
	const bombs = 16
	var all sync.WaitGroup
	for range bombs {
		all.Go(func() {
			got := w.do(call{"POST", "/api/v1/usage/events", a.key, map[string]string{"Content-Encoding": "gzip"}, bomb})
			if got.status != 413 && got.status != 503 { // too large alone, or too large together
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
	all.Wait()
	runtime.ReadMemStats(&end)
	if each := (end.TotalAlloc - start.TotalAlloc) / bombs; each > 24*mib {
		t.Errorf("a bomb takes %d MiB", each/mib)
	} else {
		t.Logf("a bomb takes %d MiB", each/mib)
	}
	if after := w.stored(); after != before {
		t.Errorf("%d events were stored", after-before)
	}
}
