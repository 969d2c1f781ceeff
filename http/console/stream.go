package console

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/meterplex/meterplex/http/auth"
)

// stream is a live part of a page: the API's stream of server-sent events, each rendered by a template. The script of the console swaps the text
// of an event into the element that has the stream's name as its id.
type stream struct {
	path     string
	params   []string
	template string // a template that templates/ defines; its data is the event's object
	request  func(v *visit) (path string, query url.Values)
	// shared is set if it is the tail of the log: all viewers of the same filters share one read a second.
	shared bool
	within time.Duration // how long an event may wait for a browser that does not read; 0: streamWrite
}

const mediaEvents = "text/event-stream"

// stream serves a live part until the browser leaves, the session ends, or the server shuts down.
func (c *Console) stream(p *page, s *stream) func(w http.ResponseWriter, r *http.Request) error {
	rule := &auth.Route{Method: http.MethodGet, Path: s.path, Who: p.who, Scopes: p.scopes}
	return func(w http.ResponseWriter, r *http.Request) error {
		v, err := c.visit(w, r, rule)
		if err != nil {
			return err
		}
		if err = v.read(r.URL.RawQuery, s.params); err != nil {
			return err
		}
		if r.Method == http.MethodHead {
			w.Header().Set("Content-Type", mediaEvents)
			return nil
		}
		leave, err := c.viewers.enter(v.tenant)
		if err != nil {
			return err
		}
		defer leave()
		if s.shared {
			return c.followTail(v, s)
		}
		return c.follow(v, s)
	}
}

func (c *Console) follow(v *visit, s *stream) error {
	path, query := s.request(v)
	header := http.Header{"Accept": {mediaEvents}}
	if last := v.r.Header.Get("Last-Event-ID"); last != "" { // a browser that connects again goes on after it
		header.Set("Last-Event-ID", last)
	}
	out := &frames{to: v.w, deadline: deadlineOf(v.w, s), header: http.Header{}, render: c.renders.of(c.templates.shared(s.template))}
	if err := c.relay(v, request{Method: http.MethodGet, Path: path, Query: query, header: header}, out); err != nil {
		return err
	}
	if out.refused.Len() > 0 {
		return refusalIn(out.status, out.refused.Bytes())
	}
	return nil
}

// relay lets the API answer a request of a visit while its session holds.
func (c *Console) relay(v *visit, req request, out http.ResponseWriter) error {
	v, end := c.watched(v)
	defer end()
	r, err := v.requestOf(req)
	if err != nil {
		return err
	}
	c.API.ServeHTTP(out, r)
	return nil
}

// watched returns a visit whose request ends with its session, and a function that ends it.
func (c *Console) watched(v *visit) (*visit, func()) {
	ctx, cancel := context.WithCancel(v.r.Context())
	within := *v
	within.r = v.r.WithContext(ctx)
	leave := c.watching.join(c, &watchedStream{visitor: *v.visitor, end: cancel})
	return &within, func() { cancel(); leave() }
}

// frames is the answer of the API's stream: it renders each event, and writes it to the browser.
type frames struct {
	to       http.ResponseWriter
	deadline browserDeadline
	header   http.Header
	render   func(data string) (string, error)
	status   int
	partial  []byte       // the begin of an event
	refused  bytes.Buffer // the problem of a refused stream
}

func (f *frames) Header() http.Header { return f.header }

func (f *frames) WriteHeader(status int) {
	if f.status != 0 {
		return
	}
	if f.status = status; status == http.StatusOK {
		h := f.to.Header()
		h.Set("Content-Type", mediaEvents)
		h.Set("X-Accel-Buffering", "no")
		f.to.WriteHeader(status)
	}
}

func (f *frames) Write(b []byte) (int, error) {
	f.WriteHeader(http.StatusOK)
	if f.status != http.StatusOK {
		return f.refused.Write(b)
	}
	f.partial = append(f.partial, b...)
	for {
		event, rest, found := bytes.Cut(f.partial, []byte("\n\n"))
		if !found {
			return len(b), nil
		}
		if err := f.event(event); err != nil {
			return 0, err
		}
		f.partial = rest
	}
}

// event writes one event, rendered. Comments, which hold the connection open, pass as they are.
func (f *frames) event(raw []byte) error {
	var data, out strings.Builder
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSuffix(line, "\n")
		switch value, isData := strings.CutPrefix(line, "data:"); {
		case isData:
			data.WriteString(strings.TrimPrefix(value, " "))
		case strings.HasPrefix(line, "id:"), strings.HasPrefix(line, "retry:"), strings.HasPrefix(line, ":"):
			out.WriteString(line + "\n")
		}
	}
	if data.Len() > 0 {
		lines, err := f.render(data.String())
		if err != nil {
			return err
		}
		out.WriteString(lines)
	}
	f.deadline.begin()
	_, err := f.to.Write([]byte(out.String() + "\n"))
	return err
}

// renders are the last rendered events, one for each template: viewers of one part get the same events at the same time.
type renders struct {
	mu   sync.Mutex
	last map[*pageTemplate]*rendered
}

// rendered is the data of an event, and its lines.
type rendered struct {
	mu          sync.Mutex
	data, lines string
}

// of returns the function that renders the data of an event by a template. The viewers of an event wait for the first of them.
func (r *renders) of(t *pageTemplate) func(data string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[*pageTemplate]*rendered{}
	}
	if r.last[t] == nil {
		r.last[t] = new(rendered)
	}
	last := r.last[t]
	return func(data string) (string, error) {
		last.mu.Lock()
		defer last.mu.Unlock()
		if data == last.data {
			return last.lines, nil
		}
		d, err := decode(strings.NewReader(data))
		if err != nil {
			return "", err
		}
		lines, err := dataOf(t, d)
		if err == nil {
			last.data, last.lines = data, lines
		}
		return lines, err
	}
}

// dataOf renders the lines of an event's data.
func dataOf(t *pageTemplate, d doc) (string, error) {
	var text, lines strings.Builder
	if err := t.Execute(&text, d); err != nil {
		return "", err
	}
	for line := range strings.Lines(lineEnds().Replace(text.String())) {
		lines.WriteString("data: " + strings.TrimSuffix(line, "\n") + "\n")
	}
	return lines.String(), nil
}

// lineEnds makes each end of a line "\n": a browser ends the field of an event at "\r", too, so that hostile text could add fields.
func lineEnds() *strings.Replacer { return strings.NewReplacer("\r\n", "\n", "\r", "\n") }

// Flush implements http.Flusher for the API.
func (f *frames) Flush() { _ = f.deadline.flush() }

// SetWriteDeadline implements what http.ResponseController needs.
func (f *frames) SetWriteDeadline(at time.Time) error { return f.deadline.control.SetWriteDeadline(at) }

// SetReadDeadline is never needed: a stream has no body.
func (f *frames) SetReadDeadline(time.Time) error { return nil }
