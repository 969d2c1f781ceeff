package console

import (
	"net/url"
	"slices"
)

// Over is the address of another page with the filters of this one: its parameters that the other page has, too.
func (d *view) Over(address string, pairs ...any) string {
	var known []string
	for _, p := range d.c.pages {
		if p.path == address {
			known = p.params
		}
	}
	values := url.Values{}
	for name, of := range d.v.query {
		if slices.Contains(known, name) && name != "cursor" {
			values[name] = of
		}
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		values.Set(text(pairs[i]), text(pairs[i+1]))
	}
	return address + "?" + values.Encode()
}

// maxBrief bounds a value in a cell of a table, in characters.
const maxBrief = 300

// figure returns a value on one line: a number with its digits, an object as JSON, cut if it is long.
func figure(value any) (string, error) {
	switch value.(type) {
	case map[string]any, []any:
	default:
		return text(value), nil
	}
	line, err := compact(value)
	if runes := []rune(line); len(runes) > maxBrief {
		return string(runes[:maxBrief]) + "…", err
	}
	return line, err
}
