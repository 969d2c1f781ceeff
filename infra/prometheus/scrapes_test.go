package prometheus

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/meterplex/meterplex/internal/must"
)

// gatherings is a registry with one series: how often it was gathered.
type gatherings struct {
	*prom.Registry
	mu    sync.Mutex
	n     int
	begin func() // called by each gathering
}

func newGatherings() *gatherings {
	g := &gatherings{Registry: prom.NewRegistry(), begin: func() {}}
	g.MustRegister(prom.NewCounterFunc(prom.CounterOpts{Name: "gatherings_total"}, func() float64 {
		g.begin()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.n++
		return float64(g.n)
	}))
	return g
}

func scrapeOf(h http.Handler, accept, encoding string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", "/metrics", nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	if encoding != "" {
		r.Header.Set("Accept-Encoding", encoding)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// Scrapes that arrive while one gathers, whatever formats they accept, do not gather again.
func TestConcurrentScrapesShareOneGathering(t *testing.T) {
	g := newGatherings()
	gathers, goOn := make(chan struct{}), make(chan struct{})
	g.begin = func() { gathers <- struct{}{}; <-goOn }
	s := NewScrapes(g, func() time.Time { return time.Unix(1_800_000_000, 0) })
	var all sync.WaitGroup
	bodies := make([]string, 64)
	scrape := func(i int) {
		all.Go(func() { bodies[i] = scrapeOf(s, fmt.Sprintf("text/plain;q=0.%d", i%2+1), "").Body.String() })
	}
	scrape(0)
	<-gathers
	for i := range bodies[1:] {
		scrape(i + 1)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); all.Wait() }()
	close(goOn)
	select {
	case <-ended:
	case <-gathers:
		t.Fatal("another scrape gathers")
	}
	for i, body := range bodies {
		if !strings.Contains(body, "gatherings_total 1\n") {
			t.Errorf("scrape %d: %s", i, body)
		}
	}
}

// An answer is used for less than a second, and never after the clock went back.
func TestAScrapeIsAtMostASecondOld(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	s := NewScrapes(newGatherings(), func() time.Time { return now })
	for _, c := range []struct {
		later time.Duration
		want  int
	}{{0, 1}, {0, 1}, {time.Second - 1, 1}, {1, 2}, {999 * time.Millisecond, 2}, {time.Hour, 3}, {-time.Minute, 4}, {time.Second - 1, 4},
		{1, 5}} {
		now = now.Add(c.later)
		for range 2 {
			if got := scrapeOf(s, "", "").Body.String(); !strings.Contains(got, fmt.Sprintf("gatherings_total %d\n", c.want)) {
				t.Errorf("%s later: %s, want %d", c.later, got, c.want)
			}
		}
	}
}

// The formats are those of the library, for each client its own.
func TestScrapesAreInTheFormatThatTheClientAccepts(t *testing.T) {
	g := newGatherings()
	library := promhttp.HandlerFor(g, promhttp.HandlerOpts{})
	const protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
	for _, accept := range []string{"", "*/*", "text/plain", protobuf, "text/plain;q=0.5," + protobuf, "nonsense"} {
		for _, encoding := range []string{"", "gzip", "identity", "br"} {
			got, want := scrapeOf(NewScrapes(g, time.Now), accept, encoding), scrapeOf(library, accept, encoding)
			for _, name := range []string{"Content-Type", "Content-Encoding", "Vary"} {
				if got.Header().Get(name) != want.Header().Get(name) || got.Code != 200 || got.Body.Len() == 0 {
					t.Errorf("%q, %q: status %d, %s %q, want %q", accept, encoding, got.Code, name, got.Header().Get(name),
						want.Header().Get(name))
				}
			}
		}
	}
	unpacked, err := gzip.NewReader(scrapeOf(NewScrapes(g, time.Now), "", "gzip").Body)
	must.OK(t, err)
	if text, err := io.ReadAll(unpacked); err != nil || !strings.Contains(string(text), "gatherings_total ") {
		t.Errorf("%s, %v", text, err)
	}
}

// A failure is answered, and not kept for longer than an answer.
func TestAFailedGatheringIsAnswered(t *testing.T) {
	registry, now := prom.NewRegistry(), time.Unix(1_800_000_000, 0)
	broken := true
	registry.MustRegister(prom.NewGaugeFunc(prom.GaugeOpts{Name: "fine"}, func() float64 { return 1 }))
	registry.MustRegister(prom.CollectorFunc(func(c chan<- prom.Metric) {
		if broken {
			c <- prom.NewInvalidMetric(prom.NewDesc("broken", "", nil, nil), errors.New("the collector is broken"))
		}
	}))
	s := NewScrapes(registry, func() time.Time { return now })
	if got := scrapeOf(s, "", ""); got.Code != 500 {
		t.Errorf("%d %s", got.Code, got.Body)
	}
	broken = false
	now = now.Add(time.Second)
	if got := scrapeOf(s, "", ""); got.Code != 200 || !strings.Contains(got.Body.String(), "fine 1\n") {
		t.Errorf("%d %s", got.Code, got.Body)
	}
}
