package console

import (
	"bytes"
	"errors"
	"net/http"
	"net/url"
	"strings"
)

// readTail reads at most tailPage events behind a place, up to a heartbeat of the API. It renders them afterwards: the names of tenants are reads of the API.
func (c *Console) readTail(v *visit, s *stream, path string, query url.Values, header http.Header, names tenantNames) (read tailRead, err error) {
	query = clone(query)
	query.Set("follow", "false")
	req, err := v.requestOf(request{Method: http.MethodGet, Path: path, Query: query, header: header})
	if err != nil {
		return read, err
	}
	out := &tailAnswer{answer: answer{header: http.Header{}}}
	c.API.ServeHTTP(out, req)
	switch {
	case out.status >= http.StatusBadRequest:
		return read, refusalIn(out.status, out.body.Bytes())
	case out.failed != nil && !out.read.more:
		return read, out.failed
	}
	out.read.broken = !out.read.more && !out.ended
	for i := range out.read.events {
		e := &out.read.events[i]
		names.add(v, map[string]any(e.of))
		if e.data, err = dataOf(c.templates.shared(s.template), e.of); err != nil {
			return read, err
		}
	}
	return out.read, nil
}

// tailAnswer collects the events of an answer.
type tailAnswer struct {
	answer
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
		e, place, err := eventIn(raw)
		if a.failed = err; err != nil {
			return 0, err
		}
		if e.of != nil {
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

// eventIn decodes an event; of is nil of a comment. place is its id.
func eventIn(raw []byte) (e tailEvent, place string, err error) {
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
	e.of, err = decode(strings.NewReader(data.String()))
	e.position, e.id = text(e.of["position"]), place
	return e, place, err
}
