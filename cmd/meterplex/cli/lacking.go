package cli

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// lacking names the missing parts of a command line, with an example of the whole; another error is returned as it is.
func lacking(err error) error {
	p, ok := errors.AsType[*kong.ParseError](err)
	if !ok {
		return err
	}
	if at := withoutValue.FindStringSubmatch(err.Error()); at != nil {
		return emptyFlag(err, p.Context, at[1], at[2])
	}
	flags, some := strings.CutPrefix(err.Error(), "missing flags: ")
	if !some && !strings.HasPrefix(err.Error(), `expected "<`) {
		return err
	}
	node := p.Context.Selected()
	line, needs := []string{node.FullPath()}, []string{}
	name := strings.TrimPrefix(node.FullPath(), "meterplex ")
	noun, _, _ := strings.Cut(name, " ")
	for _, arg := range node.Positional {
		if !arg.Required {
			continue
		}
		line = append(line, exampleOf(noun, arg))
		if !arg.Set {
			needs = append(needs, arg.Summary())
		}
	}
	if some {
		needs = append(needs, flags)
	}
	for _, flag := range choices(node) {
		line = append(line, "--"+flag.Name)
		if !flag.IsBool() {
			line = append(line, exampleOf(noun, flag.Value))
		}
	}
	return fmt.Errorf("%s needs %s, e.g.\n  %s", name, strings.Join(needs, ", "), strings.Join(line, " "))
}

// withoutValue matches kong's error of a flag without a value: the flag, and the word in place of the value.
var withoutValue = regexp.MustCompile(`^--(\S+): (?:missing value|expected .* but got "(EOL|-[^"]*)" \()`)

// emptyFlag names a flag whose value is absent, because the line ends or a flag of the command follows. A value that only looks like a flag
// leaves the error as it is.
func emptyFlag(err error, c *kong.Context, name, next string) error {
	node := cmp.Or(c.Selected(), c.Model.Node)
	all := slices.Concat(node.AllFlags(false)...)
	next, _, _ = strings.Cut(next, "=")
	at := slices.IndexFunc(all, func(f *kong.Flag) bool { return f.Name == name })
	if at < 0 || strings.HasPrefix(next, "-") && !slices.ContainsFunc(all, func(f *kong.Flag) bool { return isNamed(f, next) }) {
		return err
	}
	return needsValue(node, all[at].Value)
}

func needsValue(node *kong.Node, v *kong.Value) error {
	noun, _, _ := strings.Cut(strings.TrimPrefix(node.FullPath(), "meterplex "), " ")
	name, example := "<"+v.Name+">", exampleOf(noun, v)
	if v.Flag != nil {
		name = "--" + v.Name
		example = name + " " + example
	}
	return fmt.Errorf("%s needs a value: is the variable that you gave empty? E.g. %s", name, example)
}

// emptyValue names an argument, or a flag of an id, whose text is empty: a list of the tenant "" must not become one of all tenants.
func emptyValue(c *kong.Context) error {
	for _, part := range c.Path {
		v := (*kong.Value)(part.Positional)
		if part.Flag != nil && part.Flag.PlaceHolder == "ID" {
			v = part.Flag.Value
		}
		if v == nil {
			continue
		}
		if text := reflect.Indirect(v.Target); text.Kind() == reflect.String && text.Len() == 0 {
			return needsValue(c.Selected(), v)
		}
	}
	return nil
}

// isNamed reports whether a word with its dashes names a flag.
func isNamed(flag *kong.Flag, word string) bool {
	name, long := strings.CutPrefix(word, "--")
	if !long {
		return flag.Short != 0 && word == "-"+string(flag.Short)
	}
	return name == flag.Name || name == "no-"+flag.Name || slices.Contains(flag.Aliases, name)
}

// choices returns the required flags of a command: of those that exclude each other, the given one, else the first.
func choices(node *kong.Node) (chosen []*kong.Flag) {
	all := slices.Concat(node.AllFlags(true)...)
	slices.SortStableFunc(all, func(a, b *kong.Flag) int { return cmp.Compare(rank(a), rank(b)) })
	taken := map[string]bool{}
	for _, flag := range all {
		if !flag.Required || slices.ContainsFunc(flag.Xor, func(group string) bool { return taken[group] }) {
			continue
		}
		for _, group := range flag.Xor {
			taken[group] = true
		}
		chosen = append(chosen, flag)
	}
	return chosen
}

func rank(flag *kong.Flag) int {
	if flag.Set {
		return 0
	}
	return 1
}

// examples are values of arguments and flags, by name. An enumeration needs no entry.
var examples = map[string]string{
	"amount": "1000", "event": "period.closed", "event-id": "evt_1", "events event": "17-4711", "features name": "Calls",
	"feature": "api_calls",
	"file":    "usage.csv", "lookup-key": "api_calls", "name": "Acme", "period": "2026-05", "plan": "pro", "price-key": "api_calls",
	"projections name": "NAME", "reason": "'wrong unit'", "scope": "usage:write", "subject": "meterplex.usage.event.recorded",
	"time-column": "TIMESTAMP",
	"topic":       "usage.raw", "ttl": "5m", "type": "METERED", "usage event": "evt_1", "url": "https://example.com/hooks",
}

func exampleOf(noun string, v *kong.Value) string {
	if v.Enum != "" {
		return v.EnumSlice()[0]
	}
	if text := cmp.Or(examples[noun+" "+v.Name], examples[v.Name]); text != "" {
		return text
	}
	if v.Flag == nil {
		return strings.ToUpper(v.Name)
	}
	return strings.TrimSuffix(v.Flag.FormatPlaceHolder(), ",...")
}
