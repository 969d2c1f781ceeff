package console

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

const (
	eventsPath  = Prefix + "/events"
	eventPath   = eventsPath + "/{event}"
	lineagePath = eventPath + "/lineage"
)

func eventsPage() *page {
	filters := []string{"tenantId", "subject", "stream", "correlationId", "from", "to", "after"}
	return &page{path: eventsPath, title: "Events", menu: "Events", template: "events.html", needs: "GET /api/v1/events", who: either,
		params: append([]string{"cursor"}, filters...),
		cli: []string{
			"meterplex events query[ --tenant-id {tenantId}][ --subject {subject}][ --stream {stream}][ --correlation-id {correlationId}][ --from {from}][ --to {to}][ --after {after}]",
			"meterplex events tail[ --tenant-id {tenantId}][ --subject {subject}][ --stream {stream}][ --correlation-id {correlationId}][ --from {from}]",
		},
		load: func(v *visit) (doc, error) { return loadEvents(v, filters) },
		live: &live{params: []string{"tenantId", "subject", "stream", "correlationId", "from"}, template: "events-newest", load: newestEvents, version: endOfLog},
		files: []*file{{path: eventsPath + "/export.ndjson", name: "events.ndjson", params: filters,
			request: func(v *visit) (string, url.Values) { return api("events", "export"), v.pick(filters...) }}}}
}

// loadEvents reads a page of the log. The first page of a range without an end shows the newest events, too.
func loadEvents(v *visit, filters []string) (doc, error) {
	q := v.pick(append([]string{"cursor"}, filters...)...)
	q.Set("limit", "50")
	data, err := v.main(api("events"), q)
	names := tenantNames{}
	names.add(v, items(data["data"])...)
	if err != nil || data["problem"] != nil || v.query.Get("cursor") != "" || v.query.Get("to") != "" || v.query.Get("after") != "" {
		return data, err
	}
	data["newest"], err = tried(newestEvents(v))
	return data, err
}

// newestEvents reads the newest events that match, the newest first.
func newestEvents(v *visit) (doc, error) {
	last := v.pick("tenantId", "subject", "stream", "correlationId", "from")
	last.Set("last", "50")
	last.Set("follow", "false")
	newest, err := v.followed(api("events", "stream"), last)
	slices.Reverse(newest)
	tenantNames{}.add(v, newest...)
	return doc{"data": newest}, err
}

// endOfLog returns the place behind the last event, as the API answers it.
func endOfLog(v *visit) (string, error) {
	answer, err := v.send(request{Method: http.MethodGet, Path: api("events", "stream"), Query: with(v.pick("tenantId"), "follow", "false")})
	if err != nil {
		return "", err
	}
	return answer.body.String(), nil
}

func eventPage() *page {
	return &page{path: eventPath, title: "Event", template: "event.html", needs: "GET /api/v1/events/{event}", who: either,
		params: []string{"tenantId"}, cli: []string{"meterplex events show {event}[ --tenant-id {tenantId}]"},
		load: func(v *visit) (doc, error) {
			raw, err := v.raw(api("events", v.param("event")), v.pick("tenantId"))
			if err != nil {
				return nil, err
			}
			d, err := decode(bytes.NewReader(raw))
			return doc{"event": d, "raw": strings.TrimSpace(string(raw))}, err
		}}
}

// raw reads a resource of the API as it is.
func (v *visit) raw(path string, query url.Values) ([]byte, error) {
	req := request{Method: http.MethodGet, Path: path, Query: query}
	v.asked = append(v.asked, req)
	answer, err := v.send(req)
	if err != nil {
		return nil, err
	}
	return answer.body.Bytes(), nil
}

// brief returns a text, or another value as JSON in one line, at most n characters of it.
func brief(v any, n int) (string, error) {
	whole, isText := v.(string)
	if !isText {
		var b bytes.Buffer
		encoder := json.NewEncoder(&b)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(v); err != nil {
			return "", err
		}
		whole = b.String()
	}
	line := []rune(strings.TrimSpace(whole))
	if len(line) <= n {
		return string(line), nil
	}
	return string(line[:n]) + "…", nil
}
