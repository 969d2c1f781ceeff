// Package events has the pages of the event log.
package events

import (
	"bytes"
	"net/url"
	"slices"
	"strings"

	"github.com/meterplex/meterplex/http/console"
)

const (
	eventsPath  = console.Prefix + "/events"
	eventPath   = eventsPath + "/{event}"
	lineagePath = eventPath + "/lineage"
)

// Pages lists the pages, in the order of the navigation.
func Pages() []*console.Page {
	return []*console.Page{
		eventsPage(),
		eventPage(),
		lineagePage(),
	}
}

func eventsPage() *console.Page {
	filters := []string{"tenantId", "subject", "stream", "correlationId", "from", "to", "after"}
	return &console.Page{Path: eventsPath, Title: "Events", Group: "Usage", Menu: "Events", Template: "events.html",
		Needs: "GET /api/v1/events", Who: console.Either, Find: findTrace,
		Params: append([]string{"cursor"}, filters...),
		CLI: []string{
			"meterplex events query[ --tenant {tenantId}][ --subject {subject}][ --stream {stream}][ --correlation-id {correlationId}][ " +
				"--from {from}][ --to {to}][ --after {after}]",
			"meterplex events tail[ --tenant {tenantId}][ --subject {subject}][ --stream {stream}][ --correlation-id {correlationId}][ " +
				"--from {from}]",
		},
		Load: func(v *console.Visit) (console.Doc, error) { return loadEvents(v, filters) },
		Live: &console.Live{Params: []string{"tenantId", "subject", "stream", "correlationId", "from"}, Template: "events-newest",
			Load: newestEvents, Version: endOfLog},
		Files: []*console.File{{Path: eventsPath + "/export.ndjson", Name: "events.ndjson", Params: filters,
			Request: func(v *console.Visit) (string, url.Values) {
				return console.API("events", "export"), v.Pick(filters...)
			}}}}
}

// loadEvents reads a page of the log. The first page of a range without an end shows the newest events, too.
func loadEvents(v *console.Visit, filters []string) (console.Doc, error) {
	q := v.Pick(append([]string{"cursor"}, filters...)...)
	q.Set("limit", "50")
	data, err := v.Main(console.API("events"), q)
	names := console.TenantNames{}
	names.Add(v, console.Items(data["data"])...)
	if err != nil || data["problem"] != nil || v.Query.Get("cursor") != "" || v.Query.Get("to") != "" || v.Query.Get("after") != "" {
		return data, err
	}
	data["newest"], err = console.Tried(newestEvents(v))
	return data, err
}

// newestEvents reads the newest events that match, the newest first.
func newestEvents(v *console.Visit) (console.Doc, error) {
	last := v.Pick("tenantId", "subject", "stream", "correlationId", "from")
	last.Set("last", "50")
	last.Set("follow", "false")
	newest, err := v.Followed(console.API("events", "stream"), last)
	slices.Reverse(newest)
	console.TenantNames{}.Add(v, newest...)
	return console.Doc{"data": newest}, err
}

// endOfLog returns the position of the last event, as the API answers it.
func endOfLog(v *console.Visit) (string, error) {
	answer, err := v.Unseen(console.API("events", "stream"), console.With(v.Pick("tenantId"), "follow", "false"))
	return string(answer), err
}

func eventPage() *console.Page {
	return &console.Page{Path: eventPath, Title: "Event", Template: "event.html", Needs: "GET /api/v1/events/{event}", Who: console.Either,
		Params: []string{"tenantId"}, CLI: []string{"meterplex events show {event}[ --tenant {tenantId}]"}, Find: findLogged,
		Load: func(v *console.Visit) (console.Doc, error) {
			raw, err := v.Raw(console.API("events", v.Param("event")), v.Pick("tenantId"))
			if err != nil {
				return nil, err
			}
			d, err := console.Decode(bytes.NewReader(raw))
			return console.Doc{"event": d, "raw": strings.TrimSpace(string(raw))}, err
		}}
}
