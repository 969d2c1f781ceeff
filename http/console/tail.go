package console

import (
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Live tails of the log. All viewers of the same filters share one read a second. A viewer first reads what is behind its own place, and joins the
// others at the end of the log.

const (
	// tailEvery is the time between two shared reads.
	tailEvery = time.Second
	// tailPage bounds the events of one read, and those that wait for a viewer. A viewer that falls behind reads for itself again.
	tailPage = 1000
	// tailReads bounds the reads of viewers that are behind: the API has few streams.
	tailReads = 16
	// tailBeat is how often a quiet tail says that it lives: proxies close connections that are idle for longer.
	tailBeat = 15 * time.Second
	// namesKept bounds how long a shared tail shows a former name of a tenant.
	namesKept = time.Minute
)

// tails are the tails that viewers share, by their filters.
type tails struct {
	mu    sync.Mutex
	all   map[string]*tail
	reads chan struct{}
}

// tail is the tail of one filter. It runs while it has viewers.
type tail struct {
	c       *Console
	s       *stream
	key     string
	path    string
	query   url.Values // without a place
	place   string
	viewers map[*tailViewer]struct{}
	ended   chan struct{} // closed once there is no viewer
}

// tailViewer gets the events of a tail. Its channel is closed if it falls behind.
type tailViewer struct {
	v      *visit // the tail reads with the key of one of its viewers
	events chan tailEvent
}

// tailEvent is a rendered event with its position, and with the id that the API gave it: the place behind it.
type tailEvent struct {
	position, id, data string
	of                 doc // until it is rendered
}

// tailRead is the outcome of a read: events, and the place behind them.
type tailRead struct {
	events []tailEvent
	place  string
	more   bool // there may be more events
	broken bool // the API ended the answer before the end of the log, as it does without its database
}

// followTail serves a live tail to one viewer until the browser leaves, the session ends, or the server shuts down.
func (c *Console) followTail(v *visit, s *stream) error {
	v, end := c.watched(v)
	defer end()
	path, query := s.request(v)
	l := &tailWriter{v: v, deadline: deadlineOf(v.w, s), place: placeOf(query.Get("after"))}
	l.deadline.rest() // the first read may take longer than the server lets an answer wait
	header := http.Header{"Accept": {mediaEvents}}
	if last := v.r.Header.Get("Last-Event-ID"); last != "" { // a browser that connects again goes on after it
		header.Set("Last-Event-ID", last)
		l.place = placeOf(last)
	}
	filters := clone(query)
	filters.Del("after")
	filters.Del("last")
	var joined *tailViewer
	defer func() { c.tails.leave(path, filters, v, joined) }()
	for {
		read, err := c.tails.read(v, func() (tailRead, error) { return c.readTail(v, s, path, query, header, tenantNames{}) })
		if isBusy(err) && l.waits() {
			continue
		}
		if err != nil {
			return l.ended(err)
		}
		if l.write(read) != nil || v.r.Context().Err() != nil {
			return nil
		}
		if l.place != nil {
			query = clone(filters)
			query.Set("after", l.place.String())
			header.Del("Last-Event-ID")
		}
		switch {
		case read.more:
		case l.place == nil: // the answer broke off before its first event
			return nil
		case read.broken: // the events behind it may be those that the shared tail has sent before this viewer joined it
			if !l.waits() {
				return nil
			}
		case joined == nil: // read once more, so that no event is between the own read and the first shared one
			joined = c.tails.join(c, v, s, path, filters, l.place.String())
		default:
			c.tails.rewind(path, filters, v, l.place)
			behind := l.forward(joined)
			c.tails.leave(path, filters, v, joined)
			if joined = nil; !behind {
				return nil
			}
		}
	}
}

// maxWaits bounds how often a viewer waits for a busy database, or for a stream of its tenant: then its browser connects again.
const maxWaits = 30

// waits waits before a read is repeated. It reports false after too many times, and if the viewer is gone.
func (l *tailWriter) waits() bool {
	if l.waited++; l.waited > maxWaits {
		return false
	}
	l.deadline.rest()
	select {
	case <-l.v.r.Context().Done():
		return false
	case <-time.After(tailEvery):
		return true
	}
}

// read runs a read of one viewer, as soon as there is room for it.
func (t *tails) read(v *visit, read func() (tailRead, error)) (tailRead, error) {
	select {
	case t.reads <- struct{}{}:
		defer func() { <-t.reads }()
		return read()
	case <-v.r.Context().Done():
		return tailRead{}, nil
	}
}

// keyOf identifies the tail that a visitor may share: that of one tenant's key shows the events of the tenant alone.
func keyOf(path string, filters url.Values, v *visit) string {
	holder := "operator"
	if v.tenant != nil {
		holder = v.tenant.ID.String()
	}
	return holder + " " + path + "?" + filters.Encode()
}

// join adds a viewer, who has seen the events up to a place, to the tail of its filters.
func (t *tails) join(c *Console, v *visit, s *stream, path string, filters url.Values, place string) *tailViewer {
	t.mu.Lock()
	defer t.mu.Unlock()
	key, viewer := keyOf(path, filters, v), &tailViewer{v, make(chan tailEvent, tailPage)}
	if shared := t.all[key]; shared != nil {
		shared.viewers[viewer] = struct{}{}
		return viewer
	}
	if t.all == nil {
		t.all = map[string]*tail{}
	}
	shared := &tail{c: c, s: s, key: key, path: path, query: filters, place: place, viewers: map[*tailViewer]struct{}{viewer: {}}, ended: make(chan struct{})}
	t.all[key] = shared
	go shared.run()
	return viewer
}

func (t *tails) leave(path string, filters url.Values, v *visit, viewer *tailViewer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if shared := t.all[keyOf(path, filters, v)]; shared != nil {
		shared.remove(viewer)
	}
}

// rewind moves a tail back to the place of a viewer who has read up to the end of the log. A tail is behind the end if its first viewer named a
// place that is invented, or that of events which a restore has undone.
func (t *tails) rewind(path string, filters url.Values, v *visit, end place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if shared := t.all[keyOf(path, filters, v)]; shared != nil {
		at := placeOf(shared.place)
		at.downTo(end)
		shared.place = at.String()
	}
}

// remove removes a viewer. The last one ends the tail. The caller holds the lock of the tails.
func (t *tail) remove(viewer *tailViewer) {
	if delete(t.viewers, viewer); len(t.viewers) == 0 && t.c.tails.all[t.key] == t {
		delete(t.c.tails.all, t.key)
		close(t.ended)
	}
}

// run reads once a second, or at once while there is more, until the last viewer has left.
func (t *tail) run() {
	tick := time.NewTicker(tailEvery)
	defer tick.Stop()
	names, named := tenantNames{}, time.Now()
	for {
		if time.Since(named) > namesKept {
			names, named = tenantNames{}, time.Now()
		}
		reader, after := t.reader()
		if reader == nil {
			return
		}
		query := clone(t.query)
		query.Set("after", after)
		read, err := t.c.readTail(reader.v, t.s, t.path, query, http.Header{"Accept": {mediaEvents}}, names)
		if err == nil { // a refusal of this viewer's key, or a busy database, is for the next second
			t.send(read, after)
		}
		if err == nil && read.more {
			continue
		}
		select {
		case <-t.ended:
			return
		case <-tick.C:
		}
	}
}

// reader returns one of the viewers, and the place after which to read; nil if it has no viewer.
func (t *tail) reader() (viewer *tailViewer, after string) {
	t.c.tails.mu.Lock()
	defer t.c.tails.mu.Unlock()
	for viewer = range t.viewers {
		break
	}
	return viewer, t.place
}

// send gives events after a place to all viewers. It does not wait for a viewer.
func (t *tail) send(read tailRead, after string) {
	t.c.tails.mu.Lock()
	defer t.c.tails.mu.Unlock()
	if read.place != "" && t.place == after { // else it was moved back meanwhile
		t.place = read.place
	}
	for viewer := range t.viewers {
		for _, e := range read.events {
			select {
			case viewer.events <- e:
				continue
			default: // it is behind
			}
			close(viewer.events)
			t.remove(viewer)
			break
		}
	}
}

// tailWriter writes a tail to one browser.
type tailWriter struct {
	v        *visit
	deadline browserDeadline
	begun    bool
	place    place // nil: not known yet
	waited   int
}

// ended returns the error of a read: a page if nothing was written yet.
func (l *tailWriter) ended(err error) error {
	if l.begun || l.v.r.Context().Err() != nil {
		return nil
	}
	return err
}

func (l *tailWriter) write(read tailRead) error {
	var b strings.Builder
	if !l.begun {
		h := l.v.w.Header()
		h.Set("Content-Type", mediaEvents)
		h.Set("X-Accel-Buffering", "no")
		l.v.w.WriteHeader(http.StatusOK)
		l.begun = true
		b.WriteString("retry: 1000\n\n")
	}
	for _, e := range read.events {
		l.add(&b, e)
	}
	if !read.broken {
		l.waited = 0
	}
	if l.place == nil {
		l.place = placeOf(read.place)
	}
	l.place.upTo(placeOf(read.place))
	if read.more && len(read.events) == 0 {
		l.beat(&b)
	}
	return l.flush(b.String())
}

// add adds an event that the viewer has not seen.
func (l *tailWriter) add(b *strings.Builder, e tailEvent) {
	at := placeOf(e.position)
	if l.place == nil {
		l.place = placeOf(e.id)
	} else if len(at) != 1 || !l.place.pass(at[0]) {
		return
	}
	b.WriteString("id: " + l.place.String() + "\n" + e.data + "\n")
}

// beat adds a heartbeat with the place.
func (l *tailWriter) beat(b *strings.Builder) {
	b.WriteString(": alive\nid: " + l.place.String() + "\n\n")
}

func (l *tailWriter) flush(text string) error {
	if text == "" {
		return nil
	}
	l.deadline.begin()
	if _, err := l.v.w.Write([]byte(text)); err != nil {
		return err
	}
	return l.deadline.flush()
}

// forward writes the events of a shared tail. It reports whether the viewer is behind; else the viewer is gone.
func (l *tailWriter) forward(from *tailViewer) (behind bool) {
	beat := time.NewTicker(tailBeat)
	defer beat.Stop()
	for {
		var b strings.Builder
		select {
		case <-l.v.r.Context().Done():
			return false
		case <-beat.C:
			l.beat(&b)
		case e, open := <-from.events:
			for more := open; more; {
				l.add(&b, e)
				select {
				case e, open = <-from.events:
					more = open
				default:
					more = false
				}
			}
			if behind = !open; behind {
				return l.flush(b.String()) == nil
			}
		}
		if l.flush(b.String()) != nil {
			return false
		}
	}
}
