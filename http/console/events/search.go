package events

import (
	"errors"
	"net/http"
	"regexp"
	"strings"

	"github.com/meterplex/meterplex/http/console"
)

var positionForm = regexp.MustCompile(`^[0-9]{1,3}-[0-9]{1,19}$`)

// findLogged finds an event of the log by its position or by the id that the service gave it.
func findLogged(v *console.Visit, q string) ([]console.Hit, error) {
	name := q
	if id, is := console.IDOf(q); is {
		name = id
	} else if !positionForm.MatchString(q) {
		return nil, nil
	}
	d, err := v.Look(console.API("events", name), v.Pick("tenantId"))
	if d == nil || err != nil {
		return nil, err
	}
	at := console.Text(d["position"])
	return []console.Hit{{Kind: "Event of the log", Name: console.Text(d["eventType"]) + " at " + at,
		Address: console.Query(console.Prefix+console.PathOf("events", at), "tenantId", v.Query.Get("tenantId"))}}, nil
}

// findTrace finds the events of a trace, by its id in hex or by their correlationId: among the newest, then among the first.
func findTrace(v *console.Visit, q string) ([]console.Hit, error) {
	id, is := console.IDOf(q)
	if !is || strings.ContainsAny(q, "{:}") {
		return nil, nil
	}
	of := console.With(v.Pick("tenantId"), "correlationId", id)
	newest := console.With(console.With(console.Clone(of), "last", "1"), "follow", "false")
	found, err := v.Followed(console.API("events", "stream"), newest)
	if refused := (*console.Refusal)(nil); errors.As(err, &refused) &&
		(refused.Status == http.StatusServiceUnavailable || refused.Status == http.StatusTooManyRequests) {
		// the first ones may be found
		found, err = nil, nil
	}
	if refused := (*console.Refusal)(nil); errors.As(err, &refused) && refused.Status < http.StatusInternalServerError {
		return nil, nil
	}
	if err == nil && len(found) == 0 {
		var first console.Doc
		first, err = v.Look(console.API("events"), console.With(console.Clone(of), "limit", "1"))
		found = console.Items(first["data"])
	}
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return []console.Hit{{Kind: "Trace", Name: id, Address: eventsPath + "?" + of.Encode()}}, nil
}
