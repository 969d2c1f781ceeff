package console

import (
	"bytes"
	"errors"
	"net/http"
	"net/url"
	"strings"
)

// readTail reads at most tailPage events behind a place, up to a heartbeat of the API.
func (c *Console) readTail(v *visit, s *stream, path string, query url.Values, header http.Header) (read tailRead, err error) {
	query = clone(query)
	query.Set("follow", "false")
	req, err := v.requestOf(request{Method: http.MethodGet, Path: path, Query: query, header: header})
	if err != nil {
		return read, err
	}
	out := &tailAnswer{answer: answer{header: http.Header{}}, c: c, s: s}
	c.API.ServeHTTP(out, req)
	switch {
	case out.status >= http.StatusBadRequest:
		return read, refusalIn(out.status, out.body.Bytes())
	case out.failed != nil && !out.read.more:
		return read, out.failed
	}
	out.read.broken = !out.read.more && !out.ended
	return out.read, nil
}

// tailAnswer collects the events of an answer.
type tailAnswer struct {
	answer
	c       *Console
	s       *stream
	partial []byte
	read    tailRead
	ended   bool // the API has said that this is the end of the log
	failed  error
}

var errTailPage = errors.New("the page is complete")

func (a *tailAnswer) Write(b []byte) (int, error) {
	if a.WriteHeader(http.StatusOK); a.status != http.StatusOK {
		return a.body.Write(b)
	}
	a.partial = append(a.partial, b...)
	for {
		raw, rest, found := bytes.Cut(a.partial, []byte("\n\n"))
		if !found {
			return len(b), nil
		}
		if a.read.more = len(a.read.events) >= tailPage; a.read.more {
			return 0, errTailPage // ends the answer of the API
		}
		e, place, err := renderEvent(a.c.templates.shared(a.s.template), raw)
		if a.failed = err; err != nil {
			return 0, err
		}
		if e.data != "" {
			a.read.events = append(a.read.events, e)
		}
		if place != "" {
			a.read.place = place
		}
		if a.read.more = bytes.HasPrefix(raw, []byte(": alive\n")); a.read.more {
			return 0, errTailPage // the browser hears of the place, and the next read begins there
		}
		a.ended = bytes.HasPrefix(raw, []byte(": end\n"))
		a.partial = rest
	}
}

// renderEvent renders an event. data is "" of a comment; place is its id.
func renderEvent(t *pageTemplate, raw []byte) (e tailEvent, place string, err error) {
	var data strings.Builder
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSuffix(line, "\n")
		if value, is := strings.CutPrefix(line, "data:"); is {
			data.WriteString(value)
		} else if value, is := strings.CutPrefix(line, "id:"); is {
			place = strings.TrimSpace(value)
		}
	}
	if data.Len() == 0 {
		return e, place, nil
	}
	d, err := decode(strings.NewReader(data.String()))
	if err != nil {
		return e, place, err
	}
	e.position, e.id = text(d["position"]), place
	e.data, err = dataOf(t, d)
	return e, place, err
}
