package http_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/meterplex/meterplex/http/auth"
)

// bodyCases returns the bad bodies that apply to any route.
func (m *isolationFixture) bodyCases(route auth.Route, base call, schema schema, optional bool) (list []badCase) {
	good, isText := []byte(nil), false
	if text, ok := base.body.(string); ok {
		good, isText = []byte(text), true
	}
	if !isText {
		var err error
		good, err = json.Marshal(base.body)
		m.must(err)
	}
	bad := func(kind, name string, body any, codes ...string) {
		c := base
		c.body = body
		list = append(list, badCase{kind, name, c, []int{400}, codes})
	}
	structures(string(good), optional, bad)
	list = append(list, transports(base, good)...)
	if large(route) {
		list = append(list, sizes(base)...)
	}
	ingest := route.Path == "/api/v1/usage/events" || strings.HasSuffix(route.Path, "/consume") ||
		strings.Contains(route.Path, "/reservations") // validate their members themselves
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		members(string(good), name, schema.Properties[name], ingest, bad)
	}
	return list
}

type addCase func(kind, name string, body any, codes ...string)

// structures returns bodies that are not exactly one JSON object of the known members.
func structures(good string, optional bool, bad addCase) {
	const malformed = "malformed_json"
	open, member, comma := good[:len(good)-1], first([]byte(good)), ","
	if good == "{}" {
		comma = ""
	}
	for name, body := range map[string]string{"null": "null", "a string": `"x"`, "an array of it": "[" + good + "]"} {
		bad("JSON structure", name, body, malformed, "body_invalid")
	}
	for name, body := range map[string]string{"empty": "", "two documents": good + "\n" + good, "trailing comma": open + comma + ",}",
		"cut off":         open,
		"byte order mark": "\xef\xbb\xbf" + good, "a member twice": `{"` + member + `":1,` + good[1:len(good)-1] + comma + `"` + member +
			`":1}`,
		"100,000 levels": strings.Repeat("[", 100_000)} {
		if name != "empty" || !optional {
			bad("JSON structure", name, body, malformed)
		}
	}
	for name, value := range map[string]string{"lone surrogate": `\ud800`, "not UTF-8": "\xff", "control": "\x01"} {
		bad("text", name, open+comma+`"x":"`+value+`"}`, malformed, "unknown_member", "events_invalid")
	}
	for _, extra := range []string{"nothing", strings.ToUpper(member), strings.Repeat(`\u0001`, 500), ""} {
		bad("members", extra[:min(len(extra), 20)], open+comma+`"`+extra+`":1}`, "unknown_member")
	}
}

func sentAs(base call, kind, name string, header map[string]string, body any, status int, code string) badCase {
	base.header, base.body = header, body
	return badCase{kind, name, base, []int{status}, []string{code}}
}

// transports returns bad ways to send a good body.
func transports(base call, good []byte) (list []badCase) {
	add := func(kind, name string, header map[string]string, body any, status int, code string) {
		list = append(list, sentAs(base, kind, name, header, body, status, code))
	}
	for _, media := range []string{"", "text/plain", "application/json; charset=utf-16", "application/json, text/plain"} {
		add("media types", media, map[string]string{"Content-Type": media}, good, 415, "media_type_unsupported")
	}
	for _, encoding := range []string{"br", "gzip, gzip"} {
		add("encodings", encoding, map[string]string{"Content-Encoding": encoding}, good, 415, "content_encoding_unsupported")
	}
	for coding, whole := range map[string][]byte{"gzip": zipped(good), "zstd": packed(good)} {
		add("encodings", coding+" plain", map[string]string{"Content-Encoding": coding}, good, 400, "malformed_body")
		add("encodings", coding+" cut off", map[string]string{"Content-Encoding": coding}, whole[:len(whole)/2], 400, "malformed_body")
	}
	return list
}

// large reports whether a route gets large bodies: in the short form only two, since one reader reads the bodies of all.
func large(route auth.Route) bool {
	return !testing.Short() || route.Method == "POST" && (route.Path == "/api/v1/usage/events" || route.Path == "/api/v1/tenants")
}

// sizes returns bodies that are too large, or large and bad.
func sizes(base call) (list []badCase) {
	add := func(kind, name string, header map[string]string, body any, status int, code string) {
		list = append(list, sentAs(base, kind, name, header, body, status, code))
	}
	gz, zs := map[string]string{"Content-Encoding": "gzip"}, map[string]string{"Content-Encoding": "zstd"}
	add("bombs", "gzip", gz, zipped(make([]byte, 16*mib)), 413, "body_too_large")
	add("bombs", "zstd", zs, packed(make([]byte, 16*mib)), 413, "body_too_large")
	add("bombs", "gzip of levels", gz, zipped([]byte(strings.Repeat("[", 3*mib))), 400, "malformed_json")
	add("sizes", "over 4 MiB", nil, `{"x":"`+strings.Repeat("x", 4*mib)+`"}`, 413, "body_too_large")
	add("sizes", "a huge member", nil, `{"`+strings.Repeat("n", mib)+`":1}`, 400, "unknown_member")
	add("sizes", "a huge string", nil, `{"x":"`+strings.Repeat("x", 3*mib)+`"}`, 400, "unknown_member")
	return list
}

// members returns bad values for one member of a body, by its type.
func members(good, name string, schema schema, ingest bool, bad addCase) {
	var body map[string]json.RawMessage
	if json.Unmarshal([]byte(good), &body) != nil {
		return
	}
	set := func(kind, value string, codes ...string) {
		other := maps.Clone(body)
		if other == nil {
			other = map[string]json.RawMessage{}
		}
		delete(other, name)
		rest, _ := json.Marshal(other)
		comma := ","
		if len(other) == 0 {
			comma = ""
		}
		bad(kind, fmt.Sprintf("%s: %.20s", name, value), string(rest[:len(rest)-1])+comma+`"`+name+`":`+value+"}",
			append(codes, snakeOf(name)+"_invalid")...)
	}
	wrong := map[string][]string{
		"string": {"1", "[]"}, "integer": {`"5"`, "1.0", "1e400", "9223372036854775808"}, "boolean": {"1", `"true"`}, "array": {"1", "{}"},
		"object": {`"x"`, "[]"},
	}
	kinds := map[string]string{"string": "strings", "integer": "numbers", "boolean": "enumerations", "array": "JSON structure",
		"object": "JSON structure"}
	typed := "object" // for a reference
	for _, t := range []string{"string", "integer", "boolean", "array"} {
		if schema.is(t) {
			typed = t
		}
	}
	for _, value := range wrong[typed] {
		set(kinds[typed], value, "events_invalid")
	}
	if typed != "string" || ingest {
		return
	}
	set("strings", `"\u0000"`, "parameter_invalid", "tenant_not_found", "plan_not_found", "time_invalid", "position_invalid",
		"range_invalid")
	if schema.MaxLength != nil {
		set("strings", `"`+strings.Repeat("é", *schema.MaxLength+1)+`"`)
	}
	if len(schema.Enum) > 0 {
		set("enumerations", `"nothing"`)
	}
}

// snakeOf converts a member's name to the form that codes use.
func snakeOf(name string) string {
	var out strings.Builder
	for _, c := range name {
		if c >= 'A' && c <= 'Z' {
			out.WriteByte('_')
			c += 'a' - 'A'
		}
		out.WriteRune(c)
	}
	return out.String()
}
