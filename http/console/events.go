package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
)

const (
	eventsPath  = Prefix + "/events"
	eventPath   = eventsPath + "/{event}"
	lineagePath = eventPath + "/lineage"
)

// eventReaders is the access of the pages that show the log.
func eventReaders() []string { return []string{"events:read", "audit"} }

func eventsPage() *page {
	filters := []string{"tenantId", "subject", "stream", "correlationId", "from", "to", "after"}
	return &page{path: eventsPath, title: "Events", menu: "Events", template: "events.html", needs: "GET /api/v1/events", who: either, scopes: eventReaders(),
		params: append([]string{"cursor"}, filters...),
		cli: []string{
			"meterplex events query[ --tenant-id {tenantId}][ --subject {subject}][ --stream {stream}][ --correlation-id {correlationId}][ --from {from}][ --to {to}][ --after {after}]",
			"meterplex events tail[ --tenant-id {tenantId}][ --subject {subject}][ --stream {stream}][ --correlation-id {correlationId}][ --from {from}]",
		},
		load: func(v *visit) (doc, error) { return loadEvents(v, filters) },
		streams: []*stream{{path: eventsPath + "/stream", params: tailFilters("after", "last"), template: "event-row", shared: true,
			request: func(v *visit) (string, url.Values) {
				return api("events", "stream"), v.pick(tailFilters("after", "last")...)
			}}},
		files: []*file{{path: eventsPath + "/export.ndjson", name: "events.ndjson", params: filters,
			request: func(v *visit) (string, url.Values) { return api("events", "export"), v.pick(filters...) }}}}
}

// tailFilters are the filters that a stream of the log has, and more of its parameters.
func tailFilters(more ...string) []string {
	return append([]string{"tenantId", "subject", "stream", "correlationId", "from"}, more...)
}

// loadEvents reads a page of the log. The first page of a range without an end shows the newest events, too, which the stream goes on with.
func loadEvents(v *visit, filters []string) (doc, error) {
	q := v.pick(append([]string{"cursor"}, filters...)...)
	q.Set("limit", "50")
	data, err := v.main(api("events"), q)
	names := tenantNames{}
	names.add(v, items(data["data"])...)
	if err != nil || data["problem"] != nil || v.query.Get("cursor") != "" || v.query.Get("to") != "" || v.query.Get("after") != "" {
		return data, err
	}
	follow := v.pick(tailFilters()...)
	newest := v.pick(tailFilters()...)
	newest.Set("last", "20")
	newest.Set("follow", "false")
	last, place, err := v.followedTo(api("events", "stream"), newest)
	if isBusy(err) {
		data["notLive"] = notLive(err)
		return data, nil
	}
	if err != nil {
		return nil, err
	}
	if with(follow, "after", place); place == "" { // all that match are newer than this page
		follow.Set("last", "100")
	}
	for i, j := 0, len(last)-1; i < j; i, j = i+1, j-1 {
		last[i], last[j] = last[j], last[i]
	}
	names.add(v, last...)
	data["last"], data["follow"] = last, eventsPath+"/stream?"+follow.Encode()
	return data, nil
}

// isBusy reports a refusal of a stream that ends by itself: too many streams are open, or the database is busy.
func isBusy(err error) bool {
	refused := (*refusal)(nil)
	return errors.As(err, &refused) && (refused.Status == http.StatusServiceUnavailable || refused.Status == http.StatusTooManyRequests)
}

// notLive explains a refusal of a stream that isBusy reports.
func notLive(err error) string {
	if refused := (*refusal)(nil); errors.As(err, &refused) && refused.Status == http.StatusTooManyRequests {
		return "all streams of the log that a tenant may have are in use. Close other live pages of the tenant, or end its clients that follow or export events, then reload this page."
	}
	return "too many streams of the log are open, or the database is busy. Reload this page later."
}

func eventPage() *page {
	return &page{path: eventPath, title: "Event", template: "event.html", needs: "GET /api/v1/events/{event}", who: either, scopes: eventReaders(),
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
