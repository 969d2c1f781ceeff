package console

import (
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/problem"
)

// searchPath is the page of the search box.
const searchPath = Prefix + "/search"

// maxSearch is the length of the longest text that can be found, in characters: an eventId.
const maxSearch = 255

// hit is a result of the search; without an address, a remark.
type hit struct{ Kind, Name, Address string }

// finder finds one kind of result. It is used if the visitor may open its page.
type finder struct {
	page string
	find func(v *Visit, q string) ([]hit, error)
}

func finders() []finder {
	return []finder{
		{Prefix + "/tenants/{tenantId}", findTenants},
		{Prefix + "/events/{event}", findLogged},
		{Prefix + "/usage/events/{eventId}", findUsage},
		{Prefix + "/events", findTrace},
		{Prefix + "/rebuilds/{rebuildId}", findByID("Rebuild", "rebuilds")},
		{Prefix + "/dead-letters/{deadLetterId}", findByID("Dead letter", "dead-letters")},
	}
}

func searchPage() *Page {
	return &Page{Path: searchPath, Title: "Search", Template: "search.html", Who: auth.AnyKey, Params: []string{"q", "tenantId", "secret"},
		CLI: []string{"meterplex tenants list[ --q {q}]", "meterplex tenants list --event-id {q}"}, before: withoutSecret, Load: search}
}

// secretForm is the begin of a key's secret.
var secretForm = regexp.MustCompile(`(?i)mp_(live|test|op)_`)

// withoutSecret leads a search for a key's secret to an address without it, also if nobody is signed in.
func withoutSecret(r *http.Request) error {
	sent, err := url.QueryUnescape(r.URL.RawQuery)
	if err != nil {
		sent = r.URL.RawQuery
	}
	if secretForm.MatchString(sent) {
		return &elsewhere{searchPath + "?secret=removed"}
	}
	return nil
}

func search(v *Visit) (Doc, error) {
	q := strings.TrimSpace(v.Query.Get("q"))
	switch {
	case v.Query.Get("secret") != "" || q == "":
		return Doc{"secret": v.Query.Get("secret") != "", "empty": true}, nil
	case utf8.RuneCountInString(q) > maxSearch || !utf8.ValidString(q):
		v.Query.Del("q") // the search box would show it again
		return nil, problem.New("parameter_invalid", "Search for at most 255 characters")
	}
	var hits []hit
	for _, f := range finders() {
		if v.c.opens(v.visitor, f.page) == nil {
			continue
		}
		found, err := f.find(v, q)
		if err != nil {
			return nil, err
		}
		hits = append(hits, found...)
	}
	if len(hits) == 1 && hits[0].Address != "" {
		return nil, &elsewhere{hits[0].Address}
	}
	return Doc{"hits": hits, "q": q}, nil
}

// look is get for a resource that may not exist: its request is an equivalent only if it does.
func (v *Visit) look(path string, query url.Values) (Doc, error) {
	d, err := v.Get(path, query)
	if refused := (*Refusal)(nil); errors.As(err, &refused) && refused.Status < http.StatusInternalServerError {
		v.asked = v.asked[:len(v.asked)-1]
		return nil, nil
	}
	return d, err
}

// findTenants finds them by a part of their name or external id, or the beginning of their id.
func findTenants(v *Visit, q string) ([]hit, error) {
	d, err := v.look(API("tenants"), url.Values{"q": {q}, "limit": {"50"}})
	if err != nil {
		return nil, err
	}
	var hits []hit
	for _, t := range Items(d["data"]) {
		tenant, _ := t.(map[string]any)
		hits = append(hits, hit{"Tenant", Text(tenant["name"]), Prefix + PathOf("tenants", Text(tenant["id"]))})
	}
	if Text(d["nextCursor"]) != "" {
		hits = append(hits, hit{Kind: "Tenant", Name: "More tenants match. Search for a longer part of the name, the id or an external id"})
	}
	return hits, nil
}

var positionForm = regexp.MustCompile(`^[0-9]{1,3}-[0-9]{1,19}$`)

// findLogged finds an event of the log by its position or by the id that the service gave it.
func findLogged(v *Visit, q string) ([]hit, error) {
	name := q
	if id, err := uuid.Parse(q); err == nil {
		name = id.String()
	} else if !positionForm.MatchString(q) {
		return nil, nil
	}
	d, err := v.look(API("events", name), v.Pick("tenantId"))
	if d == nil || err != nil {
		return nil, err
	}
	return []hit{{"Event of the log", Text(d["eventType"]) + " at " + Text(d["position"]),
		Query(Prefix+PathOf("events", Text(d["position"])), "tenantId", v.Query.Get("tenantId"))}}, nil
}

// Bounds of an operator's search for an eventId without a tenant.
const (
	searchedPages  = 10   // of the list of tenants
	searchedAtOnce = 1000 // tenants on such a page
	maxRecorders   = 50   // tenants with the eventId, after which no further page is searched
)

// findUsage finds usage by the eventId that its producer gave it. Such an id belongs to one tenant.
func findUsage(v *Visit, q string) (hits []hit, err error) {
	if v.TenantID() == "" {
		return findRecorders(v, q)
	}
	d, err := v.look(API("usage", "events", q), v.Pick("tenantId"))
	if d == nil || err != nil {
		return nil, err
	}
	return []hit{{"Usage event", q, Query(Prefix+PathOf("usage", "events", q), "tenantId", v.Query.Get("tenantId"))}}, nil
}

// findRecorders finds the tenants that recorded usage with an eventId.
func findRecorders(v *Visit, q string) (hits []hit, err error) {
	query := Limited(searchedAtOnce, url.Values{"eventId": {q}})
	for range searchedPages {
		page, err := Tried(v.Do(Request{Method: http.MethodGet, Path: API("tenants"), Query: query}))
		if err != nil || page["problem"] != nil {
			return nil, err
		}
		for _, entry := range Items(page["data"]) {
			tenant := Object(entry)
			hits = append(hits, hit{"Usage event", q + " of " + Text(tenant["name"]),
				Query(Prefix+PathOf("usage", "events", q), "tenantId", tenant["id"])})
		}
		cursor := Text(page["nextCursor"])
		if cursor == "" {
			return hits, nil
		}
		if query.Set("cursor", cursor); len(hits) >= maxRecorders {
			break
		}
	}
	return append(hits, hit{Kind: "Usage event",
		Name: "More tenants may have recorded this event id: not all were searched. Name the tenant"}), nil
}

// findTrace finds the events of a trace, by its id in hex or by their correlationId: among the newest, then among the first.
func findTrace(v *Visit, q string) ([]hit, error) {
	id, err := uuid.Parse(q)
	if err != nil || strings.ContainsAny(q, "{:}") {
		return nil, nil
	}
	of := With(v.Pick("tenantId"), "correlationId", id.String())
	newest := With(With(With(v.Pick("tenantId"), "correlationId", id.String()), "last", "1"), "follow", "false")
	found, err := v.Followed(API("events", "stream"), newest)
	if refused := (*Refusal)(nil); errors.As(err, &refused) &&
		(refused.Status == http.StatusServiceUnavailable || refused.Status == http.StatusTooManyRequests) {
		// the first ones may be found
		found, err = nil, nil
	}
	if refused := (*Refusal)(nil); errors.As(err, &refused) && refused.Status < http.StatusInternalServerError {
		return nil, nil
	}
	if err == nil && len(found) == 0 {
		var first Doc
		first, err = v.look(API("events"), With(url.Values{"correlationId": {id.String()}, "limit": {"1"}}, "tenantId", of.Get("tenantId")))
		found = Items(first["data"])
	}
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return []hit{{"Trace", id.String(), Prefix + "/events?" + of.Encode()}}, nil
}

// findByID finds a resource by its id.
func findByID(kind, resource string) func(v *Visit, q string) ([]hit, error) {
	return func(v *Visit, q string) ([]hit, error) {
		id, err := uuid.Parse(q)
		if err != nil {
			return nil, nil
		}
		d, err := v.look(API(resource, id.String()), nil)
		if d == nil || err != nil {
			return nil, err
		}
		return []hit{{kind, id.String(), Prefix + PathOf(resource, id.String())}}, nil
	}
}
