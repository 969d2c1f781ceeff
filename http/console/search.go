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

// Hit is a result of the search; without an address, a remark.
type Hit struct{ Kind, Name, Address string }

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
	var hits []Hit
	for _, p := range v.c.pages {
		if p.Find == nil || v.visitor.allowed(routeOf(p)) != nil {
			continue
		}
		found, err := p.Find(v, q)
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

// Look is Get for a resource that may not exist: its request is an equivalent only if it does.
func (v *Visit) Look(path string, query url.Values) (Doc, error) {
	d, err := v.Get(path, query)
	if refused := (*Refusal)(nil); errors.As(err, &refused) && refused.Status < http.StatusInternalServerError {
		v.asked = v.asked[:len(v.asked)-1]
		return nil, nil
	}
	return d, err
}

// IDOf returns the id that a text is, in its usual form; false if it is no id.
func IDOf(q string) (string, bool) {
	id, err := uuid.Parse(q)
	return id.String(), err == nil
}

// FindByID returns the search for a resource by its id.
func FindByID(kind, resource string) func(v *Visit, q string) ([]Hit, error) {
	return func(v *Visit, q string) ([]Hit, error) {
		id, is := IDOf(q)
		if !is {
			return nil, nil
		}
		d, err := v.Look(API(resource, id), nil)
		if d == nil || err != nil {
			return nil, err
		}
		return []Hit{{kind, id, Prefix + PathOf(resource, id)}}, nil
	}
}
