// Package shape checks the query and the body of a request against the schema that the
// OpenAPI document shows for its operation.
package shape

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/domain/strictjson"
	"github.com/meterplex/meterplex/http/problem"
)

// Body validates a JSON body against its documented schema.
type Body struct {
	schema   *huma.Schema
	registry huma.Registry
	Optional bool
}

// NewBody returns nil if the operation has no body.
func NewBody(op *huma.Operation, registry huma.Registry) *Body {
	if op.RequestBody == nil || op.RequestBody.Content["application/json"] == nil {
		return nil
	}
	return &Body{op.RequestBody.Content["application/json"].Schema, registry, !op.RequestBody.Required}
}

// Check refuses a body that strictjson.Check refuses, then the first member that is unknown,
// missing or mistyped. The command validates the meaning of values. The body is checked in place, without a copy of its
// values, so that no content takes many times its size in memory.
func (b *Body) Check(raw []byte) *problem.Problem {
	if f := strictjson.Check(raw); f != nil {
		return problem.New(f.Code, f.Message)
	}
	c := checker{registry: b.registry}
	if f := c.value(b.schema, bytes.TrimSpace(raw), "body"); f != nil {
		return problem.New(f.code, f.detail).At(f.pointer)
	}
	return nil
}

// checker checks the values of one body, which strictjson.Check has accepted.
type checker struct {
	registry huma.Registry
	in       strictjson.Scanner // reads the members of one object at a time
}

// value checks one value; name is the member that holds it.
func (c *checker) value(schema *huma.Schema, v []byte, name string) *fault {
	for schema.Ref != "" {
		schema = c.registry.SchemaFromRef(schema.Ref)
	}
	switch kind := v[0]; {
	case kind == 'n' && schema.Nullable:
		return nil
	case kind == '{' && schema.Type == huma.TypeObject:
		if values, ok := schema.AdditionalProperties.(*huma.Schema); ok {
			return c.table(values, v, name)
		}
		return c.object(schema, v)
	case kind == '[' && schema.Type == huma.TypeArray:
		return c.array(schema, v, name)
	case kind == '"' && schema.Type == huma.TypeString:
		return text(schema, v[1:len(v)-1], name)
	case (kind == '-' || kind-'0' <= 9) && schema.Type == huma.TypeInteger:
		return wrong(name, integerFault(schema, string(v)))
	case (kind == 't' || kind == 'f') && schema.Type == huma.TypeBoolean:
		return nil
	}
	return wrong(name, "must be "+article(schema))
}

// object checks an object for unknown members, then for missing ones, then their values by name.
func (c *checker) object(schema *huma.Schema, object []byte) *fault {
	var room [usualMembers]member
	members, f := c.members(schema, object, room[:0])
	if f != nil {
		return f
	}
	for _, name := range schema.Required {
		if !slices.ContainsFunc(members, func(m member) bool { return m.name == name }) {
			return (&fault{code: "member_missing", detail: name + " is missing; it is required"}).in(name)
		}
	}
	for _, m := range members {
		if m.value[0] == 'n' && !slices.Contains(schema.Required, m.name) {
			continue // null means absent
		}
		if f := c.value(schema.Properties[m.name], m.value, m.name); f != nil {
			return f.in(m.name)
		}
	}
	return nil
}

// member is a member of an object that is in its schema.
type member struct {
	name  string
	value []byte
}

// usualMembers is the number of members that an object may have without an allocation.
const usualMembers = 16

// members appends the members of an object to known, sorted by name. Its fault is the first unknown name.
func (c *checker) members(schema *huma.Schema, object []byte, known []member) ([]member, *fault) {
	var unknown []byte
	found := false
	in := &c.in
	in.Reset(object)
	base, _ := in.Enter()
	for name, more := in.Member(base); more; name, more = in.Member(base) {
		value := valueAt(in)
		if schema.Properties[string(name)] != nil {
			known = append(known, member{string(name), value})
		} else if !found || bytes.Compare(name, unknown) < 0 {
			unknown, found = name, true
		}
	}
	if found {
		name := string(unknown)
		f := &fault{code: "unknown_member", detail: "The member " + echo(name) + " is not known here; names are case-sensitive"}
		return nil, f.in(escapePointer(problem.Clip(name, 40)))
	}
	slices.SortFunc(known, func(a, b member) int { return strings.Compare(a.name, b.name) })
	return known, nil
}

// valueAt skips the value at the position of a scanner, and returns it.
func valueAt(in *strictjson.Scanner) []byte {
	start := in.Pos()
	in.Value()
	return in.Since(start)
}

// table checks an object whose members have any names, in their order.
func (c *checker) table(values *huma.Schema, object []byte, name string) *fault {
	in := strictjson.Over(object)
	base, _ := in.Enter()
	for of, more := in.Member(base); more; of, more = in.Member(base) {
		if f := c.value(values, valueAt(&in), name); f != nil {
			return f.in(escapePointer(problem.Clip(string(of), 40)))
		}
	}
	return nil
}

// array checks the number of elements before their values, but reads no element beyond the largest number.
func (c *checker) array(schema *huma.Schema, array []byte, name string) *fault {
	var first *fault
	in := strictjson.Over(array)
	_, _ = in.Enter()
	in.Peek()
	n := 0
	for ; in.Element(n); n++ {
		if schema.MaxItems != nil && n == *schema.MaxItems {
			return wrong(name, "must be "+article(schema))
		}
		element := valueAt(&in)
		if first != nil {
			continue
		}
		if f := c.value(schema.Items, element, name); f != nil {
			first = f.in(strconv.Itoa(n))
		}
	}
	if schema.MinItems != nil && n < *schema.MinItems {
		return wrong(name, "must be "+article(schema))
	}
	return first
}

// text checks a string, as it is between its quotes.
func text(schema *huma.Schema, s []byte, name string) *fault {
	if bytes.IndexByte(s, '\\') >= 0 {
		s, _ = strictjson.Unescape(s)
	}
	n := utf8.RuneCount(s)
	switch {
	case schema.MinLength != nil && n < *schema.MinLength || schema.MaxLength != nil && n > *schema.MaxLength:
		return wrong(name, "must be "+article(schema))
	case len(schema.Enum) > 0 && !slices.ContainsFunc(schema.Enum, func(value any) bool {
		word, ok := value.(string)
		return ok && word == string(s)
	}):
		return wrong(name, "must be "+oneOf(schema.Enum))
	case schema.Format != "" && n == 0: // an id or a time: its handler would take it as absent
		return wrong(name, "must not be empty; leave it out if it has no value")
	case bytes.IndexByte(s, 0) >= 0:
		return wrong(name, `holds \u0000, which cannot be stored`)
	}
	return nil
}

// fault is the problem of a member. Its pointer is relative to the value that is being checked.
type fault struct{ code, detail, pointer string }

// in returns the fault of a member or element as one of the value that holds it.
func (f *fault) in(name string) *fault {
	f.pointer = "/" + name + f.pointer
	return f
}

// wrong is the fault of an invalid member; its code is the name in snake case:
// lookupKey gives lookup_key_invalid.
func wrong(name, why string) *fault {
	if why == "" {
		return nil
	}
	return &fault{code: snake(name) + "_invalid", detail: name + " " + why}
}

func snake(name string) string {
	var out strings.Builder
	for _, c := range []byte(name) {
		if c-'A' <= 'Z'-'A' {
			out.WriteByte('_')
			c += 'a' - 'A'
		}
		out.WriteByte(c)
	}
	return out.String()
}

func escapePointer(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

// article describes the type of a schema, with an article.
func article(schema *huma.Schema) string {
	switch schema.Type {
	case huma.TypeObject:
		return "an object"
	case huma.TypeArray:
		return "an array" + span(schema.MinItems, schema.MaxItems, "elements")
	case huma.TypeInteger:
		return "an integer, written in digits only"
	case huma.TypeBoolean:
		return "true or false"
	}
	return "a string" + span(schema.MinLength, schema.MaxLength, "characters")
}

func span(low, high *int, of string) string {
	switch {
	case low != nil && high != nil:
		return " of " + strconv.Itoa(*low) + " to " + strconv.Itoa(*high) + " " + of
	case high != nil:
		return " of at most " + strconv.Itoa(*high) + " " + of
	case low != nil:
		return " of at least " + strconv.Itoa(*low) + " " + of
	}
	return ""
}
