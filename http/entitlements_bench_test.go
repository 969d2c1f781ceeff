package http_test

import (
	nethttp "net/http"
	"testing"

	"github.com/meterplex/meterplex/http"
)

// discardWriter is a ResponseWriter that discards the answer.
type discardWriter struct {
	header nethttp.Header
	status int
}

func (n *discardWriter) Header() nethttp.Header         { return n.header }
func (n *discardWriter) WriteHeader(status int)         { n.status = status }
func (n *discardWriter) Write(body []byte) (int, error) { return len(body), nil }

// BenchmarkCheck measures a check without the cost of the standard library's server.
func BenchmarkCheck(b *testing.B) {
	var server *http.Server
	w := newTestService(b, func(s *http.Server) { server = s })
	w.catalogue()
	p := w.newAccount("acme")
	w.fold()
	server.Registerer = nil
	handler, err := server.Handler()
	w.must(err)
	for _, path := range []string{"/livez", "/api/v1/entitlements/api_calls/check", "/api/v1/entitlements/api_calls/check?amount=5"} {
		b.Run(path, func(b *testing.B) {
			request, err := nethttp.NewRequest("GET", path, nil)
			w.must(err)
			request.Header.Set("Authorization", "Bearer "+p.key)
			answer := &discardWriter{header: nethttp.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				clear(answer.header)
				handler.ServeHTTP(answer, request)
			}
			if answer.status != nethttp.StatusOK {
				b.Fatal(answer.status)
			}
		})
	}
}
