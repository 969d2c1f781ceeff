package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/danielgtaylor/huma/v2"

	"github.com/meterplex/meterplex/commands"
	"github.com/meterplex/meterplex/http/auth"
	"github.com/meterplex/meterplex/http/problem"
)

// Operation is an operation of the API, as its table declares it.
type Operation struct {
	Route *auth.Route
	Body  *huma.Schema // of a JSON body, without a reference; nil: no such body
}

// scopesOf returns the scopes of an operation that keys of a kind may hold.
func (o *Operation) scopesOf(who auth.Who) []string {
	if who == auth.Either {
		return o.Route.Scopes
	}
	return slices.DeleteFunc(slices.Clone(o.Route.Scopes), func(scope string) bool {
		return slices.Contains(commands.OperatorScopes(), scope) != (who == operator)
	})
}

// complete fills the action's unset values from the operation of the API: who may use it, and the form of its fields.
func (a *Action) complete(c *Config) error {
	op := c.Operation(a.Does)
	if op == nil {
		return fmt.Errorf("the API has no operation %q, which the action %s sends", a.Does, a.Name)
	}
	a.Who = cmp.Or(a.Who, operator)
	a.scopes = op.scopesOf(a.Who)
	members, required := map[string]*huma.Schema{}, []string(nil)
	if op.Body != nil {
		members, required = op.Body.Properties, op.Body.Required
	}
	a.bare = members["reason"] == nil
	for i := range a.Fields {
		in := &a.Fields[i]
		if member := members[in.Name]; member != nil {
			in.complete(member, c.Schemas, slices.Contains(required, in.Name) || a.patches())
		}
		in.Label, in.Kind = cmp.Or(in.Label, labelOf(in.Name)), cmp.Or(in.Kind, "text")
	}
	return nil
}

// patches reports whether the form shows the present values and sends those that the visitor changes.
func (a *Action) patches() bool {
	return slices.ContainsFunc(a.Fields, func(in Field) bool { return in.Name == "was" })
}

// complete fills a field's unset values from the schema of its member.
func (in *Field) complete(member *huma.Schema, schemas huma.Registry, required bool) {
	of := member.Items
	for of != nil && of.Ref != "" {
		of = schemas.SchemaFromRef(of.Ref)
	}
	kind := "text"
	in.holds, in.Optional = holdsText, in.Optional || !required
	switch {
	case member.Type == huma.TypeBoolean:
		in.holds, kind = holdsYes, "checkbox"
	case member.Type == huma.TypeInteger:
		in.holds, kind = holdsInteger, "number"
	case member.Type == huma.TypeArray && of.Type == huma.TypeString && (of.Enum != nil || in.Options != nil):
		in.holds, kind, member = holdsChoices, "checkboxes", &huma.Schema{Enum: of.Enum, Description: member.Description}
	case member.Type == huma.TypeArray && of.Type == huma.TypeString:
		in.holds = holdsWords
	case member.Type != huma.TypeString:
		if in.holds, kind = holdsJSON, "area"; in.Rows != nil {
			kind = "rows"
			in.completeRows(of, schemas)
		}
	case member.Enum != nil:
		kind = "select"
	}
	if in.Kind = cmp.Or(in.Kind, kind); in.Options == nil {
		for _, value := range member.Enum {
			in.Options = append(in.Options, Text(value))
		}
	}
	in.Hint = cmp.Or(in.Hint, member.Description)
}

// labelOf writes the name of a member as words: closeAfterHours is "Close after hours".
func labelOf(name string) string {
	var b strings.Builder
	for i, letter := range name {
		switch {
		case i == 0:
			letter = unicode.ToUpper(letter)
		case unicode.IsUpper(letter):
			b.WriteByte(' ')
			letter = unicode.ToLower(letter)
		}
		b.WriteRune(letter)
	}
	return b.String()
}

// held is the kind of value that a field holds for the body of a request.
type held int

const (
	holdsNothing held = iota // no member has its name
	holdsText
	holdsYes     // true, if it is checked
	holdsInteger // in digits
	holdsChoices // several of a few texts
	holdsWords   // texts, on lines of their own or separated by commas
	holdsJSON
)

// requestOf returns the request of an action: the operation, with the parameters of the page or of the form, and the members that its
// fields hold. A form that shows the present values sends those that the visitor changed.
func (a *Action) requestOf(v *Visit, f Form) (Request, error) {
	method, path, _ := strings.Cut(a.Does, " ")
	for name := range strings.SplitSeq(path, "{") {
		if name, _, found := strings.Cut(name, "}"); found {
			path = replaceParameter(path, name, cmp.Or(f.Get(a.parameter(name)), v.Param(name)))
		}
	}
	req := Request{Method: method, Path: path, Body: maps.Clone(a.Sets)}
	if req.Body == nil && method != http.MethodDelete {
		req.Body = map[string]any{}
	}
	for i := range a.Fields {
		in := &a.Fields[i]
		if written := in.written(f); in.holds == holdsNothing || written == "" && !a.patches() ||
			a.patches() && !f.changed(in.Name, written) {
			continue
		}
		value, err := in.value(f)
		if err != nil {
			return req, err
		}
		req.Body[in.Name] = value
	}
	if a.Adds == nil {
		return req, nil
	}
	return req, a.Adds(v, f, req.Body)
}

// parameter returns the field that holds a parameter of the operation's path.
func (a *Action) parameter(name string) string {
	for _, in := range a.Fields {
		if in.Is == name {
			return in.Name
		}
	}
	return name
}

// written is the text of a field, as the page displays the value of its member.
func (in *Field) written(f Form) string {
	switch in.holds {
	case holdsChoices:
		return strings.Join(slices.Sorted(slices.Values(f.All(in.Name))), ",")
	case holdsJSON:
		if list, err := in.rows(f); in.inRows(f) && (err != nil || len(list) > 0 || !in.Optional) {
			return "rows"
		}
	case holdsText:
		return f.Get(in.Name)
	}
	return f.lines(in.Name)
}

// value returns the member that a field holds: each with the digits that were written, since the API decides on them. An emptied field
// holds the empty value.
func (in *Field) value(f Form) (any, error) {
	written := in.written(f)
	switch in.holds {
	case holdsYes:
		return true, nil
	case holdsChoices:
		return append([]string{}, f.All(in.Name)...), nil
	case holdsWords:
		by := ","
		if in.Kind == "area" {
			by = "\n"
		}
		return append([]string{}, words(written, by)...), nil
	case holdsInteger:
		if written == "" {
			return nil, nil
		}
		_, err := f.integer(in.Name)
		return json.RawMessage(written), err
	case holdsJSON:
		if in.inRows(f) {
			return in.rows(f)
		}
		if !json.Valid([]byte(cmp.Or(written, "{}"))) {
			return nil, problem.New("body_invalid", "The field "+in.Label+" is not JSON").At("/" + in.Name)
		}
		return json.RawMessage(cmp.Or(written, "{}")), nil
	}
	return written, nil
}

// words splits a text, and leaves out empty words.
func words(text, by string) (all []string) {
	for word := range strings.SplitSeq(text, by) {
		if word = strings.TrimSpace(word); word != "" {
			all = append(all, word)
		}
	}
	return all
}

// replaceParameter replaces a parameter of a pattern by a value, escaped.
func replaceParameter(pattern, name, value string) string {
	return strings.ReplaceAll(pattern, "{"+name+"}", url.PathEscape(value))
}

// JSONOf returns the JSON that a parameter of a page holds.
func JSONOf(name, text string) (any, error) {
	in := Field{Name: name, Label: labelOf(name), holds: holdsJSON}
	return in.value(Form{url.Values{name: {text}}})
}
