package e2e

import (
	"bufio"
	"bytes"
	"net/http"
	"strconv"
	"strings"
)

// metric reads one series of an instance, named with its labels; 0 where it is
// not there.
func (w *world) metric(at *instance, series string) float64 {
	w.t.Helper()
	return w.metricOf(at.url(), series)
}

// metricOf reads one series at an address, which an instance without the role api has, too.
func (w *world) metricOf(url, series string) float64 {
	w.t.Helper()
	status, body, err := w.call(w.t.Context(), w.operator, http.MethodGet, url+"/metrics", nil)
	if err != nil || status != http.StatusOK {
		w.t.Fatalf("GET /metrics: %d %v", status, err)
	}
	lines := bufio.NewScanner(bytes.NewReader(body))
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), series+" "); ok {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				w.t.Fatalf("%s: %v", lines.Text(), err)
			}
			return n
		}
	}
	return 0
}
