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

// The kinds of errors that the specification requires. A route with a body, a query or a
// path parameter must have all kinds for it.
var (
	everyRoute = []string{"keys", "methods", "paths", "query"}
	everyBody  = []string{"JSON structure", "members", "media types", "encodings", "bombs", "sizes", "text"}
	everyPath  = []string{"ids"}
	everyList  = []string{"limits", "cursors"}
	onlySome   = []string{"numbers", "strings", "enumerations", "times", "positions"}
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
		if after := m.stored(); after != before {
			t.Errorf("%s: %d events were stored by requests that are refused", name, after-before)
		}
		for _, kind := range wantedKinds(route, of) {
			if !kinds[kind] && (large(route) || kind != "bombs" && kind != "sizes") {
				t.Errorf("%s has no case of the kind %q", name, kind)
			}
		}
		total += len(cases)
	}
	for _, kind := range slices.Concat(everyRoute, everyBody, everyPath, everyList, onlySome) {
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
		want = append(want, everyPath...)
	}
	for _, p := range of.Parameters {
		if p.In == "query" && p.Name == "limit" {
			want = append(want, everyList...)
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
		if method == "GET" && (strings.HasSuffix(route.Path, "/bulk") || route.Path == "/api/v1/pushes/reconcile" || strings.HasSuffix(route.Path, "/rewind")) {
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
	add("paths", "two slashes behind", path+"//", []int{404}, "not_found")
	if upper := strings.ToUpper(path); upper != path {
		add("paths", "upper case", upper, []int{404}, "not_found")
	}
	add("paths", "NUL", path+"%00", []int{400}, "path_invalid")
	add("paths", "CR LF", path+"%0d%0aX:1", []int{400}, "path_invalid")
	add("paths", "not UTF-8", path+"%ff", []int{400}, "path_invalid")
	add("paths", "DEL", path+"%7f", []int{400}, "path_invalid")
	segments := strings.Split(path, "/")
	for i, segment := range strings.Split(route.Path, "/") {
		fixed, _, found := strings.Cut(segment, "{")
		if !found {
			continue
		}
		for name, id := range map[string]string{
			"traversal": "..%2f..%2ftenants", "dots": "%2e%2e", "slash": "a%2Fb", "SQL": "'%20OR%201=1--", "space": "a%20b", "too long": strings.Repeat("x", 2000),
			"right to left": "%E2%80%AEx", "template": "{{7*7}}", "percent": "%25", "nobody's": newID().String(), "nil": "00000000-0000-0000-0000-000000000000",
			"braces": "%7B" + newID().String() + "%7D", "not normal": "e%CC%81", "backslash": "..%5C..%5C", "semicolon": "a;b=c",
		} {
			if route.Method == "PUT" && (name == "nobody's" || name == "nil") {
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
	for query, code := range map[string]string{
		"nothing=1": "unknown_parameter", "Limit=1": "unknown_parameter", "limit%00=1": "unknown_parameter", "$where=1": "unknown_parameter", "=1": "unknown_parameter",
		strings.Repeat("n", 5000) + "=1": "unknown_parameter", "a=%zz": "malformed_query", "a=1;b=2": "malformed_query", "a[]=1": "unknown_parameter",
	} {
		c := base
		c.path = with(c.path, query)
		list = append(list, badCase{"query", query[:min(len(query), 20)], c, []int{400}, []string{code}})
	}
	return list
}

// parameterCases returns bad values for a parameter by its type, else by its name; none
// if both are unknown.
func parameterCases(base call, name string, schema schema) (list []badCase) {
	add := func(kind, value string, statuses []int, codes ...string) {
		c := base
		c.path = with(without(c.path, name), name+"="+value)
		list = append(list, badCase{kind, name + "=" + value[:min(len(value), 30)], c, statuses, codes})
	}
	refuse, invalid := []int{400}, "parameter_invalid"
	switch {
	case schema.is("integer"):
		kind := map[bool]string{true: "limits", false: "numbers"}[name == "limit"]
		for _, v := range []string{"-1", "1.0", "1e3", "01", "NaN", "1e400", "9223372036854775808", "99999999999999999999", "true", "null", "0x10", "%2B1", "-0", "١"} {
			add(kind, v, refuse, invalid)
		}
	case len(schema.Enum) > 0:
		for _, v := range []string{"nothing", strings.ToLower(fmt.Sprint(schema.Enum[0])) + "X", "null", "0", fmt.Sprint(schema.Enum[0]) + "%20"} {
			add("enumerations", v, refuse, invalid)
		}
	case name == "groupBy":
		for _, v := range []string{"region", "metadata.", "metadata.none", "Metadata.region", "metadata.region,metadata.model", "metadata.region%20", "*"} {
			add("enumerations", v, refuse, invalid)
		}
		add("enumerations", "metadata.region&groupBy=metadata.region", refuse, invalid)
		return list // it may be there twice
	case name == "cursor":
		for _, v := range []string{"x", "e30", "bnVsbA", "eyJ2IjoyfQ", "eyJ2IjoxLCJhIjoiMSIsInMiOiJBQUFBQUFBQUFBQUFBQUFBIn0", "..%2F..%2Fetc%2Fpasswd"} {
			add("cursors", v, refuse, "cursor_invalid")
		}
		add("cursors", strings.Repeat("a", 3000), refuse, invalid)
	case name == "externalId":
		for _, v := range []string{"a%20b", "%C3%A9", strings.Repeat("x", 256), "%7f"} {
			add("strings", v, refuse, invalid)
		}
	case name == "kind": // of sagas; that of adjustments is an enumeration
		add("strings", strings.Repeat("x", 41), refuse, invalid)
	case name == "q":
		for _, v := range []string{"%00", strings.Repeat("x", 256), strings.Repeat("%C3%A9", 256)} {
			add("strings", v, refuse, invalid)
		}
	case name == "sha256":
		for _, v := range []string{"x", strings.Repeat("0", 63), strings.Repeat("0", 64), strings.Repeat("0", 65), "..%2F..%2Fgo.mod"} {
			add("ids", v, []int{404}, "schema_not_found")
		}
	case slices.Contains([]string{"from", "to", "asOf"}, name):
		for _, v := range []string{"2026-05-01T00:00:00", "2026-05-01t00:00:00z", "2026-05-01T00:00:00,5Z", "2026-05-01T00:00:60Z", "2026-05-01T24:00:00Z", "2026-02-30T00:00:00Z",
			"10000-01-01T00:00:00Z", "2026-05-01T00:00:00%2B24:00", "1714521600", "2026-05-01", "yesterday", "0000-00-00T00:00:00Z", "2026-05-01T00:00:00.0000000001Z"} {
			add("times", v, refuse, invalid)
		}
	case slices.Contains([]string{"minPosition", "asOfPosition", "after"}, name):
		for _, v := range []string{"17", "-", "32-1", "-1-1", "17-01", "17-1e3", "017-1", "17-9223372036854775808", "a-b", "17--1", "17-1%20"} {
			add("positions", v, refuse, "position_invalid", "cursor_invalid", invalid)
		}
	case slices.Contains([]string{"tenantId", "subscriptionId"}, name):
		for _, v := range []string{"x", "%7B" + newID().String() + "%7D", "'%20OR%201=1--", "..%2F"} { // no id of the fixture
			add("ids", v, []int{400, 404}, "tenant_not_found", "subscription_not_found", "figure_not_found", "not_found", invalid, "forbidden")
		}
	}
	if slices.Contains([]string{"reason", "fingerprint", "feature", "consumer", "topic", "subject", "stream", "correlationId", "period", "periodKey", "kind"}, name) || len(list) > 0 {
		add("strings", "", refuse, invalid)
		add("strings", "%00", refuse, invalid)
		add("strings", "a%0d%0ab", refuse, invalid)
		add("strings", "%ff", refuse, invalid)
		add("strings", strings.Repeat("x", 3000), refuse, invalid)
		list[len(list)-1].path += "&" + name + "=x"
		list[len(list)-1].codes = []string{"duplicate_parameter"}
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
