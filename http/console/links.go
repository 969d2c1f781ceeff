package console

import (
	"net/url"
	"slices"
	"strings"
)

// Over is the address of another page with the filters of this one: its parameters that the other page has, too.
func (d *view) Over(address string, pairs ...any) string {
	var known []string
	for _, p := range d.c.pages {
		if p.Path == address {
			known = p.Params
		}
	}
	values := url.Values{}
	for name, of := range d.v.Query {
		if slices.Contains(known, name) && name != "cursor" {
			values[name] = of
		}
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		values.Set(Text(pairs[i]), Text(pairs[i+1]))
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
		return count(value), nil
	}
	return brief(value, maxBrief)
}

// brief returns a text, or another value as JSON in one line, at most n characters of it.
func brief(v any, n int) (string, error) {
	whole, isText := v.(string)
	if !isText {
		var err error
		if whole, err = compact(v); err != nil {
			return "", err
		}
	}
	line := []rune(strings.TrimSpace(whole))
	if len(line) <= n {
		return string(line), nil
	}
	return string(line[:n]) + "…", nil
}

// pageFor returns the function that leads from a path of the API to the page that shows it; "" if no page does.
func pageFor(pages []*Page) func(path any) string {
	shownBy := map[string]string{"/outbox": "/system", "/system/identity": "/system", "/projections": "/rebuilds"}
	return func(path any) string {
		u, err := url.Parse(Text(path))
		if err != nil {
			return ""
		}
		at, isAPI := strings.CutPrefix(u.EscapedPath(), "/api/v1")
		if !isAPI {
			return ""
		}
		if page, ok := shownBy[at]; ok {
			at = page
		}
		for _, p := range pages {
			if !matches(p.Path, Prefix+at) {
				continue
			}
			values := u.Query()
			for name := range values {
				if !slices.Contains(p.Params, name) {
					values.Del(name)
				}
			}
			if len(values) == 0 {
				return Prefix + at
			}
			return Prefix + at + "?" + values.Encode()
		}
		return ""
	}
}

// matches reports whether a path is one of a pattern's.
func matches(pattern, path string) bool {
	wanted, has := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(wanted) != len(has) {
		return false
	}
	for i := range wanted {
		if wanted[i] != has[i] && (!strings.HasPrefix(wanted[i], "{") || has[i] == "") {
			return false
		}
	}
	return true
}
