package http_test

import (
	nethttp "net/http"
	"testing"

	"github.com/meterplex/meterplex/http"
)

// nowhere is a ResponseWriter that discards the answer.
type nowhere struct {
	header nethttp.Header
	status int
}

func (n *nowhere) Header() nethttp.Header         { return n.header }
func (n *nowhere) WriteHeader(status int)         { n.status = status }
func (n *nowhere) Write(body []byte) (int, error) { return len(body), nil }

// BenchmarkCheck measures a check without the cost of the standard library's server.
func BenchmarkCheck(b *testing.B) {
	var server *http.Server
	w := newWorld(b, func(s *http.Server) { server = s })
	w.catalogue()
	p := w.party("acme")
	w.fold()
	server.Registerer = nil
	handler, err := server.Handler()
	w.must(err)
	for _, path := range []string{"/livez", "/api/v1/entitlements/api_calls/check", "/api/v1/entitlements/api_calls/check?amount=5"} {
		b.Run(path, func(b *testing.B) {
			request, err := nethttp.NewRequest("GET", path, nil)
			w.must(err)
			request.Header.Set("Authorization", "Bearer "+p.key)
			answer := &nowhere{header: nethttp.Header{}}
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
