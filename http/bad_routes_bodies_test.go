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
	ingest := route.Path == "/api/v1/usage/events" || strings.HasSuffix(route.Path, "/consume") || strings.Contains(route.Path, "/reservations") // validate their members themselves
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		members(string(good), name, schema.Properties[name], ingest, bad)
	}
	return list
}

type addCase func(kind, name string, body any, codes ...string)

// structures returns bodies that are not exactly one JSON object.
func structures(good string, optional bool, bad addCase) {
	const structure, text, malformed, invalid = "JSON structure", "text", "malformed_json", "body_invalid"
	if !optional {
		bad(structure, "empty", "", malformed)
	}
	for name, body := range map[string]string{"null": "null", "true": "true", "a number": "1", "a string": `"x"`, "an array": "[]", "an array of it": "[" + good + "]", "a huge number": "1e400"} {
		bad(structure, name, body, malformed, invalid)
	}
	open, member := good[:len(good)-1], first([]byte(good))
	comma := ","
	if good == "{}" {
		comma = ""
	}
	for name, body := range map[string]string{
		"white space": " \n", "trailing data": good + "x", "two documents": good + "\n" + good, "trailing comma": open + comma + ",}", "comment": good + "// x", "cut off": open,
		"byte order mark": "\xef\xbb\xbf" + good, "UTF-16": string(utf16(good)), "a member twice": `{"` + member + `":1,` + good[1:len(good)-1] + comma + `"` + member + `":1}`,
		"single quotes": strings.ReplaceAll(good, `"`, `'`) + "'", "100,000 levels": strings.Repeat("[", 100_000), "NaN": open + comma + `"x":NaN}`, "01": open + comma + `"x":01}`,
		"65 levels": open + comma + `"x":` + strings.Repeat("[", 65) + strings.Repeat("]", 65) + "}",
	} {
		bad(structure, name, body, malformed)
	}
	for name, value := range map[string]string{"lone surrogate": `\ud800`, "other lone surrogate": `\udc00x`, "not UTF-8": "\xff", "overlong": "\xc0\xaf", "surrogate in UTF-8": "\xed\xa0\x80", "control": "\x01", "NUL": "\x00", "bad escape": `\q`} {
		bad(text, name, open+comma+`"x":"`+value+`"}`, malformed, "unknown_member", "events_invalid")
	}
	for name, extra := range map[string]string{
		"unknown": "nothing", "other case": strings.ToUpper(member), "escapes": strings.Repeat(`\u0001`, 500), "$schema": "$schema",
		"__proto__": "__proto__", "a dot": member + ".x", "right to left": "\u202e" + member, "empty": "", "a space": member + " ",
	} {
		bad("members", name, open+comma+`"`+extra+`":1}`, "unknown_member")
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
	for _, media := range []string{"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json; charset=iso-8859-1",
		"application/json; charset=utf-16", "application/merge-patch+json", "application/xml", "json", "application/json, text/plain", "*/*", ";"} {
		add("media types", media, map[string]string{"Content-Type": media}, good, 415, "media_type_unsupported")
	}
	for _, encoding := range []string{"br", "deflate", "compress", "gzip, gzip", "identity, gzip", "GZIP!", "x"} {
		add("encodings", encoding, map[string]string{"Content-Encoding": encoding}, good, 415, "content_encoding_unsupported")
	}
	gz, zs := map[string]string{"Content-Encoding": "gzip"}, map[string]string{"Content-Encoding": "zstd"}
	small, packedSmall := zipped(good), packed(good)
	for name, body := range map[string][]byte{"plain": good, "cut off": small[:len(small)/2], "without its end": small[:len(small)-4],
		"wrong checksum": flip(slices.Clone(small), 8), "and more": append(slices.Clone(small), "more"...)} {
		add("encodings", "gzip "+name, gz, body, 400, "malformed_body")
	}
	add("encodings", "zstd plain", zs, good, 400, "malformed_body")
	add("encodings", "zstd cut off", zs, packedSmall[:len(packedSmall)/2], 400, "malformed_body")
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
	bomb := make([]byte, 16*mib)
	add("bombs", "gzip", gz, zipped(bomb), 413, "body_too_large")
	add("bombs", "zstd", zs, packed(bomb), 413, "body_too_large")
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
		bad(kind, fmt.Sprintf("%s: %.20s", name, value), string(rest[:len(rest)-1])+comma+`"`+name+`":`+value+"}", append(codes, snakeOf(name)+"_invalid")...)
	}
	wrong := map[string][]string{
		"string": {"1", "true", "[]", "{}"}, "integer": {`"5"`, "true", "[]", "{}", "1.0", "1e3", "1e400", "-0", "-1", "9007199254740993.0", "9223372036854775808", "99999999999999999999"},
		"boolean": {"1", `"true"`, "[]", `"yes"`}, "array": {"1", `"x"`, "{}", "true"}, "object": {"1", `"x"`, "[]", "true"},
	}
	kinds := map[string]string{"string": "strings", "integer": "numbers", "boolean": "enumerations", "array": "JSON structure", "object": "JSON structure"}
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
	set("strings", `"\u0000"`, "parameter_invalid", "tenant_not_found", "plan_not_found", "time_invalid", "position_invalid", "range_invalid")
	if schema.MaxLength != nil {
		set("strings", `"`+strings.Repeat("é", *schema.MaxLength+1)+`"`)
	}
	if len(schema.Enum) > 0 {
		for _, value := range []string{`"nothing"`, `""`, `"` + strings.ToLower(fmt.Sprint(schema.Enum[0])) + ` "`} {
			set("enumerations", value)
		}
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
