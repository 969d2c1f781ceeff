package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// readTime bounds the measurement of one read: a slow one gets fewer requests.
const readTime = 20 * time.Second

// warmReads is the number of requests with each key before a read is measured.
const warmReads = 2

// Read is the latency of one read with one kind of key. The loop is closed: one client, which
// sends a request after the answer to the one before.
type Read struct {
	Name    string   `json:"read"`
	Key     string   `json:"key"`
	Latency *Latency `json:"latency"`
	Refused int      `json:"refused,omitempty"` // answers 429 and 503, which have no latency
	IsLimit bool     `json:"isLimit,omitempty"` // measured beside the figure
}

// readsAtSize is B13, P12 and console: reads of a tenant whose figure has very many events.
func (r *run) readsAtSize(ctx context.Context) error {
	return r.withService(ctx, 1, tenantSpec{feature: feature, tenants: 1}, func(s *subject) error {
		h, err := r.longHistory(ctx, s)
		if err != nil {
			return err
		}
		keys, err := s.readKeys(ctx)
		if err != nil {
			return err
		}
		for _, g := range h.groups(r.times.figure) {
			if err := r.readGroup(ctx, s, h, keys, &g); err != nil {
				return err
			}
			r.addFigure(g.figure)
		}
		return r.console(ctx, s, h)
	})
}

// longHistory writes a history of one tenant and folds it as the service does: by rebuilds.
func (r *run) longHistory(ctx context.Context, s *subject) (*longHistory, error) {
	shape := oneFigure()
	total := (r.times.figure/int(shape.accepted(historyRun)) + 1) * historyRun
	began := time.Now()
	pens, err := r.writeHistory(ctx, s, total, shape)
	if err != nil {
		return nil, err
	}
	h := &longHistory{historyWriter: pens[0], began: began, ended: time.Now()}
	accepted := h.runs * shape.accepted(historyRun)
	for _, p := range []struct {
		rebuilds string
		events   int64
	}{{aggregates, accepted}, {deadLetters, h.runs*historyRun - accepted}} {
		if _, err := s.rebuilt(ctx, p.rebuilds, int(p.events), rebuildWorkers, nil); err != nil {
			return nil, err
		}
	}
	if err := s.servers.asAdmin(ctx, s.database, "VACUUM (ANALYZE)", "CHECKPOINT"); err != nil {
		return nil, err
	}
	return h, h.readExplained(ctx, s)
}

// Kinds of keys.
const (
	tenantKey   = "tenant"
	operatorKey = "operator"
)

// readKey is a key that sends the reads.
type readKey struct {
	kind, secret string
	// parameter names the tenant; the tenant's own key names it already.
	parameter string
	console   bool // secret is the cookie of a session of the console, whose pages are read
}

// request returns the request of a read.
func (k *readKey) request(ctx context.Context, address, path string) (*http.Request, error) {
	base, header, value := "/api/v1", "Authorization", "Bearer "+k.secret
	if k.console {
		base, header, value = "/console", "Cookie", k.secret
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+base+path, nil)
	if err != nil {
		return nil, fmt.Errorf("make a request: %w", err)
	}
	req.Header.Set(header, value)
	return req, nil
}

// path adds the key's parameter to a path.
func (k *readKey) path(path string) string {
	switch {
	case k.parameter == "":
		return path
	case strings.Contains(path, "?"):
		return path + "&" + k.parameter
	default:
		return path + "?" + k.parameter
	}
}

func (s *subject) readKeys(ctx context.Context) ([]readKey, error) {
	t := &s.tenants[0]
	secret, err := s.operatorAPI().newKey(ctx, t.id, []string{"usage:read", "events:read"}, time.Time{})
	return []readKey{{kind: tenantKey, secret: secret}, {kind: operatorKey, secret: s.operator, parameter: "tenantId=" + t.id.String()}},
		err
}

// readGroup are the reads of a figure.
type readGroup struct {
	figure Figure
	reads  []read
	// The figure's limit: another read, or the reads with one of the keys.
	beside   *read
	limitKey string
}

// readGroup measures the reads of a figure: each with every key in turn, at the same places.
func (r *run) readGroup(ctx context.Context, s *subject, h *longHistory, keys []readKey, g *readGroup) error {
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	defer client.CloseIdleConnections()
	m := &readMeasurement{client: client, url: s.urls[0], history: h, keys: keys}
	end, err := r.servers.measure(ctx)
	if err != nil {
		return err
	}
	reads := g.reads
	if g.beside != nil {
		reads = append(reads, *g.beside)
	}
	began := time.Now()
	for i := range reads {
		list, err := m.measure(ctx, &reads[i], r.times.reads)
		if err != nil {
			return fmt.Errorf("%s: %w", reads[i].name, err)
		}
		for _, x := range list {
			x.IsLimit = i == len(g.reads) || x.Key == g.limitKey
			g.figure.Reads = append(g.figure.Reads, x)
		}
	}
	took, err := end(rate{events: m.sent, took: time.Since(began)})
	g.figure.cost(took, r.servers.meter.memory())
	g.figure.slowest()
	return err
}

// readMeasurement sends reads over one connection.
type readMeasurement struct {
	client  *http.Client
	url     string
	history *longHistory
	keys    []readKey
	sent    int
}

// measure sends a number of requests with each key.
func (m *readMeasurement) measure(ctx context.Context, of *read, requests int) ([]Read, error) {
	list, hists := make([]Read, len(m.keys)), make([]*hdrhistogram.Histogram, len(m.keys))
	for k := range m.keys {
		list[k], hists[k] = Read{Name: of.name, Key: m.keys[k].kind}, newHistogram()
	}
	random := rand.New(rand.NewPCG(13, 100)) // the same places for every read, in every run
	end := time.Now().Add(readTime)
	for i := range warmReads + requests {
		if i > warmReads && time.Now().After(end) {
			break
		}
		p := m.history.place(random)
		for k := range m.keys {
			took, err := m.send(ctx, of, p, &m.keys[k])
			_, refused := isRefusal(err)
			switch {
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case refused:
				list[k].Refused++
			case err != nil:
				return nil, err
			case i >= warmReads:
				record(hists[k], took)
			}
		}
	}
	for k := range list {
		list[k].Latency = latencyOf(hists[k])
	}
	return list, nil
}

// send sends one read and checks its answer, which is not in the measured time.
func (m *readMeasurement) send(ctx context.Context, of *read, p *place, key *readKey) (time.Duration, error) {
	path := key.path(of.path(p))
	req, err := key.request(ctx, m.url, path)
	if err != nil {
		return 0, err
	}
	m.sent++
	began := time.Now()
	status, body, err := m.exchange(req)
	took := time.Since(began)
	switch {
	case err != nil:
		return 0, fmt.Errorf("GET %s: %w", path, err)
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		return 0, &refusal{status, 0}
	case status != http.StatusOK:
		return 0, &Answer{"GET " + path, status, body}
	}
	if err := of.check(p, body); err != nil {
		return 0, fmt.Errorf("GET %s: %w: %.300s", path, err, body)
	}
	return took, nil
}

func (m *readMeasurement) exchange(req *http.Request) (int, []byte, error) {
	resp, err := m.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

// slowest sets the figure and its limit to the greatest p99 of its reads, and notes refused requests.
func (f *Figure) slowest() {
	for i := range f.Reads {
		x := &f.Reads[i]
		if x.Refused > 0 {
			f.note("refused", fmt.Sprintf("%s with the %s's key: %d of %d requests were answered 429 or 503", x.Name, x.Key, x.Refused,
				x.Refused+int(x.Latency.Count)))
		}
		if x.IsLimit {
			f.Limit = max(f.Limit, x.Latency.P99)
		} else {
			f.Value = max(f.Value, x.Latency.P99)
		}
	}
}
