package shape

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/http/problem"
)

// Query holds the query parameters of an operation.
type Query struct{ known map[string]*huma.Schema }

// NewQuery returns the parameters that an operation documents.
func NewQuery(op *huma.Operation) *Query {
	rules := &Query{known: map[string]*huma.Schema{}}
	for _, p := range op.Parameters {
		if p.In == "query" {
			rules.known[p.Name] = p.Schema
		}
	}
	return rules
}

// PageSize returns the limit of a checked query for a list: the number of entries that its answer may have; 0 for any other operation.
func (rules *Query) PageSize(raw string) int64 {
	if rules == nil || rules.known["limit"] == nil {
		return 0
	}
	values, _ := url.ParseQuery(raw)
	size, err := strconv.ParseInt(values.Get("limit"), 10, 64)
	if err != nil {
		size, _ = strconv.ParseInt(fmt.Sprint(rules.known["limit"].Default), 10, 64)
	}
	return size
}

// maxParameter is above the length of any valid parameter; a cursor is the longest.
const maxParameter = 2048

// Check refuses unknown, repeated and mistyped parameters: without it, a misspelt filter
// would return all entries.
func (rules *Query) Check(raw string) *problem.Problem {
	if raw == "" || rules == nil { // nil: the handler checks them
		return nil
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return problem.New("malformed_query", "The query is not name=value pairs joined by &, percent-encoded")
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		schema, known := rules.known[name]
		switch {
		case !known:
			return problem.New("unknown_parameter", "The parameter "+echo(name)+" is not known here; names are case-sensitive")
		case len(values[name]) > 1 && schema.Type != huma.TypeArray:
			return problem.New("duplicate_parameter", "The parameter "+name+" is there more than once")
		}
		if why := parametersFault(schema, values[name]); why != "" {
			return problem.New("parameter_invalid", name+" "+why)
		}
	}
	return nil
}

// parametersFault checks all values of a parameter; only an array has more than one.
func parametersFault(schema *huma.Schema, values []string) string {
	if schema.Type != huma.TypeArray {
		return parameterFault(schema, values[0])
	}
	if schema.MaxItems != nil && len(values) > *schema.MaxItems {
		return "is there more than " + strconv.Itoa(*schema.MaxItems) + " times"
	}
	for i, value := range values {
		if why := parameterFault(schema.Items, value); why != "" {
			return why
		}
		if slices.Contains(values[:i], value) {
			return "has the same value twice"
		}
	}
	return ""
}

// echo quotes the start of the input in printable ASCII.
func echo(s string) string { return strconv.QuoteToASCII(problem.Clip(s, 40)) }

func parameterFault(schema *huma.Schema, value string) string {
	control := strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7F })
	switch {
	case value == "":
		return "is empty; leave it out instead"
	case len(value) > maxParameter || control || !utf8.ValidString(value):
		return "is too long, holds control characters or is not UTF-8"
	case schema.Type == huma.TypeInteger:
		return integerFault(schema, value)
	case schema.MaxLength != nil && utf8.RuneCountInString(value) > *schema.MaxLength:
		return "must be " + article(schema)
	case len(schema.Enum) > 0 && !slices.Contains(schema.Enum, any(value)):
		return "must be " + oneOf(schema.Enum)
	}
	return ""
}

// integerFault checks a number against the bounds of a schema. Only its shortest form is
// accepted: digits without a plus sign or leading zeros.
func integerFault(schema *huma.Schema, digits string) string {
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != digits {
		return "must be an integer, written in digits only"
	}
	if schema.Minimum != nil && n < int64(*schema.Minimum) || schema.Maximum != nil && n > int64(*schema.Maximum) {
		return "must be " + bounds(schema)
	}
	return ""
}

func bounds(schema *huma.Schema) string {
	low, high := "", ""
	if schema.Minimum != nil {
		low = strconv.FormatInt(int64(*schema.Minimum), 10)
	}
	if schema.Maximum != nil {
		high = strconv.FormatInt(int64(*schema.Maximum), 10)
	}
	switch {
	case high == "":
		return "at least " + low
	case low == "":
		return "at most " + high
	}
	return "from " + low + " to " + high
}

func oneOf(values []any) string {
	words := make([]string, 0, len(values))
	for _, v := range values {
		if word, ok := v.(string); ok {
			words = append(words, word)
		}
	}
	return "one of " + strings.Join(words, ", ")
}
