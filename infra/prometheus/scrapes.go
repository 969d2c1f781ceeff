package prometheus

import (
	"bytes"
	"net/http"
	"sync"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// scrapeAge is how long an answer to a scrape is used. Gathering and compressing all series costs
	// milliseconds of CPU, and anyone who reaches the address may scrape as often as they like.
	scrapeAge = time.Second
	// maxScrapes bounds the answers that differ by the Accept header. Beyond it, clients get the
	// plain text format, which every scraper reads.
	maxScrapes = 8
)

// Scrapes serves the metrics of a registry. All scrapes within a second share one gathering and, if
// they accept the same formats, one answer: any number of clients cost as much gathering as one.
type Scrapes struct {
	registry prom.Gatherer
	now      func() time.Time

	mu      sync.Mutex   // held while one scrape gathers and renders for the others
	at      time.Time    // before the last gathering; zero before the first
	render  http.Handler // renders what was gathered
	answers map[accepted]*scrape
}

// NewScrapes returns the handler of a registry. now is the clock.
func NewScrapes(registry prom.Gatherer, now func() time.Time) *Scrapes {
	return &Scrapes{registry: registry, now: now}
}

// ServeHTTP writes an answer that is at most a second old.
func (s *Scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	got := s.answer(accepted{r.Header.Get("Accept"), r.Header.Get("Accept-Encoding")})
	for name, values := range got.header {
		w.Header()[name] = values
	}
	w.WriteHeader(got.status)
	_, _ = w.Write(got.body.Bytes()) // a client that has gone scrapes again
}

// answer returns the last answer in a format, or renders a new one while other scrapes wait for it.
func (s *Scrapes) answer(as accepted) *scrape {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.now(); s.render == nil || now.Before(s.at) || now.Sub(s.at) >= scrapeAge {
		s.at, s.answers = now, map[accepted]*scrape{}
		s.render = promhttp.HandlerFor(prom.GathererFunc(gathered(s.registry.Gather())), promhttp.HandlerOpts{})
	}
	if len(s.answers) >= maxScrapes && s.answers[as] == nil {
		as = accepted{}
	}
	if s.answers[as] == nil {
		s.answers[as] = as.rendered(s.render)
	}
	return s.answers[as]
}

// gathered returns the function that returns the results of a gathering again.
func gathered[Families any](families Families, err error) func() (Families, error) {
	return func() (Families, error) { return families, err }
}

// accepted holds the headers of a scrape that choose the format of its answer.
type accepted struct{ format, encoding string }

// rendered returns the answer of a handler to a scrape.
func (as accepted) rendered(by http.Handler) *scrape {
	got := &scrape{status: http.StatusOK, header: http.Header{}}
	by.ServeHTTP(got, &http.Request{Method: http.MethodGet, Header: http.Header{"Accept": {as.format}, "Accept-Encoding": {as.encoding}}})
	return got
}

// scrape is a rendered answer, and the http.ResponseWriter that it is rendered to.
type scrape struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (s *scrape) Header() http.Header { return s.header }

func (s *scrape) WriteHeader(status int) { s.status = status }

func (s *scrape) Write(b []byte) (int, error) { return s.body.Write(b) }
