package http_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	nethttp "net/http"
	"slices"
	"strings"
)

// escaped returns a token of a JSON pointer in a URL fragment.
func escaped(token string) string {
	token = strings.ReplaceAll(strings.ReplaceAll(token, "~", "~0"), "/", "~1")
	return strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(token, "{", "%7B"), "}", "%7D"), "+", "%2B")
}

// newRequest makes the request of a call without a body.
func newRequest(ctx context.Context, c call, base string) (*nethttp.Request, error) {
	r, err := nethttp.NewRequestWithContext(ctx, c.method, base+c.path, nil)
	if err == nil {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	return r, err
}

// mostShown bounds the entries of lists in examples.
const mostShown = 2

// shortened cuts the lists of an object, and of its objects, to two entries. Members keep their order.
func shortened(text json.RawMessage) json.RawMessage {
	var object map[string]json.RawMessage
	if json.Unmarshal(text, &object) != nil {
		return text
	}
	for name, member := range object {
		short := member
		var list []json.RawMessage
		if slices.Contains([]string{"asOfPositions", "data", "edges", "nodes", "partitions", "units"}, name) &&
			json.Unmarshal(member, &list) == nil && len(list) > mostShown {
			short, _ = json.Marshal(list[:mostShown])
		} else if member[0] == '{' && name != "payload" {
			short = shortened(member)
		}
		text = bytes.Replace(text, member, short, 1)
	}
	return text
}

// formOf describes the members of a JSON value and their types; a list by its first entry.
func formOf(text json.RawMessage) string {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return err.Error()
	}
	return form(v)
}

func form(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case []any:
		if len(v) == 0 {
			return "[]"
		}
		return "[" + form(v[0]) + "]"
	case map[string]any:
		var members []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			members = append(members, name+":"+form(v[name]))
		}
		return "{" + strings.Join(members, " ") + "}"
	}
	return fmt.Sprintf("%T", v)
}
