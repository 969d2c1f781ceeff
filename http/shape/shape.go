// Package shape checks the query and the body of a request against the schema that the
// OpenAPI document shows for its operation.
package shape

import (
	"bytes"
	"encoding/json"
	"maps"
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
// missing or mistyped. The command validates the meaning of values.
func (b *Body) Check(raw []byte) *problem.Problem {
	if fault := strictjson.Check(raw); fault != nil {
		return problem.New(fault.Code, fault.Message)
	}
	var body any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&body); err != nil {
		return problem.New("malformed_json", "The body is not JSON")
	}
	return b.value(b.schema, body, "", "body")
}

// value checks one value; name is the member that holds it.
func (b *Body) value(schema *huma.Schema, v any, pointer, name string) *problem.Problem {
	for schema.Ref != "" {
		schema = b.registry.SchemaFromRef(schema.Ref)
	}
	if v == nil && schema.Nullable {
		return nil
	}
	switch v := v.(type) {
	case map[string]any:
		if schema.Type == huma.TypeObject {
			if values, ok := schema.AdditionalProperties.(*huma.Schema); ok {
				return b.table(values, v, pointer, name)
			}
			return b.object(schema, v, pointer)
		}
	case []any:
		if schema.Type == huma.TypeArray {
			return b.array(schema, v, pointer, name)
		}
	case string:
		if schema.Type == huma.TypeString {
			return b.text(schema, v, pointer, name)
		}
	case json.Number:
		if schema.Type == huma.TypeInteger {
			return wrong(name, pointer, integerFault(schema, v.String()))
		}
	case bool:
		if schema.Type == huma.TypeBoolean {
			return nil
		}
	}
	return wrong(name, pointer, "must be "+article(schema))
}

func (b *Body) object(schema *huma.Schema, members map[string]any, pointer string) *problem.Problem {
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if schema.Properties[name] == nil {
			return problem.New("unknown_member", "The member "+echo(name)+" is not known here; names are case-sensitive").
				At(pointer + "/" + escapePointer(problem.Clip(name, 40)))
		}
	}
	for _, name := range schema.Required {
		if _, sent := members[name]; !sent {
			return problem.New("member_missing", name+" is missing; it is required").At(pointer + "/" + name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if members[name] == nil && !slices.Contains(schema.Required, name) {
			continue // null means absent
		}
		if p := b.value(schema.Properties[name], members[name], pointer+"/"+name, name); p != nil {
			return p
		}
	}
	return nil
}

// table checks an object whose members have any names.
func (b *Body) table(values *huma.Schema, members map[string]any, pointer, name string) *problem.Problem {
	for _, member := range slices.Sorted(maps.Keys(members)) {
		if p := b.value(values, members[member], pointer+"/"+escapePointer(problem.Clip(member, 40)), name); p != nil {
			return p
		}
	}
	return nil
}

func (b *Body) array(schema *huma.Schema, items []any, pointer, name string) *problem.Problem {
	if schema.MinItems != nil && len(items) < *schema.MinItems || schema.MaxItems != nil && len(items) > *schema.MaxItems {
		return wrong(name, pointer, "must be "+article(schema))
	}
	for i, item := range items {
		if p := b.value(schema.Items, item, pointer+"/"+strconv.Itoa(i), name); p != nil {
			return p
		}
	}
	return nil
}

func (b *Body) text(schema *huma.Schema, s, pointer, name string) *problem.Problem {
	n := utf8.RuneCountInString(s)
	switch {
	case schema.MinLength != nil && n < *schema.MinLength || schema.MaxLength != nil && n > *schema.MaxLength:
		return wrong(name, pointer, "must be "+article(schema))
	case len(schema.Enum) > 0 && !slices.Contains(schema.Enum, any(s)):
		return wrong(name, pointer, "must be "+oneOf(schema.Enum))
	case strings.IndexByte(s, 0) >= 0:
		return wrong(name, pointer, `holds \u0000, which cannot be stored`)
	}
	return nil
}

// wrong is the problem of an invalid member; its code is the name in snake case:
// lookupKey gives lookup_key_invalid.
func wrong(name, pointer, why string) *problem.Problem {
	if why == "" {
		return nil
	}
	return problem.New(snake(name)+"_invalid", name+" "+why).At(pointer)
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
