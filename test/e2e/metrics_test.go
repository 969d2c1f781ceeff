package e2e

import (
	"bufio"
	"bytes"
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// metric reads one series of an instance, named with its labels; 0 if it does not exist.
func (w *deployment) metric(at *instance, series string) float64 {
	w.t.Helper()
	return metricOf(w, at.url(), series)
}

// scrapeAge is the age that the answer to a scrape may have.
const scrapeAge = time.Second

// awaitFreshMetrics waits until the next scrape counts all that has happened before the call.
func awaitFreshMetrics() { time.Sleep(scrapeAge) }

// metricOf reads one series at an address. An instance without the role api has one, too.
func metricOf(w *deployment, url, series string) float64 {
	w.t.Helper()
	return metricsOf(w, url, func(name string) bool { return name == series })
}

// metricsOf sums the series that wanted accepts by name and labels.
func metricsOf(w *deployment, url string, wanted func(series string) bool) (sum float64) {
	w.t.Helper()
	status, body, err := w.call(w.t.Context(), w.operator, http.MethodGet, url+"/metrics", nil)
	if err != nil || status != http.StatusOK {
		w.t.Fatalf("GET /metrics: %d %v", status, err)
	}
	lines := bufio.NewScanner(bytes.NewReader(body))
	for lines.Scan() {
		at := strings.LastIndexByte(lines.Text(), ' ')
		if at < 0 || !wanted(lines.Text()[:at]) {
			continue
		}
		n, err := strconv.ParseFloat(lines.Text()[at+1:], 64)
		if err != nil {
			w.t.Fatalf("%s: %v", lines.Text(), err)
		}
		sum += n
	}
	return sum
}

// adminURL returns the address of health and metrics that the instance logged at its last start.
func (i *instance) adminURL() (url string) {
	i.t.Helper()
	within(i.t, "the instance logs its admin address", func(context.Context) (bool, string) {
		for _, line := range i.linesOfRun() {
			if _, at, found := strings.Cut(line, "/livez, /readyz and /metrics are at "); found {
				url = at
			}
		}
		return url != "", ""
	})
	return url
}
