package http_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/http"
	"github.com/meterplex/meterplex/http/auth"
)

// badCase is a request that a route must refuse with one of the statuses and one of the
// codes. An empty code matches any. kind is the kind of error.
type badCase struct {
	kind, name string
	call
	statuses []int
	codes    []string
}

// describedOperation holds the parts of a route's description that the test reads.
type describedOperation struct {
	Parameters []struct {
		Name, In string
		Schema   schema
	}
	RequestBody struct {
		Required bool
		Content  map[string]struct{ Schema schema }
	}
}

type schema struct {
	Type       any // a string or a list of strings
	Enum       []any
	Ref        string `json:"$ref"`
	Properties map[string]schema
	Required   []string
	MaxLength  *int
}

func (s schema) is(kind string) bool {
	list, _ := s.Type.([]any)
	return s.Type == kind || slices.Contains(list, any(kind))
}

type description struct {
	Paths      map[string]map[string]describedOperation
	Components struct{ Schemas map[string]schema }
}

// describedRoutes reads the OpenAPI document like a client.
func (m *isolationFixture) describedRoutes() (d description) {
	m.Helper()
	m.must(json.Unmarshal(m.do(call{method: "GET", path: "/openapi.json"}).body, &d))
	return d
}

// The kinds of errors that each route must have a case of, if it has a key, a body, a path parameter or a list.
var (
	everyRoute = []string{"keys", "methods", "paths", "query"}
	everyBody  = []string{"JSON structure", "members", "media types", "encodings", "bombs", "sizes", "text"}
	onlySome   = []string{"ids", "limits", "cursors", "numbers", "strings", "enumerations", "times", "positions"}
)

// TestEveryRouteRefusesEveryKindOfBadInput generates its cases from the route table and
// the description. A new route, parameter or member gets its cases automatically, or the
// test fails because it has no bad values for it.
func TestEveryRouteRefusesEveryKindOfBadInput(t *testing.T) {
	m := newIsolationFixture(t)
	doc := m.describedRoutes()
	counts, total := map[string]int{}, 0
	routes := http.Routes()
	for _, route := range routes {
		name := route.Method + " " + route.Path
		base, known := m.sample(route)
		if !known {
			t.Errorf("%s has no sample to make bad input of", name)
			continue
		}
		if base.key = bootstrap; route.Who != auth.Public && route.Who != auth.Operator {
			base.key = m.a.key
		}
		of := doc.Paths[route.Path][strings.ToLower(route.Method)]
		cases := append(methodCases(routes, route, base), m.badCases(route, base, of, doc)...)
		before, kinds := m.stored(), map[string]bool{}
		for _, c := range cases {
			kinds[c.kind] = true
			counts[c.kind]++
			m.refusedAs(name, c)
		}
		m.same(name+": events of refused requests", m.stored(), before)
		for _, kind := range wantedKinds(route, of) {
			if !kinds[kind] && (large(route) || kind != "bombs" && kind != "sizes") {
				t.Errorf("%s has no case of the kind %q", name, kind)
			}
		}
		total += len(cases)
	}
	for _, kind := range slices.Concat(everyRoute, everyBody, onlySome) {
		if counts[kind] == 0 {
			t.Errorf("no route has a case of the kind %q", kind)
		}
	}
	if total < 150 {
		t.Errorf("%d cases; 150 are the least", total)
	}
	t.Logf("%d cases: %v", total, counts)
}

func wantedKinds(route auth.Route, of describedOperation) []string {
	want := slices.Clone(everyRoute)
	if route.Who == auth.Public {
		want = []string{"methods", "paths", "query"}
	}
	if len(of.RequestBody.Content) > 0 {
		want = append(want, everyBody...)
	}
	if strings.Contains(route.Path, "{") {
		want = append(want, "ids")
	}
	for _, p := range of.Parameters {
		if p.In == "query" && p.Name == "limit" {
			want = append(want, "limits", "cursors")
		}
	}
	return want
}

// refusedAs sends the request and checks its refusal.
func (m *isolationFixture) refusedAs(route string, c badCase) {
	m.Helper()
	got := m.do(c.call)
	var p struct{ Code string }
	_ = json.Unmarshal(got.body, &p)
	if !slices.Contains(c.statuses, got.status) || !slices.Contains(c.codes, p.Code) && !slices.Contains(c.codes, "") {
		m.Errorf("%s, %s, %s: %d %s instead of %v %v: %.300s", route, c.kind, c.name, got.status, p.Code, c.statuses, c.codes, got.body)
		return
	}
	m.refused(got, got.status, p.Code)
}

func (m *isolationFixture) badCases(route auth.Route, base call, of describedOperation, doc description) (all []badCase) {
	all = append(all, pathCases(route, base)...)
	all = append(all, queryCases(base)...)
	for _, p := range of.Parameters {
		if p.In != "query" {
			continue
		}
		made := parameterCases(base, p.Name, p.Schema)
		if len(made) == 0 {
			m.Errorf("%s %s: nobody says what is wrong for the parameter %s", route.Method, route.Path, p.Name)
		}
		all = append(all, made...)
	}
	if route.Who != auth.Public {
		none := base
		none.key = ""
		all = append(all, badCase{"keys", "none", none, []int{401}, []string{"unauthenticated"}})
	}
	if len(of.RequestBody.Content) > 0 {
		schema := of.RequestBody.Content["application/json"].Schema
		if name, ok := strings.CutPrefix(schema.Ref, "#/components/schemas/"); ok {
			schema = doc.Components.Schemas[name]
		}
		all = append(all, m.bodyCases(route, base, schema, !of.RequestBody.Required)...)
	}
	return all
}

func methodCases(routes []auth.Route, route auth.Route, base call) (list []badCase) {
	taken := map[string]bool{"HEAD": true} // handled like GET, or refused without a body
	for _, r := range routes {
		if r.Path == route.Path {
			taken[r.Method] = true
		}
	}
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW", "get", "PROPFIND"} {
		if taken[method] {
			continue
		}
		c := base
		c.method, c.body = method, nil
		statuses, codes := []int{405}, []string{"method_not_allowed"}
		if method == "GET" && (strings.HasSuffix(route.Path, "/bulk") || route.Path == "/api/v1/pushes/reconcile" ||
			strings.HasSuffix(route.Path, "/rewind")) {
			statuses, codes = []int{404}, []string{"not_found", "replay_not_found", "push_not_found"} // there it is an id
		}
		if route.Path == "/api/v1/prices/evaluate" && (method == "GET" || method == "PUT") { // there it is a key
			statuses, codes = []int{404, 415}, []string{"price_not_found", "media_type_unsupported"}
		}
		list = append(list, badCase{"methods", method, c, statuses, codes})
	}
	return list
}

func pathCases(route auth.Route, base call) (list []badCase) {
	path, query, _ := strings.Cut(base.path, "?")
	if query != "" {
		query = "?" + query
	}
	add := func(kind, name, path string, statuses []int, codes ...string) {
		c := base
		c.path = path + query
		list = append(list, badCase{kind, name, c, statuses, codes})
	}
	add("paths", "two slashes before", "/"+path, []int{404}, "not_found")
	add("paths", "slash behind", path+"/", []int{404, 405, 400}, "")
	if upper := strings.ToUpper(path); upper != path {
		add("paths", "upper case", upper, []int{404}, "not_found")
	}
	add("paths", "NUL", path+"%00", []int{400}, "path_invalid")
	add("paths", "CR LF", path+"%0d%0aX:1", []int{400}, "path_invalid")
	segments := strings.Split(path, "/")
	for i, segment := range strings.Split(route.Path, "/") {
		fixed, _, found := strings.Cut(segment, "{")
		if !found {
			continue
		}
		for name, id := range map[string]string{"traversal": "..%2f..%2ftenants", "SQL": "'%20OR%201=1--",
			"too long": strings.Repeat("x", 2000),
			"nobody's": newID().String()} {
			if route.Method == "PUT" && name == "nobody's" {
				continue // it would be the id of a new entity
			}
			other := slices.Clone(segments)
			other[i] = fixed + id
			add("ids", segment+" "+name, strings.Join(other, "/"), []int{404, 400}, "")
		}
		other := slices.Clone(segments)
		other[i] = fixed
		add("ids", segment+" empty", strings.Join(other, "/"), []int{404}, "not_found", "schema_not_found")
	}
	return list
}

func queryCases(base call) (list []badCase) {
	for query, code := range map[string]string{"nothing=1": "unknown_parameter", "Limit=1": "unknown_parameter",
		"a=%zz": "malformed_query"} {
		c := base
		c.path = with(c.path, query)
		list = append(list, badCase{"query", query[:min(len(query), 20)], c, []int{400}, []string{code}})
	}
	return list
}

// badValues are bad values of parameters by their name.
var badValues = map[string][]string{
	"groupBy":    {"region", "metadata.none", "metadata.region&groupBy=metadata.region"},
	"cursor":     {"x", "eyJ2IjoyfQ", "..%2F..%2Fetc%2Fpasswd"},
	"externalId": {"a%20b", "%C3%A9"}, "eventId": {"a%20b", "%C3%A9"},
	"kind": {strings.Repeat("x", 41)}, "q": {"%00", strings.Repeat("%C3%A9", 256)},
	"sha256": {"x", strings.Repeat("0", 64)}, "tenantId": {"x", "'%20OR%201=1--"}, "subscriptionId": {"x", "..%2F"},
}

// parameterCases returns bad values for a parameter by its type, else by its name; none if both are unknown.
func parameterCases(base call, name string, schema schema) (list []badCase) {
	statuses, codes := []int{400}, []string{"parameter_invalid"}
	add := func(kind string, values ...string) {
		for _, value := range values {
			c := base
			c.path = with(without(c.path, name), name+"="+value)
			list = append(list, badCase{kind, name + "=" + value[:min(len(value), 30)], c, statuses, codes})
		}
	}
	switch {
	case schema.is("integer"):
		add(map[bool]string{true: "limits", false: "numbers"}[name == "limit"], "-1", "1.0", "01", "9223372036854775808", "null", "%2B1")
	case len(schema.Enum) > 0:
		add("enumerations", "nothing", strings.ToLower(fmt.Sprint(schema.Enum[0]))+"X")
	case name == "groupBy":
		add("enumerations", badValues[name]...)
		return list // it may be there twice
	case name == "cursor":
		codes = []string{"cursor_invalid"}
		add("cursors", badValues[name]...)
	case slices.Contains([]string{"from", "to", "asOf"}, name):
		add("times", "2026-05-01T00:00:00", "2026-05-01T00:00:60Z", "2026-02-30T00:00:00Z", "yesterday")
	case slices.Contains([]string{"minPosition", "asOfPosition", "after"}, name):
		codes = []string{"position_invalid", "cursor_invalid", "parameter_invalid"}
		add("positions", "17", "32-1", "17-01", "17-9223372036854775808")
	case name == "sha256":
		statuses, codes = []int{404}, []string{"schema_not_found"}
		add("ids", badValues[name]...)
	case slices.Contains([]string{"tenantId", "subscriptionId"}, name):
		statuses, codes = []int{400, 404}, []string{"tenant_not_found", "subscription_not_found", "figure_not_found", "not_found",
			"parameter_invalid"}
		add("ids", badValues[name]...)
	default:
		add("strings", badValues[name]...)
	}
	texts := []string{"reason", "code", "fingerprint", "feature", "consumer", "topic", "subject", "stream", "correlationId", "period",
		"periodKey"}
	if len(list) > 0 || slices.Contains(texts, name) {
		statuses, codes = []int{400}, []string{"parameter_invalid"}
		add("strings", "", "%00", "%ff", strings.Repeat("x", 3000))
		codes = []string{"duplicate_parameter"}
		add("strings", "x&"+name+"=x")
	}
	return list
}

// without removes a parameter from a path's query.
func without(path, name string) string {
	before, query, found := strings.Cut(path, "?")
	if !found {
		return path
	}
	kept := slices.DeleteFunc(strings.Split(query, "&"), func(p string) bool { return strings.HasPrefix(p, name+"=") })
	if len(kept) == 0 {
		return before
	}
	return before + "?" + strings.Join(kept, "&")
}

// first returns the name of a body's first member as written.
func first(body []byte) (name string) {
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) != nil || len(members) == 0 {
		return "reason"
	}
	names := slices.Sorted(maps.Keys(members))
	slices.SortFunc(names, func(a, b string) int {
		return bytes.Index(body, []byte(`"`+a+`"`)) - bytes.Index(body, []byte(`"`+b+`"`))
	})
	return names[0]
}
