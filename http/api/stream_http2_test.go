package api

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// Over HTTP/2 a stream that waits for the database is not reset by the deadline of its last write.
func TestStreamsOverHTTP2OutliveTheirWaits(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l := &Stream{Ctx: r.Context(), w: w, control: http.NewResponseController(w), Buffer: []byte("one\n")}
		for range 8 {
			l.Pause()
		}
		_ = l.Flush()
	}))
	server.EnableHTTP2, server.Config.WriteTimeout = true, 4*pollEvery
	server.StartTLS()
	defer server.Close()
	began := time.Now()
	answer, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatalf("after %s: %v", time.Since(began), err)
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "one\n" || answer.ProtoMajor != 2 {
		t.Errorf("%q over HTTP/%d: %v", body, answer.ProtoMajor, err)
	}
}
