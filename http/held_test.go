package http_test

import (
	"fmt"
	"io"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// requireNothingHeld waits until no request is counted as being in work, and no memory as held by one, in all and of each
// tenant: whatever the answers of a test were, each gives back what it took.
func (w *testService) requireNothingHeld(registerer prometheus.Registerer) {
	w.Helper()
	registry, ok := registerer.(*prometheus.Registry)
	if !ok {
		return
	}
	for until := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		held := heldBy(w, registry)
		if held == "" {
			return
		}
		if time.Now().After(until) {
			w.Errorf("after the last request %s", held)
			return
		}
	}
}

// heldBy describes the resources that requests hold, "" without any.
func heldBy(w *testService, registry *prometheus.Registry) (held string) {
	w.Helper()
	families, err := registry.Gather()
	w.must(err)
	gauges := 0
	for _, f := range families {
		switch f.GetName() {
		case "meterplex_http_requests_in_flight", "meterplex_http_requests_awaited", "meterplex_http_streams",
			"meterplex_http_request_bytes", "meterplex_http_tenants_in_flight":
			for _, m := range f.GetMetric() {
				gauges++
				if n := m.GetGauge().GetValue(); n != 0 {
					held += fmt.Sprintf("%s is %v; ", f.GetName(), n)
				}
			}
		}
	}
	if gauges != 7 {
		w.Fatalf("%d gauges of what requests hold, want 7", gauges)
	}
	return held
}

// raw sends bytes unchanged and returns the answer.
func (w *testService) raw(format string, args ...any) string {
	w.Helper()
	conn, err := net.Dial("tcp", w.addr)
	w.must(err)
	defer conn.Close()
	w.must(conn.SetDeadline(time.Now().Add(time.Minute)))
	_, _ = fmt.Fprintf(conn, format, args...) // the server may refuse and close before all bytes are sent
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.CloseWrite()
	}
	got, _ := io.ReadAll(conn)
	return string(got)
}
